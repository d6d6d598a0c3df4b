// What every tensor of a model holds, told in a few hashes. They come from our own reading of the
// file, never from what somebody claims.
#pragma once

#include <cstdint>
#include <vector>

#include "hash_functions.h"
#include "model_files.h"

namespace dllm::weights {

// Tensors are compared, asked for and held in pieces of this size; the last one may be smaller.
inline constexpr std::size_t kChunkBytes = 1U << 20;
static_assert(kChunkBytes % Xxh64::kStripeBytes == 0, "hashes go on at the border of a chunk");

inline std::uint64_t chunks_in(std::uint64_t size_bytes) {
  return size_bytes / kChunkBytes + (size_bytes % kChunkBytes != 0 ? 1 : 0);
}

struct TensorSums {
  std::uint64_t fnv1a = 0;
  std::uint64_t xxh64 = 0;
  std::vector<std::uint64_t> chunks;  // XXH64 of each

  bool operator==(const TensorSums&) const = default;
};

// A tensor of which some chunks are hashed.
struct HalfTensor {
  std::uint64_t fnv1a = Fnv1a64().value();
  Xxh64::Lanes lanes = Xxh64().lanes();
  std::vector<std::uint64_t> chunks;
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
