// `dllm-relay sparse`: writes a model with holes in place of tensors that are elsewhere.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <unordered_set>

#include "gguf.h"
#include "posix.h"

namespace dllm::sparse {

// Of one file.
struct Written {
  std::string path;
  std::string sha256;  // of the file it was made from
  std::uint64_t size_bytes = 0;
  std::uint64_t kept_bytes = 0;  // tensors that are there
};

struct Order {
  std::string from;
  std::string to;                         // where nothing is yet
  std::string identity;                   // of the model, as models/identity.py has it
  std::unordered_set<std::string> holes;  // tensors that are left out; other names may be in it
};

// Reads `from` once, from the beginning to its end; `told` is given the bytes read so far. Leaves
// no file behind when it throws: weights::ModelError, or what a system call says.
Written write_sparse(const Order& order, const std::function<void(std::uint64_t)>& told);

extern const char* const kSparseHelp;

int sparse(std::span<char* const> args);

}  // namespace dllm::sparse
