// How the tensors of one graph hang together, looked at one by one as they pass.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "fitting.h"

namespace dllm {

// A stock client sends every tensor behind those it is made of, and so its nodes in their order. A
// worker trusts that: it computes what has no source or no bytes, and writes beside its own memory
// for a node it meets twice.
class Graph {
 public:
  // A worker makes a tensor inside the making of the one that needs it; at some 120,000 a stock
  // one is out of stack. Of 300 layers in a row come some 10,000.
  static constexpr std::uint32_t kDepthMax = 32 << 10;

  // Each returns why the graph must not reach the worker, or null. First the nodes, then the
  // tensors, so many as announced.
  void begin(std::uint64_t nodes, std::uint64_t tensors);
  const char* refuses_node(std::uint64_t id);
  // `has_bytes`: in a buffer, or it needs none; `needed`: sources its op reads, where it computes.
  const char* refuses_tensor(Tensor tensor, bool has_bytes, std::optional<std::uint32_t> needed);

 private:
  struct Seen {
    Shape shape;
    bool has_bytes;
    std::uint32_t depth = 1;  // of what a worker makes for it that no node before has made
  };

  const char* refuses_source(std::uint64_t id, Seen& of) const;
  const char* refuses_sources(Tensor tensor, Seen& seen) const;
  [[nodiscard]] const char* refuses_computing(Tensor tensor, std::uint32_t needed) const;

  std::vector<std::uint64_t> nodes_;
  std::size_t next_node_ = 0;
  std::uint64_t tensors_left_ = 0;
  std::unordered_map<std::uint64_t, Seen> seen_;
};

}  // namespace dllm
