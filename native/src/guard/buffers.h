// The buffers a worker gave its client, as its own replies tell: what a client may name and reach.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "protocol/tensor.h"

namespace dllm {

// Where a tensor's bytes may lie: [start, end).
struct Region {
  std::uint64_t start = 0;
  std::uint64_t end = 0;
  // Whether so many bytes from `at` on lie inside.
  [[nodiscard]] bool holds(std::uint64_t at, std::uint64_t bytes) const {
    return at >= start && at <= end && bytes <= end - at;
  }
};

// Fed in the order of the stream: with a free when it is asked, with the rest when it is replied.
class Buffers {
 public:
  // A stock client has a few dozen.
  static constexpr std::size_t kMax = 64 << 10;

  void given(std::uint64_t handle, std::uint64_t size);
  void based(std::uint64_t handle, std::uint64_t base);
  void freed(std::uint64_t handle);

  [[nodiscard]] bool has(std::uint64_t handle) const { return all_.contains(handle); }
  // None when the worker gave no such buffer, or has not said where it lies.
  [[nodiscard]] std::optional<Region> region(std::uint64_t handle) const;
  // Size of the largest: nobody can mean to move more at once.
  [[nodiscard]] std::uint64_t largest() const { return largest_; }
  [[nodiscard]] bool full() const { return all_.size() >= kMax; }

 private:
  struct Buffer {
    std::uint64_t size = 0;
    std::optional<std::uint64_t> base;
  };

  std::map<std::uint64_t, Buffer> all_;
  std::uint64_t largest_ = 0;
};

}  // namespace dllm
