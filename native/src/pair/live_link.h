// A link over its connection: what both ends do with one in their loops.
#pragma once

#include "departures.h"
#include "link_end.h"
#include "relay/kernel.h"
#include "wire.h"

namespace dllm::pair {

class LiveLink {
 public:
  // An end that has not said who it is by then is none.
  static constexpr Nanos kGreetingMax = 10 * kNanosPerSecond;
  // Beyond, sessions wait, so that pings do not.
  static constexpr std::size_t kBacklogMax = 256 << 10;

  LiveLink(UniqueFd fd, std::unique_ptr<Seal> seal, const Hello& own, LinkOwner& owner,
           const Lab& lab, Nanos patience);

  [[nodiscard]] LinkEnd& end() { return end_; }
  [[nodiscard]] const Wire& wire() const { return wire_; }
  [[nodiscard]] int fd() const { return wire_.fd(); }
  [[nodiscard]] short events();
  // When `take_in` is due though nothing came.
  [[nodiscard]] Nanos due(Nanos now);

  // Takes in what came, tells the owner, and judges silence. Throws LinkBroken.
  void take_in(Nanos now);
  // Sends what the end has to say. Throws LinkBroken.
  void give_out(Nanos now);
  // Whoever gives the end something of a command to send adds it here.
  Shares& given() { return departures_.given(); }
  // What has left of commands; all else that has is the link's own.
  [[nodiscard]] const Shares& sent() const { return departures_.gone(); }
  // How long nothing has come, or nothing of what was sent has arrived: the way is then of no use.
  [[nodiscard]] Nanos idle(Nanos now) const { return std::max(end_.silence(now), stuck_); }
  // Whether only what is small gets through, one way or the other. Of a link that is idle.
  [[nodiscard]] bool loses_large(Nanos now) const;
  // Bytes that may be sent in a session now.
  [[nodiscard]] std::size_t room(std::uint32_t session) const;
  // Whether more that needs no credit may be sent without pings standing behind it.
  [[nodiscard]] bool has_room() const { return untaken() < kBacklogMax; }

 private:
  [[nodiscard]] std::size_t untaken() const;
  void look_whether_stuck(Nanos now);
  [[nodiscard]] std::string why_idle(Nanos now) const;

  Wire wire_;
  LinkEnd end_;
  Departures departures_;
  const Lab& lab_;
  const Nanos patience_;
  const Nanos begun_;
  Standstill standstill_;
  Nanos looked_ = 0;  // at that
  Nanos stuck_ = 0;   // so long, with the other end heard meanwhile
  Queue opened_;
};

}  // namespace dllm::pair
