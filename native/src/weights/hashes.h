// Hashes of tensors: FNV-1a, by which llama.cpp asks a worker's cache, and BLAKE3 of each chunk, from
// which follows that of the whole.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
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

inline std::uint64_t chunks_in(std::uint64_t size_bytes) {
  return size_bytes / kChunkBytes + (size_bytes % kChunkBytes != 0 ? 1 : 0);
}

// What a chunk of a tensor of so many bytes adds to the BLAKE3 of the whole; one alone is the whole.
Blake3Hash chunk_hash(Bytes bytes, std::uint64_t size_bytes, std::uint64_t chunk);

// Of a tensor, or of its first chunks.
struct TensorSums {
  std::uint64_t fnv1a = Fnv1a64().value();
  std::vector<Blake3Hash> chunks;

  // Of all chunks, the whole tensor's.
  [[nodiscard]] Blake3Hash blake3() const;
  bool operator==(const TensorSums&) const = default;
};

// What is known so far of the tensors, in the order of ModelFiles::tensors.
struct TableSoFar {
  std::vector<TensorSums> whole;
  TensorSums half;
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
  const ModelFiles& files_;
  TableSoFar so_far_;
  std::uint64_t done_bytes_ = 0;
  std::vector<std::uint8_t> block_;
};

}  // namespace dllm::weights
