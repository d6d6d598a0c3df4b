// The header of a GGUF file: which tensors it holds, and where. Bounded in time and memory,
// whatever the file claims; vocabularies are stepped over.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "blake3.h"
#include "source.h"

namespace dllm::weights {

inline constexpr std::size_t kDims = 4;
using Shape = std::array<std::uint64_t, kDims>;

// What tells a tensor from others: two with the same may still hold other bytes.
struct TensorKey {
  std::string name;
  std::uint32_t type = 0;  // ggml's number
  Shape shape = {1, 1, 1, 1};
  std::uint64_t size_bytes = 0;

  auto operator<=>(const TensorKey&) const = default;
};

struct TensorPlace {
  TensorKey key;
  std::uint32_t file = 0;    // which of the model's files
  std::uint64_t offset = 0;  // from the beginning of that file
  bool type_known = true;    // otherwise its size reaches to the next tensor, padding included
  bool is_hole = false;      // left out of a sparse file: what is read there is no weight
  std::vector<Blake3Hash> chunks{};  // of a hole: chunk_hash of each it stands for
};

// What a sparse file says of itself, among its metadata: so the two are never apart. Each of these
// keys marks it.
inline constexpr const char* kSparseMark = "dllm.thin.";
inline constexpr const char* kSparseSource = "dllm.thin.source";      // path, size, hash: a string
inline constexpr const char* kSparseIdentity = "dllm.thin.identity";  // of the first file: a string
// Bytes that are there, from the beginning of the data: begin and end of each run of them.
inline constexpr const char* kSparseKept = "dllm.thin.kept";
// The hash of each chunk that is not, in the order of the tensors' places: 32 bytes each.
inline constexpr const char* kSparseChunks = "dllm.thin.chunks";
// SHA-256 of the file's list of tensors: whoever writes others with the same metadata (a quantised
// copy, parts of it) has no record of their holes. A string.
inline constexpr const char* kSparseTensors = "dllm.thin.tensors";
// SHA-256 of the names of all that the whole model lacks: so the first parts of two that lack
// others differ. A string.
inline constexpr const char* kSparseHoles = "dllm.thin.holes";

struct Header {
  std::uint32_t part = 0;            // split.no, from 0
  std::uint32_t parts = 1;           // split.count
  std::vector<TensorPlace> tensors;  // by offset
  std::uint32_t version = 0;
  std::uint64_t keys = 0;
  std::uint64_t alignment = 0;
  std::uint64_t keys_at = 0;  // where the metadata begin
  std::uint64_t list_at = 0;  // where the list of tensors does
  std::uint64_t end_at = 0;   // behind the list of tensors
  std::uint64_t data_at = 0;  // where their offsets count from
  bool is_sparse = false;
};

// `name` is told in the sentence of a ModelError: no GGUF, cut short, damaged, or beyond limits.
Header read_header(Source& source, const std::string& name);

// SHA-256 of the list of tensors, as it stands in the file.
std::string list_sha256(Source& source, const Header& header);

}  // namespace dllm::weights
