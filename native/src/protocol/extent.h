// How many bytes a tensor takes, counted as ggml counts them.
#pragma once

#include <cstdint>
#include <optional>

#include "tensor.h"

namespace dllm {

// Whether each element (or block) of a row has its bytes to itself. An op reads and writes elements
// of the type's size whatever `nb[0]` says; in a tensor without this it leaves the extent. Rows may
// overlap: an op follows their strides, and `-sm tensor` sends strides of 0.
bool has_whole_elements(Tensor tensor);
// ggml_nbytes: from the first to behind the last byte, 0 when it has no elements. None when
// that is more than 64 bits hold.
std::optional<std::uint64_t> extent(Tensor tensor);

// `sum += more`; false when it wraps around.
inline bool adds_up(std::uint64_t& sum, std::uint64_t more) {
  sum += more;
  return sum >= more;
}

}  // namespace dllm
