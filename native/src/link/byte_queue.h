// Bytes that wait, first in, first out.
#pragma once

#include <cstdint>
#include <vector>

#include "protocol/decoder.h"

namespace dllm::link {

class ByteQueue {
 public:
  void append(View bytes);
  // All that waits; valid until the next change.
  [[nodiscard]] Bytes all() { return Bytes(bytes_).subspan(start_); }
  void drop(std::size_t count) {
    start_ += count;
    if (start_ == bytes_.size()) clear();
  }
  void clear() {
    bytes_.clear();
    start_ = 0;
  }
  [[nodiscard]] std::size_t size() const { return bytes_.size() - start_; }
  [[nodiscard]] bool empty() const { return size() == 0; }
  void swap(ByteQueue& other) noexcept {
    bytes_.swap(other.bytes_);
    std::swap(start_, other.start_);
  }

 private:
  std::vector<std::uint8_t> bytes_;
  std::size_t start_ = 0;
};

}  // namespace dllm::link
