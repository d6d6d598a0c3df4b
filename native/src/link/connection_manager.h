// Brings the two relays of a link together and keeps them so: listens or dials, one link at a time.
// For the loop of its owner, which waits for what is asked here and calls `step`.
#pragma once

#include <poll.h>

#include <list>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "link.h"
#include "link_address.h"
#include "live_link.h"
#include "second_way.h"

namespace dllm::link {

class ConnectionOwner : public LinkOwner {
 public:
  // The link is no more, and its sessions with it.
  virtual void lost(const std::string& reason) = 0;
};

class ConnectionManager {
 public:
  // Between two attempts to dial.
  static constexpr Nanos kRetryFirst = kNanosPerSecond / 4;
  static constexpr Nanos kRetryMost = 4 * kNanosPerSecond;
  // For a place that is not the last: behind it lies one where the other end surely is.
  static constexpr Nanos kTryMax = 2 * kNanosPerSecond;
  // The link and those that have not said who they are.
  static constexpr std::size_t kCallersMax = 32;

  // Listens at once, at the first place at least, or throws. `own` names this end.
  ConnectionManager(const LinkAddress& place, Hello own, ConnectionOwner& owner, const Lab& lab,
                    Nanos patience);
  ~ConnectionManager();
  ConnectionManager(const ConnectionManager&) = delete;
  ConnectionManager& operator=(const ConnectionManager&) = delete;

  // Appends what to wait for.
  void add_waits(std::vector<pollfd>& waits);
  // When to come back though nothing happens.
  [[nodiscard]] Nanos due(Nanos now);
  // Takes in what happened, and tells the owner.
  void step(Nanos now);
  // Sends what the owner had to say.
  void give_out(Nanos now);

  // Null while there is none that both ends want.
  [[nodiscard]] LiveLink* link();
  // Why there is none, of the latest attempt.
  [[nodiscard]] const std::string& reason() const { return reason_; }
  // The other end said no, and will for a while.
  [[nodiscard]] bool is_refused() const { return refused_; }
  [[nodiscard]] std::uint16_t port() const;
  // What a snapshot shows of it; bytes are those of all links so far.
  void note(PairTally& tally);
  // What commands sent, over all links so far.
  [[nodiscard]] Shares sent_shares() const;
  // Ends the link in order.
  void end(const std::string& reason, Nanos now);

 private:
  struct Caller;

  void listen();
  void accept(int listener, Nanos now);
  // Where is dialled now, and for how long; which is the link's place when it is up.
  [[nodiscard]] const Endpoint& there() const;
  [[nodiscard]] Nanos dial_max() const;
  // Who took our call there, and does not say who it is in the same time.
  [[nodiscard]] bool is_mute(Caller& caller, Nanos now) const;
  [[nodiscard]] bool is_last() const { return at_ == place_.others.size(); }
  // Nothing more comes of the link, though the other end is there.
  [[nodiscard]] bool is_forsaken(Caller& caller, Nanos now);
  void make_room();
  void dial(Nanos now);
  void add_caller(UniqueFd fd);
  void greeted(Caller& caller, const Hello& hello);
  void welcomed();
  void send_away(Caller& caller, const std::string& reason);
  void release();
  bool attend(Caller& caller, Nanos now);
  void ended(Caller& caller, const std::string& reason, bool refused, Nanos now);
  void fail(const std::string& reason, Nanos now);
  std::string who_holds(Nanos now) const;
  [[nodiscard]] std::uint64_t sent_bytes() const;
  [[nodiscard]] std::uint64_t received_bytes() const;

  const LinkAddress place_;
  const Hello own_;
  ConnectionOwner& owner_;
  const Lab& lab_;
  const Nanos patience_;
  std::vector<UniqueFd> listeners_;
  UniqueFd dialing_;
  std::size_t at_ = 0;  // of the places, the first of which is the best
  std::string detour_;  // why another is the link's
  Nanos dial_at_ = 0;
  Nanos dialed_at_ = 0;
  Nanos retry_ = kRetryFirst;
  std::list<Caller> callers_;
  Caller* holder_ = nullptr;  // of the callers
  std::minstd_rand random_{std::random_device{}()};
  SecondWay second_way_;
  Hello other_;
  std::string other_place_;
  Nanos linked_since_ = 0;
  std::string reason_;
  bool refused_ = false;
  std::uint64_t sent_before_ = 0;
  std::uint64_t received_before_ = 0;
  Shares shares_before_{};
};

}  // namespace dllm::link
