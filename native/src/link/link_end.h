// One end of a link, without sockets: greets, carries sessions under credit, measures by pings, and
// goes on over another connection where the first one broke.
#pragma once

#include <array>
#include <map>
#include <string>

#include "clock.h"
#include "hello.h"
#include "prefetched_replies.h"
#include "session.h"

namespace dllm::link {

// Told by a LinkEnd, while it takes in what came.
class LinkOwner {
 public:
  virtual ~LinkOwner() = default;
  // The other end said who it is, and is to be welcomed or sent away.
  virtual void greeted(const Hello& other) = 0;
  // It welcomes us: from here on sessions can be opened.
  virtual void welcomed() = 0;
  // The head opened a session.
  virtual void opened(std::uint32_t session) = 0;
  virtual void arrived(std::uint32_t session, Bytes data) = 0;
  // The other end sends no more in this session.
  virtual void finished(std::uint32_t session) = 0;
  // It is over, whatever was under way.
  virtual void was_reset(std::uint32_t session, const std::string& reason) = 0;
  // Of the reply whose first bytes come next.
  virtual void timed(std::uint32_t session, Trip trip) = 0;
  // About a weight: a message of `home`, behind all that arrived before in this session.
  virtual void told(std::uint32_t session, Bytes message) = 0;
  // Some of the tensors the worker's machine has.
  virtual void listed(Bytes message) = 0;
  // Replies to questions that may come in this session.
  virtual void prefetched(std::uint32_t session, const std::vector<PrefetchedReply>& replies) = 0;
};

class LinkEnd {
 public:
  // Of each session and direction, under way at most.
  static constexpr std::uint32_t kWindowBytes = 4 << 20;
  // A head serves one client at a time. Each may fill its window.
  static constexpr std::size_t kSessionsMax = 4;
  static constexpr Nanos kPingEvery = kNanosPerSecond / 2;
  // At first they come faster, so that the round trip is soon known.
  static constexpr Nanos kFirstPingsEvery = 50 * kNanosPerMilli;
  static constexpr int kFirstPings = 4;

  // `patience`: the other end is to give up when it hears nothing for so long.
  LinkEnd(const Hello& own, LinkOwner& owner, Nanos now, Nanos patience);

  // For the other end, not yet sent over this connection.
  ByteQueue& out() { return out_; }
  [[nodiscard]] std::size_t waiting() const { return out_.size(); }
  // What it has not told to have received.
  [[nodiscard]] std::size_t unacked() const { return unacked_.size(); }
  // What came from it. Throws LinkBroken; nothing of this link is to be used then.
  void received(ByteQueue& in, Nanos now);
  // To be called at `next_tick` and whenever something happens: pings.
  void tick(Nanos now);
  [[nodiscard]] Nanos next_tick() const { return next_ping_; }
  void set_patience(Nanos patience) { patience_ = patience; }

  // Takes the other end, once it has greeted.
  void welcome();
  // Both ends have.
  [[nodiscard]] bool is_up() const { return is_up_; }

  // Names the link, once the other end has greeted.
  [[nodiscard]] std::uint64_t token() const { return token_; }
  // Whether it outlives its connection.
  [[nodiscard]] bool may_resume() const { return welcomed_; }
  // The connection broke; what is said from here on waits.
  void detach();
  // Another one is there, and the other end has greeted over it; `said` goes before all else.
  void resume(ByteQueue& said);
  // Both ends know over the present connection what the other has received.
  [[nodiscard]] bool flows() const { return flows_now_; }
  // Of Hello::features, those both ends have; known once the other end has greeted.
  [[nodiscard]] bool uses(std::uint64_t feature) const { return (features_ & feature) != 0; }
  // How long nothing has come, not counting when this process did not run.
  [[nodiscard]] Nanos silence(Nanos now) const { return now - heard_; }
  // How much of that the other end wants to be borne.
  [[nodiscard]] Nanos patience() const { return others_patience_; }
  // The shortest of the latest pings; 0: none yet.
  [[nodiscard]] Nanos rtt() const;

  std::uint32_t open();
  [[nodiscard]] bool has(std::uint32_t session) const { return flows_.contains(session); }
  [[nodiscard]] std::size_t sessions() const { return flows_.size(); }
  // Bytes that may be sent in a session; 0 for one that is over.
  [[nodiscard]] std::size_t credit(std::uint32_t session) const;
  // At most the credit.
  void send(std::uint32_t session, View data);
  void send_trip(std::uint32_t session, Trip trip);
  // A message of `home`; in a session that is over, nothing.
  void send_home(std::uint32_t session, View message);
  void send_list(View message);
  void send_prefetched(std::uint32_t session, const std::vector<PrefetchedReply>& replies);
  // No more is sent in this session.
  void finish(std::uint32_t session);
  void reset(std::uint32_t session, const std::string& reason);
  // So many bytes that arrived still wait here; what no longer does may be sent anew.
  void grant(std::uint32_t session, std::size_t waiting);
  // The link ends in order.
  void goodbye(const std::string& reason);

 private:
  static constexpr std::size_t kRtts = 16;
  // Received before the other end is told without a ping.
  static constexpr std::uint32_t kTellEvery = 512 << 10;

  struct Flow {
    std::uint64_t may_send = 0;
    std::uint64_t arrived = 0;
    std::uint64_t granted = kWindowBytes;  // in all
    bool own_finished = false;
    bool other_finished = false;
  };

  void say(FrameType type, std::uint32_t session, View payload);
  void handle(const Frame& frame, Nanos now);
  void take_welcome(const Frame& frame, Nanos now);
  void retransmit(std::uint64_t count);
  void take_received(std::uint32_t count);
  void drop_acked(std::uint64_t count);
  std::uint32_t tell_received();
  void pong(View payload, Nanos now);
  void take_open(std::uint32_t session);
  void handle_in_session(const Frame& frame);
  void take_list(const Frame& frame);
  void take_home(const Frame& frame, const Flow& flow);
  void take_prefetched(const Frame& frame);
  void take_data(const Frame& frame, Flow& flow);
  void take_credit(const Frame& frame, Flow& flow);
  Flow& add_flow(std::uint32_t session);
  void forget_if_over(std::uint32_t session);

  const Hello own_;
  LinkOwner& owner_;
  ByteQueue out_;
  bool greeted_ = false;
  bool welcomed_ = false;  // by us
  bool is_up_ = false;
  bool flows_now_ = false;
  bool resumes_ = false;  // the other end's WELCOME over this connection is due
  std::uint64_t token_ = 0;
  // Bytes of frames behind the first WELCOME. Those sent stay until the other end has them.
  ByteQueue unacked_;
  std::uint64_t acked_ = 0;  // of those sent, in front of `unacked_`
  std::uint64_t received_ = 0;
  std::uint64_t told_ = 0;  // of those received
  std::uint64_t features_ = 0;
  std::uint32_t window_ = 0;  // the other end's
  std::map<std::uint32_t, Flow> flows_;
  std::uint32_t latest_ = 0;  // session opened

  Nanos heard_;
  Nanos ticked_;
  Nanos patience_;
  Nanos others_patience_;
  Nanos next_ping_;
  int pings_ = 0;
  std::array<Nanos, kRtts> rtts_{};
  std::size_t rtts_known_ = 0;
};

}  // namespace dllm::link
