#include "live_link.h"

#include <poll.h>
#include <sys/socket.h>

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
    : connection_(std::make_unique<LinkConnection>(std::move(fd), std::move(security), lab)),
      end_(own, owner, monotonic_now(), patience),
      lab_(lab),
      patience_(patience),
      begun_(monotonic_now()) {}

short LiveLink::events() {
  if (!connection_) return 0;
  const short events = connection_->events();
  return untaken() < kUntakenMax ? events : static_cast<short>(events & ~POLLIN);
}

std::size_t LiveLink::untaken() const {
  return end_.waiting() + (connection_ ? connection_->backlog() : 0);
}

std::uint64_t LiveLink::sent_bytes() const {
  return sent_before_ + (connection_ ? connection_->sent_bytes() : 0);
}

std::uint64_t LiveLink::received_bytes() const {
  return received_before_ + (connection_ ? connection_->received_bytes() : 0);
}

Nanos LiveLink::due(Nanos now) {
  if (resumed_) return now;
  const Nanos tick = std::max(end_.next_tick(), now);
  return connection_ ? std::min(connection_->due(now), tick) : tick;
}

void LiveLink::detach(const std::string& reason) {
  broken_ = reason;
  sent_before_ = sent_bytes();
  received_before_ = received_bytes();
  connection_.reset();
  opened_.clear();
  departures_.return_waiting();
  end_.detach();
}

void LiveLink::resume(LiveLink& other) {
  detach("");
  connection_ = std::move(other.connection_);
  opened_.swap(other.opened_);
  end_.resume(other.end_.out());
  resumed_ = true;
}

void LiveLink::take_in(Nanos now) {
  resumed_ = false;
  std::string broken;
  try {
    if (connection_) connection_->read(opened_, now);
  } catch (const LinkBroken& error) {
    if (!end_.may_resume()) throw;
    broken = error.what();
  }
  // What came before it broke, a farewell for example.
  if (!opened_.empty()) end_.received(opened_, now);
  if (!broken.empty()) detach(broken);
  judge(now);
}

void LiveLink::judge(Nanos now) {
  if (untaken() > kUntakenMost || end_.unacked() > kUntakenMost) {
    throw LinkBroken("the other end asks and takes no answer");
  }
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
  if (!connection_) return;
  try {
    connection_->write(end_.out(), now);
  } catch (const LinkBroken& error) {
    if (!end_.may_resume()) throw;
    // What came before is still to be read, and reading tells the same.
    ::shutdown(connection_->fd(), SHUT_RDWR);
    return;
  }
  if (end_.flows() && end_.waiting() == 0) departures_.sealed(connection_->sealed_bytes());
  departures_.left(connection_->sent_bytes());
}

std::size_t LiveLink::room(std::uint32_t session) const {
  return has_room() ? end_.credit(session) : 0;
}

}  // namespace dllm::link
