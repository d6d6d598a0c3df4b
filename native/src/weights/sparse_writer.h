// Writes a thin file: a model's header, the tensors that are kept, holes in place of the others.
//
// Among its metadata stands what it was made from, which bytes are there, and the XXH64 of every
// chunk that is not (keys kThin* of home/gguf.h): with these, a worker's own file can be told to
// hold what a hole stands for. The metadata travel with the file, and llama.cpp passes them over.
#pragma once

#include <cstdint>
#include <functional>
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
  std::string to;        // where nothing is yet
  std::string identity;  // of the model, as models/identity.py has it
  std::unordered_set<std::string> holes;  // tensors that are left out; other names may be in it
};

// Reads `from` once, from the beginning to its end; `told` is given the bytes read so far. Leaves
// no file behind when it throws: weights::ModelError, or what a system call says.
Written write_thin(const Order& order, const std::function<void(std::uint64_t)>& told);

}  // namespace dllm::sparse
