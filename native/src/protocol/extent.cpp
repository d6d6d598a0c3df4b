#include "extent.h"

#include "tensor_types.h"

namespace dllm {

namespace {

bool has_elements(Tensor tensor) {
  for (int i = 0; i < Tensor::kDims; ++i) {
    if (tensor.ne(i) == 0) return false;
  }
  return true;
}

// Bytes of the first row.
std::optional<std::uint64_t> row_bytes(Tensor tensor) {
  const std::uint64_t elements = tensor.ne(0), stride = tensor.nb(0);
  const TensorType* type = tensor_type(tensor.type());
  if (!type) return 1;
  if (type->block > 1) return elements * stride / type->block;
  std::uint64_t bytes = type->block_bytes;
  if (!adds_up(bytes, (elements - 1) * stride)) return std::nullopt;
  return bytes;
}

}  // namespace

bool has_whole_elements(Tensor tensor) {
  const TensorType* type = tensor_type(tensor.type());
  if (!type || !has_elements(tensor)) return true;
  const bool is_single = type->block == 1 && tensor.ne(0) == 1;
  return tensor.ne(0) % type->block == 0 && (is_single || tensor.nb(0) >= type->block_bytes);
}

std::optional<std::uint64_t> extent(Tensor tensor) {
  if (!has_elements(tensor)) return 0;
  std::optional<std::uint64_t> bytes = row_bytes(tensor);
  for (int i = 1; bytes && i < Tensor::kDims; ++i) {
    const std::uint64_t steps = tensor.ne(i) - 1;
    if (!adds_up(*bytes, steps * tensor.nb(i))) bytes.reset();
  }
  return bytes;
}

}  // namespace dllm
