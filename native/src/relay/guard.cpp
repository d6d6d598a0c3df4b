#include "guard.h"

#include <algorithm>

namespace dllm::guard {

namespace {

// A std::vector of this many bytes throws what a stock worker does not catch.
constexpr std::uint64_t kAbortingBytes = 1ULL << 63;
// Requests of fixed size have at most 3.3 kB; a worker reserves whatever the header says.
constexpr std::uint64_t kFixedRequestMaxBytes = 64ULL << 10;
constexpr std::uint64_t kGraphMaxBytes = 1ULL << 30;
constexpr std::uint64_t kDataMaxBytes = 1ULL << 40;
// GGML_TYPE_COUNT is 43 in 8.0.0. Types come without a new protocol version, so there is room.
constexpr std::uint32_t kTypesMax = 64;
constexpr std::uint32_t kCustomOps = 4;  // MAP_CUSTOM1, 2, 3 and CUSTOM, in a row

// GGML_OP_COUNT and the number of MAP_CUSTOM1. Up to 3.6.0 the version does not tell them.
struct Ops {
  Version version;
  std::uint32_t count;
  std::uint32_t first_custom;
};
constexpr Ops kOps[] = {
    {{3, 6, 1}, 96, 87},  {{4, 0, 0}, 96, 87},  {{4, 0, 1}, 97, 88},  {{4, 0, 2}, 98, 89},
    {{4, 0, 3}, 101, 92}, {{5, 0, 0}, 101, 92}, {{5, 1, 0}, 101, 92}, {{6, 0, 0}, 101, 92},
    {{7, 0, 0}, 101, 92}, {{8, 0, 0}, 101, 92},
};

const Ops* find_ops(Version version) {
  const auto* found = std::ranges::find(kOps, version, &Ops::version);
  return found == std::end(kOps) ? nullptr : found;
}

bool adds_up(std::uint64_t& sum, std::uint64_t more) {
  sum += more;
  return sum >= more;
}

// Bytes from the first to the last element, at least: exact up to the size of one block.
bool region_wraps(Tensor tensor) {
  std::uint64_t end = tensor.data();
  for (int i = 0; i < Tensor::kDims; ++i) {
    const std::uint64_t steps = tensor.ne(i) ? tensor.ne(i) - 1 : 0;
    if (!adds_up(end, steps * tensor.nb(i))) return true;
  }
  return false;
}

const char* refuses_region(Tensor tensor) {
  if (tensor.type() >= kTypesMax) return "tensor of an impossible type";
  if (region_wraps(tensor)) return "tensor region wraps around";
  return nullptr;
}

// data + offset + size must not wrap; `bytes` points at offset.
const char* refuses_range(Tensor tensor, std::uint64_t offset, std::uint64_t size) {
  std::uint64_t end = tensor.data();
  const bool fits = adds_up(end, offset) && adds_up(end, size);
  return fits ? nullptr : "range of a tensor wraps around";
}

const char* refuses_access(const Request& request, View fields) {
  const std::uint8_t* after = fields.data() + kTensorBytes;
  const Tensor tensor(fields.data());
  switch (request.rule->id) {
    case kGetTensor:
    case kMemsetTensor:
      return refuses_range(tensor, load<std::uint64_t>(after), load<std::uint64_t>(after + 8));
    case kSetTensor:  // its offset is the last field, behind a flag since 7.0
      return refuses_range(tensor, load<std::uint64_t>(&fields[fields.size() - 8]),
                           request.size - fields.size());
    default:
      return nullptr;
  }
}

}  // namespace

const char* refuses_size(const Rule* rule, std::uint64_t size) {
  // A worker closes at a command it does not know, before it looks at the size.
  if (!rule) return nullptr;
  if (size >= kAbortingBytes) return "size that aborts a worker";
  const std::uint64_t most = !rule->data_follows         ? kFixedRequestMaxBytes
                             : rule->id == kGraphCompute ? kGraphMaxBytes
                             : rule->id == kHello        ? kFixedRequestMaxBytes
                                                         : kDataMaxBytes;
  return size > most ? "size beyond any sense" : nullptr;
}

const char* refuses_fields(const Request& request, View fields) {
  const bool device_first = is_one_of(request.rule->id, {kGetAllocSize, kCommAllreduce});
  View tensors = fields.subspan(device_first ? fields.size() % kTensorBytes : 0);
  for (; tensors.size() >= kTensorBytes; tensors = tensors.subspan(kTensorBytes)) {
    if (const char* reason = refuses_region(Tensor(tensors.data()))) return reason;
  }
  return refuses_access(request, fields);
}

const char* refuses_tensor(Version version, Tensor tensor) {
  if (const Ops* ops = find_ops(version)) {
    if (tensor.op() >= ops->count) return "op that this version does not have";
    if (tensor.op() - ops->first_custom < kCustomOps) return "custom op, which calls into memory";
  }
  return refuses_region(tensor);
}

bool knows_ops(Version version) {
  return find_ops(version) != nullptr;
}

}  // namespace dllm::guard
