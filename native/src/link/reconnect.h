// Brings the two relays of a link together and keeps them so: listens or dials, one link at a time,
// over one connection after the other where these break.
// For the loop of its owner, which waits for what is asked here and calls `step`.
#pragma once

#include <poll.h>

#include <list>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "link.h"
#include "link_address.h"
#include "live_link.h"

namespace dllm::link {

class ReconnectorOwner : public LinkOwner {
 public:
  // Something for the log: it goes on over another connection.
  virtual void resumed(const std::string& news) = 0;
  // The link is no more, and its sessions with it.
  virtual void lost(const std::string& reason) = 0;
};

class Reconnector {
 public:
  // Between two attempts to dial.
  static constexpr Nanos kRetryFirst = kNanosPerSecond / 4;
  static constexpr Nanos kRetryMost = 4 * kNanosPerSecond;
  // While the link waits for another connection.
  static constexpr Nanos kRetryMostHeld = kNanosPerSecond / 2;
  // A connection that is silent for so long may be broken: another one is tried beside it.
  static constexpr Nanos kSilentMax = 2 * kNanosPerSecond;
  // Where nobody listens for so long the other end is gone, and the link with it.
  static constexpr Nanos kAbsentMax = 2 * kNanosPerSecond;
  // For a place that is not the last: behind it lies one where the other end surely is.
  static constexpr Nanos kTryMax = 2 * kNanosPerSecond;
  // The link and those that have not said who they are.
  static constexpr std::size_t kCallersMax = 32;

  // Listens at once, at the first place at least, or throws. `own` names this end.
  Reconnector(const LinkAddress& place, Hello own, ReconnectorOwner& owner, const Lab& lab,
              Nanos patience);
  ~Reconnector();
  Reconnector(const Reconnector&) = delete;
  Reconnector& operator=(const Reconnector&) = delete;

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
  // Where is dialled now, and for how long.
  [[nodiscard]] const Endpoint& there() const;
  [[nodiscard]] Nanos dial_max() const;
  [[nodiscard]] bool is_last() const { return at_ == place_.others.size(); }
  // Whether a connection is to be made, or another one.
  [[nodiscard]] bool dials() const;
  // Who took our call, and does not say who it is in time.
  [[nodiscard]] bool is_mute(Caller& caller, Nanos now) const;
  // Notes when the link's connection breaks, and when another goes on in its place.
  void watch(Nanos now);
  void make_room();
  void dial(Nanos now);
  void add_caller(UniqueFd fd);
  [[nodiscard]] Hello hello();
  void greeted(Caller& caller, const Hello& hello);
  [[nodiscard]] bool is_of_link(const Caller& caller, const Hello& hello);
  [[nodiscard]] bool gives_way(const Hello& hello, Nanos now) const;
  void welcomed();
  void note_place();
  void lose(const std::string& reason);
  void send_away(Caller& caller, const std::string& reason);
  void release();
  bool attend(Caller& caller, Nanos now);
  static void give_out(Caller& caller, Nanos now);
  void resume(Caller& caller, Nanos now);
  void ended(Caller& caller, const std::string& reason, bool refused, Nanos now);
  void fail(const std::string& reason, Nanos now);
  void note_absent(const std::string& reason, Nanos now);
  std::string who_holds(Nanos now) const;
  [[nodiscard]] std::uint64_t sent_bytes() const;
  [[nodiscard]] std::uint64_t received_bytes() const;

  const LinkAddress place_;
  const Hello own_;
  ReconnectorOwner& owner_;
  const Lab& lab_;
  const Nanos patience_;
  std::vector<UniqueFd> listeners_;
  UniqueFd dialing_;
  std::size_t at_ = 0;  // of the places, the first of which is the best
  std::string met_at_;  // the link's
  std::string detour_;  // why that is not the first
  Nanos dial_at_ = 0;
  Nanos dialed_at_ = 0;
  Nanos retry_ = kRetryFirst;
  std::optional<Nanos> absent_since_;  // nobody listens anywhere
  std::list<Caller> callers_;
  Caller* holder_ = nullptr;  // of the callers
  std::minstd_rand random_{std::random_device{}()};
  Hello other_;
  std::string other_place_;
  Nanos linked_since_ = 0;
  std::optional<Nanos> broken_since_;  // its connection is, or is silent
  std::string broken_why_;
  bool has_resumed_ = false;           // since then
  std::uint64_t reconnects_ = 0;
  Nanos pause_ = 0;  // the latest one's
  std::string reason_;
  bool refused_ = false;
  std::uint64_t sent_before_ = 0;
  std::uint64_t received_before_ = 0;
  Shares shares_before_{};
};

}  // namespace dllm::link
