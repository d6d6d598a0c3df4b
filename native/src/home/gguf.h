// The header of a GGUF file: which tensors it holds, and where. Bounded in time and memory,
// whatever the file claims; vocabularies are stepped over.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "source.h"

namespace dllm::home {

inline constexpr std::size_t kDims = 4;
using Shape = std::array<std::uint64_t, kDims>;

// What tells a tensor from others: two with the same may still hold other bytes.
struct TensorKey {
  std::string name;
  std::uint32_t type = 0;  // ggml's number
  Shape shape = {1, 1, 1, 1};
  std::uint64_t size_bytes = 0;

  auto operator<=>(const TensorKey&) const = default;
};

struct TensorPlace {
  TensorKey key;
  std::uint32_t file = 0;    // which of the model's files
  std::uint64_t offset = 0;  // from the beginning of that file
  bool type_known = true;    // otherwise its size reaches to the next tensor, padding included
};

struct Header {
  std::uint32_t part = 0;            // split.no, from 0
  std::uint32_t parts = 1;           // split.count
  std::vector<TensorPlace> tensors;  // by offset
};

// `name` is told in the sentence of a ModelError: no GGUF, cut short, damaged, or beyond limits.
Header read_header(Source& source, const std::string& name);

}  // namespace dllm::home
