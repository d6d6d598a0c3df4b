#include "guard.h"

#include <algorithm>

#include "protocol/commands.h"
#include "protocol/tensor.h"

namespace dllm {

void Buffers::given(std::uint64_t handle, std::uint64_t size) {
  // No handle: the worker had no room.
  if (handle == 0) return;
  all_[handle] = {size, {}};
  largest_ = std::max(largest_, size);
}

void Buffers::based(std::uint64_t handle, std::uint64_t base) {
  const auto found = all_.find(handle);
  if (found == all_.end()) return;
  // One that would wrap around holds nothing.
  if (base + found->second.size >= base) found->second.base = base;
}

void Buffers::freed(std::uint64_t handle) {
  all_.erase(handle);
  largest_ = 0;
  for (const auto& [each, buffer] : all_) largest_ = std::max(largest_, buffer.size);
}

std::optional<Region> Buffers::region(std::uint64_t handle) const {
  const auto found = all_.find(handle);
  if (found == all_.end() || !found->second.base) return std::nullopt;
  return Region{*found->second.base, *found->second.base + found->second.size};
}

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

namespace {

// A std::vector of this many bytes throws what a stock worker does not catch.
constexpr std::uint64_t kAbortingBytes = 1ULL << 63;
// Requests of fixed size have at most 3.3 kB; a worker reserves whatever the header says.
constexpr std::uint64_t kFixedRequestMaxBytes = 64ULL << 10;
// Some 220,000 tensors; 300 layers have some 25,000.
constexpr std::uint64_t kGraphMaxBytes = 64ULL << 20;
constexpr std::uint32_t kCustomOps = 4;  // MAP_CUSTOM1, 2, 3 and CUSTOM, in a row
// So many ops a patch we do not know may have more than the version before it.
constexpr std::uint32_t kOpsGrowth = 32;
constexpr std::uint64_t kUnaryKinds = 64;
constexpr Version kEmptyAnywhere{8, 0, 0};  // a tensor without elements may lie anywhere since

// Rows of `size` bytes, `stride` apart.
struct Rows {
  std::uint64_t size, count, stride;
  // At the field before: the offset of the first.
  explicit Rows(const std::uint8_t* at)
      : size(load<std::uint64_t>(at + 8)),
        count(load<std::uint64_t>(at + 16)),
        stride(load<std::uint64_t>(at + 24)) {}

  // Why no worker may get them, or null. For rows that overlap it would reserve what no tensor
  // holds.
  [[nodiscard]] const char* refuses() const {
    if (size == 0 || count == 0) return "rows without data";
    if (count == 1) return nullptr;
    if (stride < size) return "rows overlap: their stride is below the row size";
    const bool wraps = count - 1 > (~std::uint64_t{0} - size) / stride;
    return wraps ? "rows wrap around" : nullptr;
  }
  // From the first to behind the last byte, where `refuses` is null.
  [[nodiscard]] std::uint64_t span() const { return (count - 1) * stride + size; }
  // Modulo 2^64, as `refuses` has what is more.
  [[nodiscard]] std::uint64_t bytes() const { return size * count; }
};

}  // namespace

void Guard::replied(std::uint8_t id, std::uint64_t buffer, View payload) {
  if (id == kAllocBuffer) {
    --asked_for_;
    buffers_.given(load<std::uint64_t>(&payload[0]), load<std::uint64_t>(&payload[8]));
  }
  if (id == kBufferGetBase) buffers_.based(buffer, load<std::uint64_t>(&payload[0]));
}

void Guard::passed(const Request& request, View fields) {
  if (request.rule->id == kAllocBuffer) ++asked_for_;
  if (request.rule->id == kFreeBuffer) buffers_.freed(load<std::uint64_t>(fields.data()));
}

const char* Guard::refuses_header(const Rule& rule, std::uint64_t size,
                                  std::size_t open_questions) const {
  if (size >= kAbortingBytes) return "size that aborts a worker";
  const bool asks = rule.reply_kind != Reply::kNone;
  if (asks && open_questions >= kAwaitedMax) return "too many requests without a reply";
  if (rule.id == kAllocBuffer && buffers_.full()) return "more buffers than anyone means";
  if (is_one_of(rule.id, {kSetTensor, kSetTensor2d})) {
    const bool fits = size <= rule.fields || size - rule.fields <= buffers_.largest();
    return fits ? nullptr : "more data than any buffer holds";
  }
  const std::uint64_t most = rule.id == kGraphCompute ? kGraphMaxBytes : kFixedRequestMaxBytes;
  return size > most ? "size beyond any sense" : nullptr;
}

const char* Guard::refuses_fields(const Request& request, View fields) {
  switch (request.rule->id) {
    case kCommAllreduce:
      return "no two workers were joined";
    case kGraphCompute:
      return refuses_graph(request, fields);
    case kGetAllocSize:
    case kInitTensor:
      return refuses_tensors(fields, false);
    case kCopyTensor:
      return refuses_copy(fields);
    case kFreeBuffer:
      return refuses_free(load<std::uint64_t>(fields.data()));
    default:
      break;
  }
  if (fields.size() < kTensorBytes) return nullptr;
  const char* reason = refuses_tensors(fields, true);
  return reason ? reason : refuses_access(request, fields);
}

// Freed before its reply is here, it would seem to be there for ever.
const char* Guard::refuses_free(std::uint64_t handle) const {
  const bool may_be_guessed = asked_for_ > 0 && !buffers_.has(handle);
  return may_be_guessed ? "buffer that was not given yet" : nullptr;
}

// A worker makes room for nodes and tensors alike, and every node is one of the tensors.
const char* Guard::refuses_graph(const Request& request, View fields) {
  const std::uint64_t nodes = load<std::uint32_t>(&fields[fields.size() - kGraphCountBytes]);
  const std::uint64_t least = nodes * (kGraphNodeBytes + kTensorBytes) + kGraphCountBytes;
  const std::uint64_t rest = request.size - fields.size();
  if (least > rest) return "graph of more nodes than tensors";
  graph_.begin(nodes, (rest - nodes * kGraphNodeBytes - kGraphCountBytes) / kTensorBytes);
  return nullptr;
}

const char* Guard::refuses_node(std::uint64_t id) {
  return graph_.refuses_node(id);
}

const char* Guard::refuses_tensor(Tensor tensor) {
  if (const char* reason = refuses_op(tensor)) return reason;
  // Without buffer and address it is a mere shape.
  const bool is_placed = tensor.buffer() != 0 || tensor.data() != 0;
  if (const char* reason = refuses_place(tensor, is_placed)) return reason;
  const bool has_bytes = is_placed || extent(tensor) == 0;
  return graph_.refuses_tensor(tensor, has_bytes, needed_sources(version_, tensor.op()));
}

// All tensors among the fields; a device number may stand before them.
const char* Guard::refuses_tensors(View fields, bool must_have_buffer) const {
  const bool device_first = fields.size() % kTensorBytes == sizeof(std::uint32_t);
  View tensors = fields.subspan(device_first ? sizeof(std::uint32_t) : 0);
  for (; tensors.size() >= kTensorBytes; tensors = tensors.subspan(kTensorBytes)) {
    if (const char* reason = refuses_place(Tensor(tensors.data()), must_have_buffer)) return reason;
  }
  return nullptr;
}

const char* Guard::refuses_op(Tensor tensor) const {
  const Ops* ops = find_ops(version_);
  if (!ops) return nullptr;
  const std::uint32_t op = tensor.op();
  const bool exact = ops->version == version_;
  // Ops come before the custom ones; the last, GLU, is in every model.
  const std::uint32_t customs = exact ? kCustomOps : ops->count - 1 - ops->first_custom;
  if (op >= ops->count + (exact ? 0 : kOpsGrowth)) return "op that this version does not have";
  // UNARY, the op before the custom ones, moves up with them: it has a small number where they
  // have the address of a function.
  if (!exact && tensor.op_parameter() < kUnaryKinds) return nullptr;
  if (op - ops->first_custom < customs) return "custom op, which calls into memory";
  return nullptr;
}

const char* Guard::refuses_place(Tensor tensor, bool must_have_buffer) const {
  if (!tensor_type(tensor.type())) return "tensor of an impossible type";
  if (!has_whole_elements(tensor)) return "tensor whose elements overlap";
  const std::optional<std::uint64_t> bytes = extent(tensor);
  std::uint64_t end = tensor.data();
  if (!bytes || !adds_up(end, *bytes)) return "tensor region wraps around";
  // A worker takes a buffer it did not give for none; one it is about to give may be guessed.
  const bool may_be_none = !must_have_buffer && (tensor.buffer() == 0 || asked_for_ == 0);
  if (!buffers_.has(tensor.buffer())) return may_be_none ? nullptr : "tensor in no buffer";
  if (*bytes == 0 && version_ >= kEmptyAnywhere) return nullptr;
  const std::optional<Region> region = buffers_.region(tensor.buffer());
  const bool inside = region && region->holds(tensor.data(), *bytes);
  return inside ? nullptr : "tensor outside its buffer";
}

// The worker copies as many bytes as the source has.
const char* Guard::refuses_copy(View fields) const {
  const Tensor source(fields.data()), target(fields.data() + kTensorBytes);
  if (const char* reason = refuses_tensors(fields, true)) return reason;
  const std::optional<Region> region = buffers_.region(target.buffer());
  const bool fits = region && region->holds(target.data(), extent(source).value_or(~0ULL));
  return fits ? nullptr : "copy beyond its buffer";
}

const char* Guard::refuses_access(const Request& request, View fields) {
  const std::uint8_t* after = fields.data() + kTensorBytes;
  const Tensor tensor(fields.data());
  const std::uint64_t data_bytes = request.size - fields.size();
  const std::uint64_t offset = tensor_offset(request.rule->id, fields);
  switch (request.rule->id) {
    case kGetTensor:
    case kMemsetTensor:
      return refuses_part(tensor, offset, load<std::uint64_t>(after + 8));
    case kSetTensor:
      return refuses_part(tensor, offset, data_bytes);
    case kSetTensorHash:  // how much that is, only the worker knows
      return refuses_part(tensor, offset, 0);
    case kSetTensor2d:
      if (Rows(after).bytes() != data_bytes) return "rows that are not the data";
      [[fallthrough]];
    case kGetTensor2d: {
      const Rows rows(after);
      const char* reason = rows.refuses();
      return reason ? reason : refuses_part(tensor, offset, rows.span());
    }
    default:
      return nullptr;
  }
}

// `bytes` from `offset` on.
const char* Guard::refuses_part(Tensor tensor, std::uint64_t offset, std::uint64_t bytes) {
  const Region whole{0, extent(tensor).value_or(0)};
  return whole.holds(offset, bytes) ? nullptr : "more than the tensor holds";
}

}  // namespace dllm
