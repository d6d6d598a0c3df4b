#include "size_guesses.h"

#include <cstring>

#include "protocol/tensor.h"

namespace dllm {

namespace {

constexpr std::size_t kTensors = 11;  // the one asked about and its sources
// llama.cpp warms up with two tokens, and a cache that holds few is read up to here.
constexpr std::uint32_t kWarmUpTokens = 2;
constexpr std::uint32_t kFewCells = 256;

enum LinkAddress : std::size_t { kResult, kFirst, kSecond, kThird, kMask };

Tensor at(View tensors, std::size_t place) {
  return Tensor(tensors.data() + place * kTensorBytes);
}

bool is_absent(Tensor tensor) {
  return tensor.ne(0) == 0;
}

bool is_matrix(Tensor tensor) {
  return tensor.ne(0) > 0 && tensor.ne(1) > 0 && tensor.ne(2) == 1 && tensor.ne(3) == 1;
}

// A dimension of one of the tensors gets another extent; strides behind it shrink with it.
void resize(std::string& tensors, std::size_t place, int dimension, std::uint32_t extent) {
  auto* tensor = reinterpret_cast<std::uint8_t*>(tensors.data()) + place * kTensorBytes;
  const Tensor before(tensor);
  const std::uint32_t old = before.ne(dimension);
  const std::uint64_t slice = std::uint64_t{before.nb(dimension)} * old;
  std::uint32_t strides[Tensor::kDims];
  for (int i = 0; i < Tensor::kDims; ++i) {
    const std::uint32_t stride = before.nb(i);
    const bool is_behind = slice > 0 && stride >= slice && stride % slice == 0;
    strides[i] = is_behind ? static_cast<std::uint32_t>(stride / old * extent) : stride;
  }
  auto* shape = tensor + Tensor::kShapeAt;
  std::memcpy(shape + sizeof extent * static_cast<std::size_t>(dimension), &extent, sizeof extent);
  std::memcpy(shape + Tensor::kDims * sizeof extent, strides, sizeof strides);
}

// The product of a weight and a column for each token.
bool is_product(View tensors) {
  const Tensor result = at(tensors, kResult), weight = at(tensors, kFirst),
               input = at(tensors, kSecond);
  return is_matrix(result) && is_matrix(weight) && is_matrix(input) &&
         is_absent(at(tensors, kThird)) && weight.ne(0) == input.ne(0) &&
         result.ne(0) == weight.ne(1) && result.ne(1) == input.ne(1);
}

std::string product_of(View tensors, std::uint32_t tokens) {
  std::string made(tensors.begin(), tensors.end());
  resize(made, kResult, 1, tokens);
  resize(made, kSecond, 1, tokens);
  return made;
}

// Queries of each token, keys, values and, over both, a mask.
bool is_attention(View tensors) {
  const Tensor result = at(tensors, kResult), queries = at(tensors, kFirst),
               keys = at(tensors, kSecond), values = at(tensors, kThird),
               mask = at(tensors, kMask);
  const std::uint32_t tokens = queries.ne(1), cells = keys.ne(1);
  return result.ne(2) == tokens && result.ne(1) == queries.ne(2) && queries.ne(3) == 1 &&
         keys.ne(0) == queries.ne(0) && values.ne(1) == cells && keys.ne(3) == 1 &&
         is_matrix(mask) && mask.ne(0) == cells && mask.ne(1) == tokens;
}

std::string attention_of(View tensors, std::uint32_t tokens, std::uint32_t cells) {
  std::string made(tensors.begin(), tensors.end());
  resize(made, kResult, 2, tokens);
  resize(made, kFirst, 1, tokens);
  resize(made, kMask, 1, tokens);
  resize(made, kMask, 0, cells);
  // The cache stays as it is: less of it is read.
  for (const std::size_t cache : {kSecond, kThird}) {
    std::memcpy(made.data() + cache * kTensorBytes + Tensor::kShapeAt + sizeof cells, &cells,
                sizeof cells);
  }
  return made;
}

}  // namespace

std::vector<std::string> size_guesses(View fields) {
  const std::size_t device = fields.size() % kTensorBytes;
  const View tensors = fields.subspan(device);
  if (tensors.size() != kTensors * kTensorBytes) return {};
  std::vector<std::string> guesses;
  if (is_product(tensors) && at(tensors, kResult).ne(1) > kWarmUpTokens) {
    guesses = {product_of(tensors, 1), product_of(tensors, kWarmUpTokens)};
  } else if (is_attention(tensors) && at(tensors, kFirst).ne(1) > kWarmUpTokens) {
    const std::uint32_t cells = at(tensors, kSecond).ne(1), few = std::min(cells, kFewCells);
    guesses = {attention_of(tensors, 1, cells), attention_of(tensors, kWarmUpTokens, few)};
    if (few < cells) guesses.push_back(attention_of(tensors, 1, few));
  }
  const View before = fields.first(device);
  const std::string which(before.begin(), before.end());
  for (std::string& guess : guesses) guess.insert(0, which);
  return guesses;
}

}  // namespace dllm
