#include "tensor.h"

#include <algorithm>
#include <array>

namespace dllm {

namespace {

// Ascending. GGML_QUANT_SIZES of the gguf package, which a test compares, and what came since.
constexpr auto kTypes = std::to_array<TensorType>({
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},
    {3, "Q4_1", 32, 20},      {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},
    {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 40},      {10, "Q2_K", 256, 84},
    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66},
    {17, "IQ2_XS", 256, 74},  {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},
    {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},  {22, "IQ2_S", 256, 82},
    {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},
    {29, "IQ1_M", 256, 56},   {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},
    {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},    {40, "NVFP4", 64, 36},
    {41, "Q1_0", 128, 18},    {42, "Q2_0", 64, 18},
});

}  // namespace

const TensorType* tensor_type(std::uint32_t id) {
  const auto found = std::ranges::lower_bound(kTypes, id, {}, &TensorType::id);
  return found == kTypes.end() || found->id != id ? nullptr : &*found;
}

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
