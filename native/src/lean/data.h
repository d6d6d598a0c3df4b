// The data of masks, positions and indices: counts up and down, repetitions, and bytes as they are.
#pragma once

#include "bytes.h"

namespace dllm::lean {

// Bytes of the numbers that data of this tensor type are made of; 0: these are never encoded.
std::size_t unit_bytes(std::uint32_t type);

// Whether data that begin so are worth encoding. Only looks at the first few numbers: hidden states
// and weights differ in each of them, a mask has two, and indices are always worth it.
bool is_worth_encoding(std::uint32_t type, View beginning);

// What is encoded, and with what it may be said.
struct Block {
  View before;  // bytes both ends have, as if they stood in front
  View data;
  std::size_t unit;  // unit_bytes of its type
  std::size_t row;   // bytes of a row of the tensor
};

void write_data(const Block& block, Writer& out);

// Appends exactly `size` bytes to `out`; false: these are not the encoding of so many.
bool read_data(Reader& in, View before, std::size_t unit, std::size_t size, Buffer& out);

}  // namespace dllm::lean
