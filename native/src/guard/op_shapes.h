// Whether the tensors of an op suit it, in shape and type.
#pragma once

#include <array>
#include <cstdint>

#include "protocol/tensor.h"

namespace dllm {

struct Shape {
  explicit Shape(Tensor tensor);

  std::uint32_t type;
  std::array<std::uint32_t, Tensor::kDims> ne, nb;
};

// Null where there is none.
using Sources = std::array<const Shape*, Tensor::kSources>;

// What ggml itself asks for when a client makes the op (`ggml_mul_mat` and its like), in every
// version with so many ops, 4.0.3 to 8.0.0, and what its CPU code takes for granted: a worker does
// not ask, and aborts or reads beside a tensor. `made` is known by its op number and has the sources
// that op needs. Ops of training suit nothing. The numbers in the tensors are not checked.
bool fits(Tensor made, const Sources& from);

}  // namespace dllm
