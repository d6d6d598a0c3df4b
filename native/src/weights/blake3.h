// BLAKE3 with 256 bits, from its specification: a tree over chunks of 1 KiB, of which several are
// hashed at once. Two files with the same hash have the same bytes, whoever made them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace dllm::weights {

using Blake3Hash = std::array<std::uint8_t, 32>;

// Of bytes in one piece.
Blake3Hash blake3(std::span<const std::uint8_t> bytes);

// What a piece of something longer adds to its hash.
using Blake3Node = Blake3Hash;

// `piece`: not the whole. `at`: how many bytes are before it, a multiple of its size, which is a
// power of two of at least 1 KiB but for the last piece.
Blake3Node blake3_node(std::span<const std::uint8_t> piece, std::uint64_t at);

// The hash of the whole from its two or more pieces, all of one size but for the last.
Blake3Hash blake3_of(std::span<const Blake3Node> pieces);

// 64 hex digits.
std::string hex(const Blake3Hash& hash);

}  // namespace dllm::weights
