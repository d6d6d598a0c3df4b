// What has no business on the wire. A stock worker trusts its client: these requests would crash
// it, exhaust its memory or run code in it. What it refuses itself without harm may be let through.
// Sizes, places and shapes are checked, numbers in tensors are not: an index beyond its table, say,
// still ends a worker.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "op_shapes.h"
#include "protocol/decoder.h"
#include "protocol/tensor.h"

namespace dllm {

// Where a tensor's bytes may lie: [start, end).
struct Region {
  std::uint64_t start = 0;
  std::uint64_t end = 0;
  // Whether so many bytes from `at` on lie inside.
  [[nodiscard]] bool holds(std::uint64_t at, std::uint64_t bytes) const {
    return at >= start && at <= end && bytes <= end - at;
  }
};

// The buffers a worker gave its client, as its own replies tell. Fed in the order of the stream: with a free when it is asked, with the rest when it is replied.
class Buffers {
 public:
  // A stock client has a few dozen.
  static constexpr std::size_t kMax = 64 << 10;

  void given(std::uint64_t handle, std::uint64_t size);
  void based(std::uint64_t handle, std::uint64_t base);
  void freed(std::uint64_t handle);

  [[nodiscard]] bool has(std::uint64_t handle) const { return all_.contains(handle); }
  // None when the worker gave no such buffer, or has not said where it lies.
  [[nodiscard]] std::optional<Region> region(std::uint64_t handle) const;
  // Size of the largest: nobody can mean to move more at once.
  [[nodiscard]] std::uint64_t largest() const { return largest_; }
  [[nodiscard]] bool full() const { return all_.size() >= kMax; }

 private:
  struct Buffer {
    std::uint64_t size = 0;
    std::optional<std::uint64_t> base;
  };

  std::map<std::uint64_t, Buffer> all_;
  std::uint64_t largest_ = 0;
};

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

// Judges the requests of one connection. Each `refuses_` returns why a request must not reach the
// worker, or null.
class Guard {
 public:
  // Requests without their replies. A stock client has one; beyond, nobody means it.
  static constexpr std::size_t kAwaitedMax = 1024;

  // The worker told its version.
  void learn(Version version) { version_ = version; }
  // The worker replied to a request for a buffer, or for the address of `buffer`.
  void replied(std::uint8_t id, std::uint64_t buffer, View payload);
  // A request was let through.
  void passed(const Request& request, View fields);

  // A header. `open_questions`: requests without their replies.
  [[nodiscard]] const char* refuses_header(const Rule& rule, std::uint64_t size,
                                           std::size_t open_questions) const;
  // The fixed part of a request.
  [[nodiscard]] const char* refuses_fields(const Request& request, View fields);
  // A node or a tensor of a graph.
  [[nodiscard]] const char* refuses_node(std::uint64_t id);
  [[nodiscard]] const char* refuses_tensor(Tensor tensor);

 private:
  [[nodiscard]] const char* refuses_graph(const Request& request, View fields);
  [[nodiscard]] const char* refuses_tensors(View fields, bool must_have_buffer) const;
  [[nodiscard]] const char* refuses_op(Tensor tensor) const;
  [[nodiscard]] const char* refuses_place(Tensor tensor, bool must_have_buffer) const;
  [[nodiscard]] const char* refuses_free(std::uint64_t handle) const;
  [[nodiscard]] const char* refuses_copy(View fields) const;
  [[nodiscard]] static const char* refuses_access(const Request& request, View fields);
  [[nodiscard]] static const char* refuses_part(Tensor tensor, std::uint64_t offset,
                                                std::uint64_t bytes);

  Version version_;
  Buffers buffers_;
  Graph graph_;
  std::size_t asked_for_ = 0;  // buffers, not yet replied
};

}  // namespace dllm
