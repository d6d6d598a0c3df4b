// Buffers of a chunk, used again: a fresh one costs more than what is read into it.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tensor_sums.h"

namespace dllm::weights {

class SpareBuffers {
 public:
  using Buffer = std::vector<std::uint8_t>;
  static constexpr std::size_t kMost = 4;

  // One that was given back, as it was then, or an empty one.
  Buffer take() {
    if (spare_.empty()) return {};
    Buffer buffer = std::move(spare_.back());
    spare_.pop_back();
    return buffer;
  }
  void give(Buffer buffer) {
    if (buffer.capacity() >= kChunkBytes && spare_.size() < kMost) {
      spare_.push_back(std::move(buffer));
    }
  }

 private:
  std::vector<Buffer> spare_;
};

}  // namespace dllm::weights
