// Bytes of a session and messages that have their place among them, first in, first out.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "byte_queue.h"

namespace dllm::link {

class MessageQueue {
 public:
  using Message = std::vector<std::uint8_t>;

  void append(View bytes);
  void append_message(View message);

  // The next bytes, up to the next message; valid until the next change.
  [[nodiscard]] Bytes bytes();
  void drop(std::size_t count);
  // Whether a message comes next.
  [[nodiscard]] bool message_is_next() const;
  Message take_message();

  // Beside messages.
  [[nodiscard]] std::size_t size() const { return bytes_.size(); }
  [[nodiscard]] std::size_t messages() const { return messages_.size(); }
  [[nodiscard]] bool empty() const { return bytes_.empty() && messages_.empty(); }
  void clear();

 private:
  ByteQueue bytes_;
  std::deque<std::pair<std::uint64_t, Message>> messages_;  // each behind so many bytes
  std::uint64_t dropped_ = 0;                               // bytes, of all
};

}  // namespace dllm::link
