// What has no business on the wire. A stock worker trusts its client: these requests would crash
// it, exhaust its memory or run code in it. What it refuses itself without harm may be let through.
// Sizes, places and shapes are checked, numbers in tensors are not: an index beyond its table, say,
// still ends a worker.
#pragma once

#include "buffers.h"
#include "graph.h"
#include "protocol/decoder.h"

namespace dllm {

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
