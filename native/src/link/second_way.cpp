#include "second_way.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "link.h"
#include "sockets.h"

namespace dllm::link {

SecondWay::SecondWay(const LinkAddress& place, const Lab& lab, Nanos patience)
    : place_(place), lab_(lab), borne_(std::min(kBorne, patience / 4)) {}

bool SecondWay::condemns(Nanos silence, Nanos now) {
  if (silence < borne_ + pretended(lab_.get())) {
    calm();
    return false;
  }
  if (!is_answered(now)) return false;
  if (!answered_at_) answered_at_ = silence;
  return silence >= 2 * *answered_at_;
}

// The other end says who it is as soon as it is met, and proves that it has the key; we say
// nothing, so that it keeps its link.
bool SecondWay::is_answered(Nanos now) {
  try {
    if (!dialing_ && !wire_) {
      if (now - asked_at_ < kAskEvery) return false;
      asked_at_ = now;
      dialing_ = begin_connect(place_.others.back());
    }
    if (now - asked_at_ > kAnswerMax + pretended(lab_.get())) throw LinkBroken("nobody answers");
    if (!is_connected()) return false;
    Queue nothing;
    wire_->read(heard_, now);
    wire_->write(nothing, now);
    if (!take_hello(heard_, Role::kHead)) return false;
    hang_up();
    return true;
  } catch (const std::exception&) {
    hang_up();
    return false;
  }
}

bool SecondWay::is_connected() {
  if (wire_) return true;
  pollfd question{dialing_.get(), POLLOUT, 0};
  if (::poll(&question, 1, 0) == 0) return false;
  if (const int error = connect_error(dialing_.get())) throw LinkBroken(std::strerror(error));
  wire_ = std::make_unique<Wire>(std::move(dialing_), make_security(place_), lab_);
  return true;
}

void SecondWay::hang_up() {
  dialing_.reset();
  wire_.reset();
  heard_.clear();
}

void SecondWay::calm() {
  hang_up();
  answered_at_.reset();
}

void SecondWay::add_waits(std::vector<pollfd>& waits) const {
  if (dialing_) waits.push_back({dialing_.get(), POLLOUT, 0});
  if (wire_) waits.push_back({wire_->fd(), POLLIN, 0});
}

}  // namespace dllm::link
