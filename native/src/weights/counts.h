// What became of the weights of a link, as each of its ends sees it.
#pragma once

#include <cstdint>

namespace dllm::weights {

// Of all sessions of a link.
struct WeightCounts {
  std::uint64_t tensors = 0;          // weights, by reference or not
  std::uint64_t tensors_differ = 0;   // of these: in a file of the worker's, but not all its bytes
  std::uint64_t tensors_missing = 0;  // of these: in no file of the worker's
  std::uint64_t home_bytes = 0;       // came from the worker's own files
  std::uint64_t needed_bytes = 0;     // had to cross

  bool operator==(const WeightCounts&) const = default;
};

}  // namespace dllm::weights
