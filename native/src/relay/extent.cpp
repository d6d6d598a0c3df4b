#include "extent.h"

#include <array>

namespace dllm {

namespace {

// Elements to a block and, where that is one, bytes to an element. No elements: not a type.
struct Block {
  std::uint16_t elements;
  std::uint16_t element_bytes;
};
constexpr Block kNone{0, 0};
constexpr Block kSuper{256, 0};
// By number, up to the 43 of protocol 8.0.0.
constexpr std::array<Block, 43> kBlocks{{
    {1, 4},  {1, 2},  {32, 0},                            // F32, F16, Q4_0
    {32, 0}, kNone,   kNone,                              // Q4_1
    {32, 0}, {32, 0}, {32, 0},  {32, 0},                  // Q5_0, Q5_1, Q8_0, Q8_1
    kSuper,  kSuper,  kSuper,   kSuper,  kSuper, kSuper,  // Q2_K to Q8_K
    kSuper,  kSuper,  kSuper,   kSuper,                   // IQ2_XXS, IQ2_XS, IQ3_XXS, IQ1_S
    {32, 0}, kSuper,  kSuper,   kSuper,                   // IQ4_NL, IQ3_S, IQ2_S, IQ4_XS
    {1, 1},  {1, 2},  {1, 4},   {1, 8},  {1, 8},          // I8, I16, I32, I64, F64
    kSuper,  {1, 2},  kNone,    kNone,   kNone,           // IQ1_M, BF16
    kSuper,  kSuper,  kNone,    kNone,   kNone,           // TQ1_0, TQ2_0
    {32, 0}, {64, 0}, {128, 0}, {64, 0},                  // MXFP4, NVFP4, Q1_0, Q2_0
}};

bool has_elements(Tensor tensor) {
  for (int i = 0; i < Tensor::kDims; ++i) {
    if (tensor.ne(i) == 0) return false;
  }
  return true;
}

// Bytes of the first row.
std::optional<std::uint64_t> row_bytes(Tensor tensor) {
  const std::uint64_t elements = tensor.ne(0), stride = tensor.nb(0);
  if (!is_measured(tensor.type())) return 1;
  const Block block = kBlocks[tensor.type()];
  if (block.elements > 1) return elements * stride / block.elements;
  std::uint64_t bytes = block.element_bytes;
  if (!adds_up(bytes, (elements - 1) * stride)) return std::nullopt;
  return bytes;
}

}  // namespace

bool is_measured(std::uint32_t type) {
  return type < kBlocks.size();
}

bool is_type(std::uint32_t type) {
  return type < kTypesMax && (!is_measured(type) || kBlocks[type].elements > 0);
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
