// Whose bytes they are: of a stream that is made of what many commands said.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

#include "protocol/commands.h"

namespace dllm {

// Bytes of each command.
using Shares = std::array<std::uint64_t, kCommands>;

inline Shares& operator+=(Shares& sums, const Shares& more) {
  for (std::size_t id = 0; id < kCommands; ++id) sums[id] += more[id];
  return sums;
}

// A stream as runs of bytes of one command each, first in, first out.
class Runs {
 public:
  // An id that is no command's: they belong to none.
  void append(std::uint8_t id, std::uint64_t bytes) {
    if (bytes == 0) return;
    if (runs_.empty() || runs_.back().first != id) runs_.emplace_back(id, 0);
    runs_.back().second += bytes;
  }
  // So many leave at the front, and are counted.
  void take(std::uint64_t bytes, Shares& shares) {
    while (bytes > 0 && !runs_.empty()) {
      auto& [id, left] = runs_.front();
      const std::uint64_t part = std::min(bytes, left);
      if (id < kCommands) shares[id] += part;
      bytes -= part;
      left -= part;
      if (left == 0) runs_.pop_front();
    }
  }

 private:
  std::deque<std::pair<std::uint8_t, std::uint64_t>> runs_;
};

}  // namespace dllm
