#include "op_shapes.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <optional>
#include <tuple>

#include "protocol/tensor.h"

namespace dllm {

namespace {

constexpr std::uint32_t kF32 = Tensor::kF32, kF16 = 1, kI32 = 26, kI64 = 27;
constexpr std::int64_t kIntMax = std::numeric_limits<std::int32_t>::max();
// Parameters of a rotation, by index.
constexpr std::size_t kRopeDims = 1, kRopeMode = 2, kRopeOffset = 15;
constexpr std::uint32_t kRopeSections = 8;  // the bit of a mode with four positions a token
constexpr std::uint32_t kPool2d = 61;
constexpr std::uint32_t kUnaryKinds = 64;  // some 22 so far; others abort a worker
constexpr std::array<std::uint32_t, 4> kFlatUnary{8, 9, 10, 14};  // GELU, _QUICK, SILU, GELU_ERF

struct Op {
  Tensor tensor;
  Shape made;
  const Sources& from;

  [[nodiscard]] const Shape& source(std::size_t i) const { return *from[i]; }
  template <typename Value = std::int32_t>
  [[nodiscard]] Value parameter(std::size_t i) const {
    return load<Value>(tensor.bytes() + Tensor::kOpParametersAt + 4 * i);
  }
  // The result and so many sources are F32.
  [[nodiscard]] bool all_f32(std::size_t sources) const {
    const auto is_f32 = [](const Shape* each) { return each->type == kF32; };
    return made.type == kF32 && std::all_of(from.begin(), from.begin() + sources, is_f32);
  }
};

bool is_float(const Shape& shape) {
  return shape.type == kF32 || shape.type == kF16;
}

bool divides(std::uint32_t part, std::uint32_t whole) {
  return part == 0 ? whole == 0 : whole % part == 0;
}

// ggml_can_repeat
bool repeats(const Shape& part, const Shape& whole) {
  return std::ranges::equal(part.ne, whole.ne, divides);
}

// More elements than any memory holds. Twice as many still fit in 64 bits.
constexpr std::uint64_t kTooMany = 1ULL << 62;

std::uint64_t times(std::initializer_list<std::uint64_t> factors) {
  std::uint64_t product = 1;
  for (const std::uint64_t each : factors) {
    if (__builtin_mul_overflow(product, each, &product)) product = kTooMany;
    product = std::min(product, kTooMany);
  }
  return product;
}

std::uint64_t elements(const Shape& shape) {
  return times({shape.ne[0], shape.ne[1], shape.ne[2], shape.ne[3]});
}

// The last byte's distance from the first when dimension `from` and all above it are walked as one,
// in steps of `stride`; none when 64 bits do not hold it.
std::optional<std::uint64_t> walked(const Shape& shape, std::size_t from, std::uint64_t stride) {
  std::uint64_t count = 1, reach = 0;
  for (std::size_t i = from; i < shape.ne.size(); ++i) {
    if (__builtin_mul_overflow(count, shape.ne[i], &count)) return std::nullopt;
  }
  if (__builtin_mul_overflow(count - 1, stride, &reach)) return std::nullopt;
  for (std::size_t i = 1; i < from; ++i) {
    const std::uint64_t more = std::uint64_t{shape.ne[i] - 1} * shape.nb[i];
    if (__builtin_add_overflow(reach, more, &reach)) return std::nullopt;
  }
  return reach;
}

// Whether an op that ignores strides stays inside the tensor. The CPU steps over all rows by
// `nb[1]`, or over all matrices by `nb[2]`; a GPU takes the elements as packed.
bool is_flat(const Shape& shape) {
  const TensorType* type = tensor_type(shape.type);
  if (!type || std::ranges::find(shape.ne, 0U) != shape.ne.end()) return type != nullptr;
  const std::uint64_t row = std::uint64_t{shape.ne[0] / type->block} * type->block_bytes;
  const std::optional<std::uint64_t> whole = walked(shape, Tensor::kDims, 0);
  const auto stays = [&](std::size_t from, std::uint64_t stride) {
    const std::optional<std::uint64_t> reach = walked(shape, from, stride);
    return whole && reach && *reach <= *whole;
  };
  return stays(1, row) && stays(1, shape.nb[1]) && stays(2, shape.nb[2]);
}

// Whether an op that takes the elements as one packed row stays inside the tensor.
bool holds_packed(const Shape& shape) {
  const TensorType* type = tensor_type(shape.type);
  if (!type || type->block != 1) return false;
  if (std::ranges::find(shape.ne, 0U) != shape.ne.end()) return true;
  const std::optional<std::uint64_t> packed = walked(shape, 0, type->block_bytes);
  const std::optional<std::uint64_t> rows = walked(shape, Tensor::kDims, 0);
  return packed && rows && *packed <= *rows + std::uint64_t{shape.ne[0] - 1} * shape.nb[0];
}

// ggml_is_contiguous, of the first `dims`. The stride of a dimension of one says nothing.
bool is_packed(const Shape& shape, std::size_t dims = Tensor::kDims) {
  const TensorType* type = tensor_type(shape.type);
  if (!type || type->block != 1) return false;
  std::uint64_t stride = type->block_bytes;
  for (std::size_t i = 0; i < dims; ++i) {
    if (shape.ne[i] != 1 && shape.nb[i] != stride) return false;
    if (__builtin_mul_overflow(stride, shape.ne[i], &stride)) return false;
  }
  return true;
}

bool has_shape(const Shape& shape, const std::array<std::uint64_t, Tensor::kDims>& ne) {
  return std::ranges::equal(shape.ne, ne);
}

bool as_its_source(const Op& op) {
  return op.made.ne == op.source(0).ne;
}

bool flat(const Op& op) {
  return as_its_source(op) && op.made.type == op.source(0).type && is_flat(op.made) &&
         is_flat(op.source(0));
}

bool as_many(const Op& op) {
  return elements(op.made) == elements(op.source(0));
}

// Of quants the CPU writes back quants.
bool second_repeated(const Op& op) {
  const TensorType* type = tensor_type(op.source(0).type);
  const bool of_type = type && (type->block == 1 || op.made.type == type->id);
  return as_its_source(op) && of_type && repeats(op.source(1), op.source(0));
}

bool add_of_one(const Op& op) {
  return as_its_source(op) && elements(op.source(1)) == 1;
}

bool add_by_ids(const Op& op) {
  const auto& [a, b, ids] = std::tie(op.source(0), op.source(1), op.source(2));
  const bool chosen = a.ne[1] == ids.ne[0] && a.ne[2] == ids.ne[1] && ids.type == kI32;
  return op.all_f32(2) && as_its_source(op) && a.ne[0] == b.ne[0] && chosen;
}

bool sums_of_rows(const Op& op) {
  const Shape& a = op.source(0);
  return op.all_f32(1) && has_shape(op.made, {1, a.ne[1], a.ne[2], a.ne[3]});
}

bool sum_of_all(const Op& op) {
  return op.made.type == op.source(0).type && has_shape(op.made, {1, 1, 1, 1});
}

bool greatest_of_rows(const Op& op) {
  const Shape& a = op.source(0);
  return op.made.type == kI32 && a.type == kF32 && has_shape(op.made, {a.ne[1], 1, 1, 1});
}

bool repeated(const Op& op) {
  return op.made.type == op.source(0).type && repeats(op.source(0), op.made);
}

bool numbers(const Op& op) {
  return as_its_source(op) && op.all_f32(1);
}

bool norm(const Op& op) {
  return numbers(op) && op.parameter<float>(0) >= 0;
}

bool norm_of_groups(const Op& op) {
  return numbers(op) && op.parameter(0) > 0;
}

// Of F32 or I32: a part of the result, which the parameters place in it, becomes the second source.
bool part_set(const Op& op) {
  const auto& [whole, part] = std::tie(op.source(0), op.source(1));
  const bool of_type = whole.type == op.made.type && part.type == op.made.type &&
                       (part.type == kF32 || part.type == kI32);
  if (!of_type || !as_its_source(op) || !is_packed(whole) || !is_packed(op.made)) return false;
  const std::uint64_t size = sizeof(float);
  const std::array<std::int64_t, 5> steps{size, op.parameter(0), op.parameter(1), op.parameter(2),
                                          op.parameter(3)};
  if (elements(part) == 0) return true;
  std::uint64_t end = size;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const std::uint64_t count = i < part.ne.size() ? part.ne[i] - std::uint64_t{1} : 1;
    std::uint64_t step = 0;
    const bool wraps = __builtin_mul_overflow(count, static_cast<std::uint64_t>(steps[i]), &step) ||
                       __builtin_add_overflow(end, step, &end);
    if (steps[i] < 0 || wraps) return false;
  }
  return end <= times({elements(whole), size});
}

bool joined(const Op& op) {
  const auto& [a, b] = std::tie(op.source(0), op.source(1));
  const auto along = op.parameter<std::uint32_t>(0);
  if (along >= a.ne.size() || a.type != b.type || op.made.type != a.type) return false;
  std::array<std::uint64_t, Tensor::kDims> ne{};
  std::ranges::copy(a.ne, ne.begin());
  ne[along] += b.ne[along];
  const auto suits = [&](std::size_t i) { return i == along || a.ne[i] == b.ne[i]; };
  return has_shape(op.made, ne) && suits(0) && suits(1) && suits(2) && suits(3);
}

bool diagonal(const Op& op) {
  const Shape& a = op.source(0);
  return op.all_f32(1) && a.ne[1] == 1 && has_shape(op.made, {a.ne[0], a.ne[0], a.ne[2], a.ne[3]});
}

bool product(const Op& op) {
  const auto& [a, b] = std::tie(op.source(0), op.source(1));
  const bool suit = a.ne[0] == b.ne[0] && divides(a.ne[2], b.ne[2]) && divides(a.ne[3], b.ne[3]);
  return suit && op.made.type == kF32 && has_shape(op.made, {a.ne[1], b.ne[1], b.ne[2], b.ne[3]});
}

bool product_by_ids(const Op& op) {
  const auto& [a, b, ids] = std::tie(op.source(0), op.source(1), op.source(2));
  const bool suit = a.ne[0] == b.ne[0] && a.ne[3] == 1 && b.ne[3] == 1;
  const bool chosen = ids.type == kI32 && ids.ne[1] == b.ne[2] && ids.ne[2] == 1 &&
                      ids.ne[3] == 1 && divides(b.ne[1], ids.ne[0]);
  return suit && chosen && op.made.type == kF32 &&
         has_shape(op.made, {a.ne[1], ids.ne[0], b.ne[2], 1});
}

bool rows_got(const Op& op) {
  const auto& [a, ids] = std::tie(op.source(0), op.source(1));
  const bool suit = a.ne[2] == ids.ne[1] && a.ne[3] == ids.ne[2] && ids.ne[3] == 1;
  return suit && ids.type == kI32 && op.made.type == (a.type == kI32 ? kI32 : kF32) &&
         has_shape(op.made, {a.ne[0], ids.ne[0], ids.ne[1], ids.ne[2]});
}

bool rows_set(const Op& op) {
  const auto& [rows, ids] = std::tie(op.source(0), op.source(1));
  const Shape& into = op.made;
  const bool suit =
      into.ne[0] == rows.ne[0] && into.ne[2] == rows.ne[2] && into.ne[3] == rows.ne[3];
  const bool chosen = rows.ne[1] <= ids.ne[0] && divides(ids.ne[1], rows.ne[2]) &&
                      divides(ids.ne[2], rows.ne[3]) && ids.ne[3] == 1;
  const bool of_types =
      (rows.type == kF32 || rows.type == kF16) && (ids.type == kI64 || ids.type == kI32);
  return suit && chosen && of_types;
}

// One number a head.
bool has_sinks(const Shape* sinks, const Shape& heads) {
  return !sinks || (sinks->type == kF32 && sinks->ne[0] >= heads.ne[2]);
}

bool soft_max(const Op& op) {
  const Shape& a = op.source(0);
  const Shape* mask = op.from[1];
  const bool masked =
      !mask || (is_float(*mask) && mask->ne[0] == a.ne[0] && mask->ne[1] >= a.ne[1] &&
                divides(mask->ne[2], a.ne[2]) && divides(mask->ne[3], a.ne[3]));
  return numbers(op) && masked && has_sinks(op.from[2], a);
}

bool rotation(const Op& op) {
  const auto& [a, positions] = std::tie(op.source(0), op.source(1));
  const bool has_sections = (op.parameter<std::uint32_t>(kRopeMode) & kRopeSections) != 0;
  const bool suit =
      positions.type == kI32 &&
      has_shape(positions, {(has_sections ? 4 : 1) * std::uint64_t{a.ne[2]}, 1, 1, 1});
  const std::int64_t dims = op.parameter(kRopeDims), before = op.parameter(kRopeOffset);
  const Shape* factors = op.from[2];
  const bool scaled = !factors || (factors->type == kF32 && factors->ne[0] >= dims / 2);
  const bool inside = dims >= 0 && before >= 0 && before + dims <= a.ne[0];
  return as_its_source(op) && op.made.type == a.type && suit && scaled && inside && dims % 2 == 0 &&
         a.ne[0] % 2 == 0;
}

bool sorted(const Op& op) {
  return as_its_source(op) && op.made.type == kI32 && is_flat(op.made) && is_flat(op.source(0));
}

bool greatest(const Op& op) {
  const Shape& a = op.source(0);
  return op.made.type == kI32 && op.made.ne[0] <= a.ne[0] && is_flat(op.made) && is_flat(a) &&
         has_shape(op.made, {op.made.ne[0], a.ne[1], a.ne[2], a.ne[3]});
}

bool attention(const Op& op) {
  const auto& [q, k, v] = std::tie(op.source(0), op.source(1), op.source(2));
  const bool suit = q.type == kF32 && q.ne[0] == k.ne[0] && divides(k.ne[2], q.ne[2]) &&
                    divides(v.ne[2], q.ne[2]) && v.ne[1] >= k.ne[1] && q.ne[3] == k.ne[3] &&
                    q.ne[3] == v.ne[3];
  const Shape* mask = op.from[3];
  const bool masked =
      !mask || (mask->type == kF16 && mask->ne[0] >= k.ne[1] && mask->ne[1] >= q.ne[1] &&
                divides(mask->ne[2], q.ne[2]) && divides(mask->ne[3], q.ne[3]));
  return suit && masked && has_sinks(op.from[4], q) && op.made.type == kF32 &&
         has_shape(op.made, {v.ne[0], q.ne[2], q.ne[1], q.ne[3]});
}

// LIGHTNING_INDEXER
bool scores(const Op& op) {
  const auto& [q, k, w, mask] = std::tie(op.source(0), op.source(1), op.source(2), op.source(3));
  const bool suit = q.ne[0] == k.ne[0] && k.ne[1] == 1 && q.ne[3] == k.ne[3];
  const bool weighed = w.type == kF32 && has_shape(w, {q.ne[1], q.ne[2], 1, q.ne[3]});
  const bool masked = mask.type == kF16 && mask.ne[0] == k.ne[2] && mask.ne[1] == q.ne[2] &&
                      mask.ne[2] == 1 && divides(mask.ne[3], q.ne[3]);
  return suit && weighed && masked && q.type == kF32 && op.made.type == kF32 &&
         has_shape(op.made, {k.ne[2], q.ne[2], 1, q.ne[3]});
}

bool hyper_mixes(const Op& op) {
  constexpr std::uint32_t kStreams = 4, kMixes = 24;
  const auto& [mixes, scale, base] = std::tie(op.source(0), op.source(1), op.source(2));
  return op.all_f32(3) && mixes.ne[0] == kMixes && scale.ne[0] >= 3 && base.ne[0] == kMixes &&
         op.parameter(1) > 0 && has_shape(op.made, {kStreams, kStreams, mixes.ne[1], 1});
}

bool hyper_before(const Op& op) {
  const auto& [x, weights] = std::tie(op.source(0), op.source(1));
  const bool is_gated = op.parameter(1) != 0;
  const bool weighed =
      is_gated ? weights.ne[0] == x.ne[0] && weights.ne[1] == x.ne[1] && weights.ne[2] == x.ne[2]
               : weights.ne[0] == x.ne[1] && weights.ne[1] == x.ne[2];
  return op.all_f32(2) && weighed && has_shape(op.made, {x.ne[0], x.ne[2], 1, 1});
}

bool hyper_after(const Op& op) {
  const auto& [x, residual, post] = std::tie(op.source(0), op.source(1), op.source(2));
  const std::uint32_t streams = residual.ne[1], tokens = x.ne[1];
  const Shape* mixed = op.from[3];
  const bool combined =
      !mixed || (mixed->type == kF32 && has_shape(*mixed, {streams, streams, tokens, 1}));
  return op.all_f32(3) && combined && has_shape(residual, {x.ne[0], streams, tokens, 1}) &&
         has_shape(post, {streams, tokens, 1, 1}) &&
         has_shape(op.made, {x.ne[0], streams, tokens, 1});
}

bool state_convolved(const Op& op) {
  const auto& [x, kernel] = std::tie(op.source(0), op.source(1));
  const bool suit = x.ne[0] + std::uint64_t{1} == std::uint64_t{kernel.ne[0]} + op.made.ne[1] &&
                    x.ne[1] == kernel.ne[1];
  return op.all_f32(2) && suit && is_packed(kernel) && is_packed(x, 2) &&
         has_shape(op.made, {kernel.ne[1], op.made.ne[1], x.ne[2], 1});
}

// Up to 6.0 without a count of snapshots.
std::uint64_t snapshots(const Op& op) {
  return static_cast<std::uint64_t>(std::max(op.parameter(0), 1));
}

bool state_scanned(const Op& op) {
  const auto& [s, x, dt, a, b] =
      std::tie(op.source(0), op.source(1), op.source(2), op.source(3), op.source(4));
  const auto& [c, ids] = std::tie(op.source(5), op.source(6));
  const std::uint64_t state = s.ne[0], head = x.ne[0], heads = x.ne[1], tokens = x.ne[2],
                      sequences = x.ne[3];
  const bool suit = s.ne[1] == head && s.ne[2] == heads && b.ne == c.ne && b.ne[0] == state &&
                    b.ne[1] > 0 && heads % b.ne[1] == 0 && b.ne[2] == tokens &&
                    b.ne[3] == sequences && has_shape(dt, {heads, tokens, sequences, 1});
  const bool decays = (a.ne[0] == 1 || a.ne[0] == state) && a.ne[1] == heads && is_packed(a);
  const bool packed = is_packed(s) && s.nb[3] == times({state, head, heads, sizeof(float)}) &&
                      is_packed(x, 2) && is_packed(b, 2) && is_packed(c, 2) &&
                      holds_packed(op.made);
  const bool chosen = ids.type == kI32 && ids.ne[0] >= sequences;
  return op.all_f32(6) && suit && decays && packed && chosen &&
         elements(op.made) == elements(x) + times({snapshots(op), state, head, heads, sequences});
}

bool delta_net(const Op& op) {
  const auto& [q, k, v, gate] = std::tie(op.source(0), op.source(1), op.source(2), op.source(3));
  const auto& [beta, state] = std::tie(op.source(4), op.source(5));
  const std::uint64_t size = v.ne[0], heads = v.ne[1], tokens = v.ne[2], sequences = v.ne[3];
  const auto asks = [&](const Shape& each) {
    return each.ne[0] == size && each.ne[1] > 0 && each.ne[2] == tokens &&
           divides(each.ne[3], v.ne[3]) && is_packed(each, 1);
  };
  const bool gated = (gate.ne[0] == 1 || gate.ne[0] == size) &&
                     has_shape(gate, {gate.ne[0], heads, tokens, sequences}) && is_packed(gate);
  const bool weighed = has_shape(beta, {1, heads, tokens, sequences}) && is_packed(beta);
  const bool kept = has_shape(state, {size, size, heads, sequences}) && is_packed(state);
  const std::uint64_t rows = times({sequences, tokens + times({snapshots(op), size})});
  return op.all_f32(6) && asks(q) && asks(k) && is_packed(v, 1) && gated && weighed && kept &&
         holds_packed(op.made) && has_shape(op.made, {size * heads, rows, 1, 1});
}

// RWKV and GLA: sources of one shape, then the state. One of them may be the same for all tokens.
bool recurrence(const Op& op, std::size_t state_at, bool has_first_bonus) {
  const Shape &first = op.source(0), &state = op.source(state_at);
  const std::uint64_t size = first.ne[0], heads = first.ne[1], tokens = first.ne[2],
                      sequences = state.ne[1];
  for (std::size_t i = 0; i < state_at; ++i) {
    const Shape& each = op.source(i);
    const bool suits = has_first_bonus && i == 3 ? elements(each) >= size * heads
                                                 : has_shape(each, {size, heads, tokens, 1});
    if (!suits || !holds_packed(each)) return false;
  }
  const bool shared = sequences > 0 && tokens > 0 && tokens % sequences == 0;
  return op.all_f32(state_at + 1) && shared && holds_packed(state) && holds_packed(op.made) &&
         elements(state) == times({size, size, heads, sequences}) &&
         has_shape(op.made, {size * heads, tokens + size * sequences, 1, 1});
}

bool unary(const Op& op) {
  const std::uint32_t kind = op.parameter(0);
  const bool is_flat_kind = std::ranges::find(kFlatUnary, kind) != kFlatUnary.end();
  return as_its_source(op) && kind < kUnaryKinds && (!is_flat_kind || flat(op));
}

// Of one tensor the half of its rows, of two all of theirs.
bool gated(const Op& op) {
  const Shape &a = op.source(0), *gate = op.from[1];
  const std::uint32_t row = gate ? a.ne[0] : a.ne[0] / 2;
  const bool suit = !gate || (gate->ne == a.ne && gate->type == a.type && is_flat(*gate));
  return suit && op.made.type == a.type && is_flat(op.made) && is_flat(a) &&
         has_shape(op.made, {row, a.ne[1], a.ne[2], a.ne[3]});
}

// Images and sound. The CPU compares the places it reads with the source, not those it writes.

bool columns(const Op& op) {
  const auto& [kernel, b] = std::tie(op.source(0), op.source(1));
  const bool is_2d = op.parameter(6) == 1;
  const std::size_t channels = is_2d ? 2 : 1;
  const std::uint64_t size = times({kernel.ne[0], kernel.ne[1], is_2d ? kernel.ne[2] : 1});
  // Strides are taken for signed, and rows for packed.
  const bool read = b.type == kF32 && b.nb[2] <= kIntMax && b.nb[3] <= kIntMax &&
                    b.nb[1] <= kIntMax && is_packed(b, is_2d ? 2 : 1);
  const bool suit = kernel.ne[channels] == b.ne[channels] && (is_2d || b.ne[3] == 1);
  return read && suit && is_float(op.made) && holds_packed(op.made) &&
         has_shape(op.made,
                   {size, op.made.ne[1], is_2d ? op.made.ne[2] : b.ne[2], is_2d ? b.ne[3] : 1});
}

bool columns_summed(const Op& op) {
  const Shape& a = op.source(0);
  const int step = op.parameter(0), channels = op.parameter(1), cut = op.parameter(2);
  const bool suit =
      step > 0 && channels > 0 && cut >= 0 && a.ne[0] % static_cast<std::uint32_t>(channels) == 0;
  return suit && op.made.type == a.type && holds_packed(a) && holds_packed(op.made) &&
         has_shape(op.made, {op.made.ne[0], static_cast<std::uint64_t>(channels), 1, 1});
}

bool convolution(const Op& op) {
  const auto& [kernel, b] = std::tie(op.source(0), op.source(1));
  const bool of_type = is_float(kernel) && b.type == kF32 && op.made.type == kF32;
  return of_type && is_packed(kernel) && kernel.ne[2] == b.ne[2] && op.made.ne[2] == kernel.ne[3] &&
         op.made.ne[3] == b.ne[3];
}

bool convolution_by_channel(const Op& op) {
  const auto& [kernel, b] = std::tie(op.source(0), op.source(1));
  const bool of_type = is_float(kernel) && b.type == kF32 && op.made.type == kF32;
  const bool packed = holds_packed(kernel) && holds_packed(b) && holds_packed(op.made);
  return of_type && packed && kernel.ne[2] == 1 && kernel.ne[3] == b.ne[2] &&
         op.made.ne[2] == b.ne[2] && op.made.ne[3] == b.ne[3];
}

// The CPU counts rows by the one stride, matrices by the other.
bool pooled(const Op& op) {
  const Shape& a = op.source(0);
  const bool is_2d = op.tensor.op() == kPool2d;
  const std::uint64_t matrix = times({a.ne[0], a.ne[1], a.type == kF32 ? 4U : 2U});
  const bool stays = is_2d ? is_packed(a) && a.nb[2] == matrix : is_flat(a) && is_flat(op.made);
  return stays && is_float(a) && op.made.type == kF32 && holds_packed(op.made) &&
         (is_2d || op.made.ne[1] == a.ne[1]) && op.made.ne[2] == a.ne[2] &&
         op.made.ne[3] == a.ne[3];
}

// Places in the source are counted in F32, which is exact up to here.
bool resized(const Op& op) {
  constexpr std::uint32_t kMost = 1 << 20;
  const auto sensible = [](std::uint32_t each) { return each > 0 && each <= kMost; };
  return op.all_f32(1) && std::ranges::all_of(op.made.ne, sensible) &&
         std::ranges::all_of(op.source(0).ne, sensible);
}

bool padded(const Op& op) {
  const Shape& a = op.source(0);
  const bool wraps = op.parameter(8) != 0;
  for (std::size_t i = 0; i < a.ne.size(); ++i) {
    const std::int64_t before = op.parameter(2 * i), after = op.parameter(2 * i + 1);
    if (op.made.ne[i] != a.ne[i] + before + after) return false;
    if (wraps && (before < 0 || before > a.ne[i] || a.ne[i] == 0)) return false;
  }
  return op.all_f32(1) && holds_packed(op.made);
}

bool mirrored(const Op& op) {
  const Shape& a = op.source(0);
  const std::int64_t before = op.parameter(0), after = op.parameter(1);
  const bool suit = before >= 0 && after >= 0 && before < a.ne[0] && after < a.ne[0];
  return op.all_f32(1) && suit &&
         has_shape(op.made, {static_cast<std::uint64_t>(a.ne[0] + before + after), a.ne[1], a.ne[2],
                             a.ne[3]});
}

bool rolled(const Op& op) {
  for (std::size_t i = 0; i < op.made.ne.size(); ++i) {
    if (std::abs(std::int64_t{op.parameter(i)}) >= op.made.ne[i]) return false;
  }
  return numbers(op);
}

bool counted(const Op& op) {
  return op.made.type == kF32 && holds_packed(op.made);
}

bool embedded_steps(const Op& op) {
  const int size = op.parameter(0);
  return op.all_f32(1) && size >= 0 && op.made.ne[0] >= static_cast<std::uint32_t>(size) &&
         op.made.ne[1] >= op.source(0).ne[0];
}

bool filled(const Op& op) {
  return as_its_source(op) && op.made.type == op.source(0).type;
}

bool solved(const Op& op) {
  const auto& [a, b] = std::tie(op.source(0), op.source(1));
  const bool suit = op.made.ne == b.ne && has_shape(a, {b.ne[1], b.ne[1], b.ne[2], b.ne[3]});
  return op.all_f32(2) && suit && is_packed(a) && is_packed(b) && is_packed(op.made);
}

bool windows(const Op& op) {
  const Shape& a = op.source(0);
  const std::int64_t across = op.parameter(0), down = op.parameter(1), size = op.parameter(2);
  const bool sensible =
      across >= 0 && down >= 0 && size > 0 && across * size <= kIntMax && down * size <= kIntMax;
  const auto side = static_cast<std::uint64_t>(size);
  return op.all_f32(1) && sensible && a.ne[3] == 1 && holds_packed(a) && holds_packed(op.made) &&
         has_shape(op.made, {a.ne[0], side, side, static_cast<std::uint64_t>(across * down)});
}

bool windows_joined(const Op& op) {
  const Shape &a = op.source(0), &made = op.made;
  const std::int64_t size = op.parameter(0);
  if (size <= 0 || a.ne[1] != size || a.ne[2] != size) return false;
  const std::int64_t across = (made.ne[1] + size - 1) / size, down = (made.ne[2] + size - 1) / size;
  const bool sensible = made.ne[1] <= kIntMax - size && across * down <= a.ne[3];
  return op.all_f32(1) && sensible && holds_packed(a) && holds_packed(made) &&
         has_shape(made, {a.ne[0], made.ne[1], made.ne[2], 1});
}

bool relative_positions(const Op& op) {
  const Shape &a = op.source(0), &made = op.made;
  return a.type == kF16 && made.type == kF16 && holds_packed(a) && holds_packed(made) &&
         std::uint64_t{made.ne[1]} + made.ne[2] <= a.ne[1] + std::uint64_t{1} &&
         has_shape(made, {a.ne[0], made.ne[1], made.ne[2], 1});
}

// Of training, or of no model that llama.cpp has.
bool never(const Op& /*op*/) {
  return false;
}

struct Fit {
  std::uint32_t op;
  bool (*holds)(const Op&);
};

// Ascending.
constexpr Fit kRules[] = {
    {1, as_many},                                                 // DUP
    {2, second_repeated},                                         // ADD
    {3, add_by_ids},                                              // ADD_ID
    {4, add_of_one},                                              // ADD1
    {5, part_set},                                                // ACC
    {6, second_repeated},                                         // SUB
    {7, second_repeated},                                         // MUL
    {8, second_repeated},                                         // DIV
    {9, as_its_source},                                           // SQR
    {10, as_its_source},                                          // SQRT
    {11, as_its_source},                                          // LOG
    {12, as_its_source},                                          // SIN
    {13, as_its_source},                                          // COS
    {14, sum_of_all},                                             // SUM
    {15, sums_of_rows},                                           // SUM_ROWS
    {16, numbers},                                                // CUMSUM
    {17, sums_of_rows},                                           // MEAN
    {18, greatest_of_rows},                                       // ARGMAX
    {19, never},                                                  // COUNT_EQUAL
    {20, repeated},                                               // REPEAT
    {21, never},                                                  // REPEAT_BACK
    {22, joined},                                                 // CONCAT
    {23, never},                                                  // SILU_BACK
    {24, norm},                                                   // NORM
    {25, norm},                                                   // RMS_NORM
    {26, never},                                                  // RMS_NORM_BACK
    {27, norm_of_groups},                                         // GROUP_NORM
    {28, numbers},                                                // L2_NORM
    {29, product},                                                // MUL_MAT
    {30, product_by_ids},                                         // MUL_MAT_ID
    {31, never},                                                  // OUT_PROD
    {32, flat},                                                   // SCALE
    {33, part_set},                                               // SET
    {34, as_many},                                                // CPY
    {35, as_many},                                                // CONT
    {40, rows_got},                                               // GET_ROWS
    {41, never},                                                  // GET_ROWS_BACK
    {42, rows_set},                                               // SET_ROWS
    {43, diagonal},                                               // DIAG
    {44, flat},                                                   // DIAG_MASK_INF
    {45, flat},                                                   // DIAG_MASK_ZERO
    {46, soft_max},                                               // SOFT_MAX
    {47, never},                                                  // SOFT_MAX_BACK
    {48, rotation},                                               // ROPE
    {49, rotation},                                               // ROPE_BACK
    {50, flat},                                                   // CLAMP
    {51, never},                                                  // CONV_TRANSPOSE_1D
    {52, columns},                                                // IM2COL
    {53, never},                                                  // IM2COL_BACK
    {54, never},                                                  // IM2COL_3D
    {55, columns_summed},                                         // COL2IM_1D
    {56, convolution},                                            // CONV_2D
    {57, never},                                                  // CONV_3D
    {58, convolution_by_channel},                                 // CONV_2D_DW
    {59, never},                                                  // CONV_TRANSPOSE_2D
    {60, pooled},                                                 // POOL_1D
    {kPool2d, pooled},                                            // POOL_2D
    {62, never},                                                  // POOL_2D_BACK
    {63, resized},                                                // UPSCALE
    {64, padded},                                                 // PAD
    {65, mirrored},                                               // PAD_REFLECT_1D
    {66, rolled},                                                 // ROLL
    {67, counted},                                                // ARANGE
    {68, embedded_steps},                                         // TIMESTEP_EMBEDDING
    {69, sorted},                                                 // ARGSORT
    {70, greatest},                                               // TOP_K
    {71, flat},                                                   // LEAKY_RELU
    {72, numbers},                                                // TRI
    {73, filled},                                                 // FILL
    {74, attention},                                              // FLASH_ATTN_EXT
    {75, never},                                                  // FLASH_ATTN_BACK
    {76, state_convolved},                                        // SSM_CONV
    {77, state_scanned},                                          // SSM_SCAN
    {78, windows},                                                // WIN_PART
    {79, windows_joined},                                         // WIN_UNPART
    {80, relative_positions},                                     // GET_REL_POS
    {81, never},                                                  // ADD_REL_POS
    {82, [](const Op& op) { return recurrence(op, 5, true); }},   // RWKV_WKV6
    {83, [](const Op& op) { return recurrence(op, 4, false); }},  // GATED_LINEAR_ATTN
    {84, [](const Op& op) { return recurrence(op, 6, false); }},  // RWKV_WKV7
    {85, solved},                                                 // SOLVE_TRI
    {86, delta_net},                                              // GATED_DELTA_NET
    {87, scores},                                                 // LIGHTNING_INDEXER
    {88, hyper_mixes},                                            // DSV4_HC_COMB
    {89, hyper_before},                                           // DSV4_HC_PRE
    {90, hyper_after},                                            // DSV4_HC_POST
    {91, unary},                                                  // UNARY
    {96, never},                                                  // CROSS_ENTROPY_LOSS
    {97, never},                                                  // CROSS_ENTROPY_LOSS_BACK
    {98, never},                                                  // OPT_STEP_ADAMW
    {99, never},                                                  // OPT_STEP_SGD
    {100, gated},                                                 // GLU
};

}  // namespace

Shape::Shape(Tensor tensor) : type(tensor.type()) {
  for (int i = 0; i < Tensor::kDims; ++i) {
    ne[static_cast<std::size_t>(i)] = tensor.ne(i);
    nb[static_cast<std::size_t>(i)] = tensor.nb(i);
  }
}

bool fits(Tensor made, const Sources& from) {
  const Op op{made, Shape(made), from};
  const auto* rule = std::ranges::lower_bound(kRules, made.op(), {}, &Fit::op);
  const bool ruled = rule != std::end(kRules) && rule->op == made.op();
  // An op without a result is not computed.
  const bool is_empty = std::ranges::find(op.made.ne, 0U) != op.made.ne.end();
  return !ruled || is_empty || rule->holds(op);
}

}  // namespace dllm
