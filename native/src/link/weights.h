// Weights that need not cross, for a Session to ask about.
#pragma once

#include <cstdint>
#include <optional>

#include "protocol/tensor.h"

namespace dllm {

// Asked in the order of the stream, with the mutex of the link held.
class Weights {
 public:
  virtual ~Weights() = default;
  // A SET_TENSOR of a tensor from so far on, `bytes` of data behind its head. Whether they go
  // another way: then the Session tells where the head is.
  virtual bool takes(Tensor tensor, std::uint64_t offset, std::uint64_t bytes) = 0;
  // Data of a tensor that go as they are, whatever holds for others: in rows, say.
  virtual void passes(Tensor tensor) = 0;
  // A SET_TENSOR_HASH of a tensor from its beginning. None: the worker is to be asked. 0: its data
  // are to come. Else so many bytes that the worker gets from itself, behind a head told likewise.
  virtual std::optional<std::uint64_t> recalls(Tensor tensor, std::uint64_t hash) = 0;
  // What follows is not understood: a command of no table, or from here on everything.
  virtual void unread() = 0;
};

}  // namespace dllm
