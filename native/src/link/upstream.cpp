#include "upstream.h"

#include <sys/socket.h>

#include "sockets.h"

namespace dllm {

Upstream::Upstream(Link& link, UniqueFd worker, Deliver deliver)
    : link_(link),
      worker_(std::move(worker)),
      up_pacer_(link.lab, 0, [this](Bytes bytes) { return put(bytes); }),
      down_pacer_(link.lab, 1, [deliver = std::move(deliver)](Bytes bytes) {
        deliver(bytes);
        return true;
      }) {}

bool Upstream::put(Bytes bytes) {
  link_.sending_since = monotonic_now();
  const bool taken = send_all(worker_.get(), bytes);
  link_.sending_since = 0;
  return taken;
}

void Upstream::finish() {
  ::shutdown(worker_.get(), SHUT_WR);
}

bool Upstream::receive(Bytes block) {
  ssize_t count = 0;
  while ((count = dllm::receive(worker_.get(), block)) > 0) {
    down_pacer_.send(block.first(static_cast<std::size_t>(count)));
  }
  return count == 0;
}

void Upstream::cut() {
  ::shutdown(worker_.get(), SHUT_RDWR);
}

bool Upstream::is_gone() const {
  return dllm::is_gone(worker_.get());
}

}  // namespace dllm
