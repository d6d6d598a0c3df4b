// Hashes of tensors: FNV-1a, by which llama.cpp asks a worker's cache, XXH64, which is as quick as
// memory and by which chunks are told apart, and BLAKE3 of the whole: it alone withstands an attacker.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "blake3.h"
#include "model_files.h"

namespace dllm::weights {

using Bytes = std::span<const std::uint8_t>;

// FNV-1a with 64 bits; bytes may come in pieces.
class Fnv1a64 {
 public:
  Fnv1a64() = default;
  // Goes on where another stopped.
  explicit Fnv1a64(std::uint64_t value) : value_(value) {}

  void add(Bytes bytes) {
    std::uint64_t value = value_;
    for (const std::uint8_t byte : bytes) value = (value ^ byte) * kPrime;
    value_ = value;
  }
  [[nodiscard]] std::uint64_t value() const { return value_; }

 private:
  static constexpr std::uint64_t kPrime = 0x100000001b3;
  std::uint64_t value_ = 0xcbf29ce484222325;
};

// XXH64 with seed 0; bytes may come in pieces.
class Xxh64 {
 public:
  static constexpr std::size_t kStripeBytes = 32;
  using Lanes = std::array<std::uint64_t, 4>;

  Xxh64() = default;
  // Goes on where another stopped, after a number of bytes that is a multiple of a stripe.
  Xxh64(const Lanes& lanes, std::uint64_t size_bytes) : lanes_(lanes), size_bytes_(size_bytes) {}

  void add(Bytes bytes);
  [[nodiscard]] std::uint64_t value() const;
  [[nodiscard]] const Lanes& lanes() const { return lanes_; }

 private:
  void take_stripe(const std::uint8_t* stripe);
  [[nodiscard]] std::uint64_t merged() const;

  Lanes lanes_ = {0x60ea27eeadc0b5d6, 0xc2b2ae3d27d4eb4f, 0, 0x61c8864e7a143579};
  std::array<std::uint8_t, kStripeBytes> held_{};
  std::size_t held_bytes_ = 0;
  std::uint64_t size_bytes_ = 0;
};

// Of bytes in one piece.
std::uint64_t xxh64(Bytes bytes);

}  // namespace dllm::weights

namespace dllm::agent {

class Sha256 {
 public:
  void add(std::string_view data);

  // 64 hex digits; nothing may be added afterwards.
  std::string hex();

 private:
  void take_block(const unsigned char* block);

  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<unsigned char, 64> block_{};
  std::size_t held_ = 0;  // bytes in block_
  std::uint64_t size_bytes_ = 0;
};

}  // namespace dllm::agent

namespace dllm::weights {

// Tensors are compared, asked for and held in pieces of this size; the last one may be smaller.
inline constexpr std::size_t kChunkBytes = 1U << 20;
static_assert(kChunkBytes % Xxh64::kStripeBytes == 0, "hashes go on at the border of a chunk");

inline std::uint64_t chunks_in(std::uint64_t size_bytes) {
  return size_bytes / kChunkBytes + (size_bytes % kChunkBytes != 0 ? 1 : 0);
}

// Of a chunk: XXH64, or BLAKE3.
using ChunkHash = std::variant<std::uint64_t, Blake3Hash>;
bool has_hash(Bytes bytes, const ChunkHash& hash);

struct TensorSums {
  std::uint64_t fnv1a = 0;
  std::uint64_t xxh64 = 0;
  Blake3Hash blake3{};
  std::vector<std::uint64_t> chunks;  // XXH64 of each

  bool operator==(const TensorSums&) const = default;
};

// A tensor of which some chunks are hashed.
struct HalfTensor {
  std::uint64_t fnv1a = Fnv1a64().value();
  Xxh64::Lanes lanes = Xxh64().lanes();
  std::vector<std::uint64_t> chunks;
  std::vector<Blake3Node> nodes;  // of the same chunks
};

// What is known so far of the tensors, in the order of ModelFiles::tensors.
struct TableSoFar {
  std::vector<TensorSums> whole;
  HalfTensor half;
};

// Reads a model once, a chunk at a time, and may go on where another stopped.
class TableBuilder {
 public:
  explicit TableBuilder(const ModelFiles& files, TableSoFar so_far = {});

  // Hashes the next chunk. Returns whether there is more to do. Throws ModelError where the file
  // ends too early.
  bool step();

  [[nodiscard]] bool done() const { return so_far_.whole.size() == files_.tensors().size(); }
  [[nodiscard]] std::uint64_t done_bytes() const { return done_bytes_; }
  [[nodiscard]] const TableSoFar& so_far() const { return so_far_; }

 private:
  void end_tensor();

  const ModelFiles& files_;
  TableSoFar so_far_;
  Fnv1a64 fnv1a_;
  Xxh64 xxh64_;
  std::uint64_t done_bytes_ = 0;
  std::vector<std::uint8_t> block_;
};

}  // namespace dllm::weights
