#include "local_socket.h"

#include <sys/socket.h>

#include "sockets.h"

namespace dllm::link {

std::size_t LocalSocket::read(Bytes block, Nanos awake) {
  const ssize_t count =
      awake > 0 ? receive_awake(fd_.get(), block, awake) : receive(fd_.get(), block);
  if (count > 0) return static_cast<std::size_t>(count);
  const bool nothing_yet = count < 0 && errno == EAGAIN;
  ended_ = ended_ || !nothing_yet;
  broken_ = broken_ || (count < 0 && !nothing_yet);
  return 0;
}

void LocalSocket::send(View bytes) {
  if (broken_ || finished_) return;
  if (out_.empty()) {
    const ssize_t sent = send_some(fd_.get(), bytes);
    broken_ = sent < 0;
    bytes = bytes.subspan(static_cast<std::size_t>(std::max<ssize_t>(sent, 0)));
  }
  if (!broken_) out_.append(bytes);
}

void LocalSocket::flush() {
  while (!broken_ && !out_.empty()) {
    const ssize_t sent = send_some(fd_.get(), out_.all());
    broken_ = sent < 0;
    if (sent <= 0) break;
    out_.drop(static_cast<std::size_t>(sent));
  }
  if (broken_) out_.clear();
  if (finishing_) tell_finished();
}

void LocalSocket::finish() {
  finishing_ = true;
  tell_finished();
}

void LocalSocket::finish_now() {
  out_.clear();
  finish();
}

void LocalSocket::tell_finished() {
  if (finished_ || !out_.empty()) return;
  finished_ = true;
  ::shutdown(fd_.get(), SHUT_WR);
}

void LocalSocket::reset() {
  reset_on_close(fd_.get());
}

}  // namespace dllm::link
