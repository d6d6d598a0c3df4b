// How ggml stores the numbers of a tensor, by its type.
#pragma once

#include <cstdint>

namespace dllm {

// So many numbers share so many bytes.
struct TensorType {
  std::uint32_t id;
  const char* name;
  std::uint32_t block;
  std::uint32_t block_bytes;
};

// Null for a type we do not know.
const TensorType* tensor_type(std::uint32_t id);

}  // namespace dllm
