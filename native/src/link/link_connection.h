// The connection a link goes over: sockets, transport security and the lab's delay, without
// blocking. The lab is below that security, so it shapes what really crosses.
#pragma once

#include <memory>

#include "netem/delay_line.h"
#include "posix.h"
#include "transport_security.h"

namespace dllm::link {

inline constexpr Nanos kNever = INT64_MAX;

class LinkConnection {
 public:
  static constexpr std::size_t kBlockBytes = 128 << 10;

  // `fd` is connected and does not block. The lab delays both directions, at this end.
  LinkConnection(UniqueFd fd, std::unique_ptr<TransportSecurity> security, const Lab& lab);

  [[nodiscard]] int fd() const { return fd_.get(); }
  // What to poll for.
  [[nodiscard]] short events();
  // When something under way in the lab arrives; kNever: nothing is.
  [[nodiscard]] Nanos due(Nanos now);
  // Appends what came. Throws LinkBroken when the other end is gone or not who it should be.
  void read(ByteQueue& opened, Nanos now);
  // Takes `plain` as soon as the transport security is ready, and sends what can be sent now.
  void write(ByteQueue& plain, Nanos now);
  // Sealed and not yet sent.
  [[nodiscard]] std::size_t backlog() const { return sealed_.size() + departing_.size(); }
  // Since the link began, sent or not.
  [[nodiscard]] std::uint64_t sealed_bytes() const {
    return sent_bytes_ + backlog() + up_.under_way_bytes();
  }
  [[nodiscard]] bool is_ready() const { return security_->is_ready(); }
  // Over the real connection, all of it.
  [[nodiscard]] std::uint64_t sent_bytes() const { return sent_bytes_; }
  [[nodiscard]] std::uint64_t received_bytes() const { return received_bytes_; }

 private:
  void receive_some(ByteQueue& opened, Nanos now);
  void take_in(Bytes bytes, ByteQueue& opened, Nanos now);
  void depart(Nanos now);

  const UniqueFd fd_;
  const std::unique_ptr<TransportSecurity> security_;
  DelayLine up_;
  DelayLine down_;
  ByteQueue sealed_;
  ByteQueue departing_;  // the lab has let it go
  std::uint64_t sent_bytes_ = 0;
  std::uint64_t received_bytes_ = 0;
  std::vector<std::uint8_t> block_;
};

}  // namespace dllm::link
