#include "live_link.h"

#include <poll.h>

#include <algorithm>

#include "link.h"

namespace dllm::link {

namespace {

// Of what was asked for and not taken; an end that only asks is no longer listened to.
constexpr std::size_t kUntakenMax = 8 << 20;
// What came while there were other things to do is read all the same, up to here.
constexpr std::size_t kUntakenMost = 2 * kUntakenMax;

}  // namespace

LiveLink::LiveLink(UniqueFd fd, std::unique_ptr<TransportSecurity> security, const Hello& own,
                   LinkOwner& owner, const Lab& lab, Nanos patience)
    : wire_(std::move(fd), std::move(security), lab),
      end_(own, owner, monotonic_now(), patience),
      lab_(lab),
      patience_(patience),
      begun_(monotonic_now()) {}

short LiveLink::events() {
  const short events = wire_.events();
  return untaken() < kUntakenMax ? events : static_cast<short>(events & ~POLLIN);
}

std::size_t LiveLink::untaken() const {
  return wire_.backlog() + end_.waiting();
}

Nanos LiveLink::due(Nanos now) {
  return std::min(wire_.due(now), std::max(end_.next_tick(), now));
}

void LiveLink::take_in(Nanos now) {
  wire_.read(opened_, now);
  if (!opened_.empty()) end_.received(opened_, now);
  if (untaken() > kUntakenMost) throw LinkBroken("the other end asks and takes no answer");
  const Nanos delayed = pretended(lab_.get());
  end_.set_patience(patience_ + delayed);
  end_.tick(now);
  if (!end_.is_up() && now - begun_ > kGreetingMax + delayed) {
    throw LinkBroken("the other end does not say who it is");
  }
  const Nanos borne = std::max(patience_, end_.patience()) + delayed;
  if (end_.silence(now) < borne) return;
  const std::string seconds = std::to_string(patience_ / kNanosPerSecond);
  throw LinkBroken("its machine has not been heard for " + seconds + " s");
}

void LiveLink::give_out(Nanos now) {
  wire_.write(end_.out(), now);
  if (end_.waiting() == 0) departures_.sealed(wire_.sealed_bytes());
  departures_.left(wire_.sent_bytes());
}

std::size_t LiveLink::room(std::uint32_t session) const {
  return has_room() ? end_.credit(session) : 0;
}

}  // namespace dllm::link
