// A connection on this machine, without blocking: to llama-server at one end of a link, to the
// rpc-server at the other.
#pragma once

#include "byte_queue.h"
#include "clock.h"
#include "posix.h"

namespace dllm::link {

class LocalSocket {
 public:
  explicit LocalSocket(UniqueFd fd) : fd_(std::move(fd)) {}

  [[nodiscard]] int fd() const { return fd_.get(); }
  // Bytes read now: 0 when there are none. At the end or after an error `ended` holds.
  std::size_t read(Bytes block, Nanos awake = 0);
  // It sends no more.
  [[nodiscard]] bool ended() const { return ended_; }
  // It broke off, in either direction.
  [[nodiscard]] bool broken() const { return broken_; }

  // Goes out as fast as it is taken; of a broken one nowhere.
  void send(View bytes);
  void flush();
  // Not yet taken.
  [[nodiscard]] std::size_t waiting() const { return out_.size(); }
  // No more is sent; told once all of it is taken.
  void finish();
  // What was not taken is forgotten, and no more is sent.
  void finish_now();
  // Closing tells of an accident.
  void reset();

 private:
  void tell_finished();

  const UniqueFd fd_;
  ByteQueue out_;
  bool ended_ = false;
  bool broken_ = false;
  bool finishing_ = false;
  bool finished_ = false;
};

}  // namespace dllm::link
