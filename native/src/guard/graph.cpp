#include "graph.h"

#include <algorithm>

namespace dllm {

void Graph::begin(std::uint64_t nodes, std::uint64_t tensors) {
  nodes_.clear();
  nodes_.reserve(nodes);
  next_node_ = 0;
  tensors_left_ = tensors;
  seen_.clear();
}

const char* Graph::refuses_node(std::uint64_t id) {
  nodes_.push_back(id);
  return id == 0 ? "graph with a node that is none" : nullptr;
}

const char* Graph::refuses_tensor(Tensor tensor, bool has_bytes,
                                  std::optional<std::uint32_t> needed) {
  const auto [at, is_new] = seen_.try_emplace(tensor.id(), Seen{Shape(tensor), has_bytes});
  if (!is_new) return "graph with two tensors of one id";
  Seen& seen = at->second;
  if (const char* reason = refuses_sources(tensor, seen)) return reason;
  if (next_node_ < nodes_.size() && nodes_[next_node_] == tensor.id()) {
    if (const char* reason = needed ? refuses_computing(tensor, *needed) : nullptr) return reason;
    ++next_node_;
    seen.depth = 0;
  }
  if (--tensors_left_ > 0) return nullptr;
  seen_.clear();
  return next_node_ == nodes_.size() ? nullptr : "graph whose nodes are not its tensors";
}

const char* Graph::refuses_sources(Tensor tensor, Seen& seen) const {
  for (std::size_t i = 0; i < Tensor::kSources; ++i) {
    if (const char* reason = refuses_source(tensor.source(i), seen)) return reason;
  }
  if (const char* reason = refuses_source(tensor.view_source(), seen)) return reason;
  return seen.depth > kDepthMax ? "graph deeper than anyone means" : nullptr;
}

// Of a cast the second source is the tensor itself.
const char* Graph::refuses_source(std::uint64_t id, Seen& of) const {
  if (id == 0) return nullptr;
  const auto found = seen_.find(id);
  if (found == seen_.end()) return "graph with a source that is not there";
  const bool itself = &found->second == &of;
  if (!itself) of.depth = std::max(of.depth, found->second.depth + 1);
  return nullptr;
}

const char* Graph::refuses_computing(Tensor tensor, std::uint32_t needed) const {
  for (std::size_t i = 0; i < needed; ++i) {
    if (tensor.source(i) == 0) return "op without a source it needs";
    if (!seen_.at(tensor.source(i)).has_bytes) return "op on a tensor without data";
  }
  if (!seen_.at(tensor.id()).has_bytes) return "op into a tensor without data";
  Sources sources{};
  for (std::size_t i = 0; i < Tensor::kSources; ++i) {
    if (tensor.source(i) != 0) sources[i] = &seen_.at(tensor.source(i)).shape;
  }
  return fits(tensor, sources) ? nullptr : "op whose tensors do not suit it";
}

}  // namespace dllm
