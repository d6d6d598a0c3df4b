#include "link_connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "sockets.h"

namespace dllm::link {

namespace {

// What the kernel holds unsent, about: pings stand behind it.
[[maybe_unused]] constexpr int kUnsentBytes = 128 << 10;

constexpr const char* kHungUp =
    "the other end hung up before it was known: has it the same key, or none?";

void hold_little(int fd) {
#ifdef TCP_NOTSENT_LOWAT
  ::setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kUnsentBytes, sizeof kUnsentBytes);
#else
  static_cast<void>(fd);
#endif
}

[[noreturn]] void broke_off(int error) {
  throw LinkBroken("the connection broke off: " + std::string(std::strerror(error)));
}

}  // namespace

LinkConnection::LinkConnection(UniqueFd fd, std::unique_ptr<TransportSecurity> security,
                               const Lab& lab)
    : fd_(std::move(fd)),
      security_(std::move(security)),
      up_(lab, 0),
      down_(lab, 1),
      block_(kBlockBytes) {
  hold_little(fd_.get());
  security_->begin(sealed_);
}

short LinkConnection::events() {
  const bool reads = down_.is_idle() || down_.has_room(kBlockBytes);
  return static_cast<short>((reads ? POLLIN : 0) | (departing_.empty() ? 0 : POLLOUT));
}

Nanos LinkConnection::due(Nanos now) {
  Nanos first = kNever;
  for (DelayLine* line : {&up_, &down_}) {
    if (!line->empty()) first = std::min({first, line->due(now), now + DelayLine::kLookAgain});
  }
  return first;
}

void LinkConnection::read(ByteQueue& opened, Nanos now) {
  try {
    if (events() & POLLIN) receive_some(opened, now);
    while (!down_.empty() && down_.due(now) <= now) {
      security_->open(down_.take(now), opened, sealed_);
    }
  } catch (const LinkBroken&) {
    // What the transport security has to say about it.
    if (!sealed_.empty()) send_some(fd_.get(), sealed_.all());
    throw;
  }
}

void LinkConnection::receive_some(ByteQueue& opened, Nanos now) {
  const ssize_t count = receive(fd_.get(), block_);
  if (count == 0) throw LinkBroken(is_ready() ? "the other end is gone" : kHungUp);
  if (count < 0 && errno != EAGAIN) broke_off(errno);
  if (count <= 0) return;
  received_bytes_ += static_cast<std::uint64_t>(count);
  take_in(Bytes(block_).first(static_cast<std::size_t>(count)), opened, now);
}

void LinkConnection::take_in(Bytes bytes, ByteQueue& opened, Nanos now) {
  if (down_.is_idle()) return security_->open(bytes, opened, sealed_);
  while (!bytes.empty()) {
    const Bytes step = bytes.first(std::min(bytes.size(), DelayLine::kStepBytes));
    down_.push(step, now, down_.empty());
    bytes = bytes.subspan(step.size());
  }
}

void LinkConnection::write(ByteQueue& plain, Nanos now) {
  if (security_->is_ready() && !plain.empty()) security_->close(plain, sealed_);
  depart(now);
  while (!departing_.empty()) {
    const ssize_t count = send_some(fd_.get(), departing_.all());
    if (count < 0) broke_off(errno);
    if (count == 0) return;
    sent_bytes_ += static_cast<std::uint64_t>(count);
    departing_.drop(static_cast<std::size_t>(count));
  }
}

void LinkConnection::depart(Nanos now) {
  if (up_.is_idle()) {
    if (departing_.empty()) return departing_.swap(sealed_);
    departing_.append(sealed_.all());
    return sealed_.clear();
  }
  while (!sealed_.empty() && up_.has_room(DelayLine::kStepBytes)) {
    const Bytes all = sealed_.all();
    const Bytes step = all.first(std::min(all.size(), DelayLine::kStepBytes));
    up_.push(step, now, up_.empty());
    sealed_.drop(step.size());
  }
  while (!up_.empty() && up_.due(now) <= now) departing_.append(up_.take(now));
}

}  // namespace dllm::link
