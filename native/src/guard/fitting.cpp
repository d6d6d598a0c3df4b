#include "fitting.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <tuple>

#include "protocol/tensor_types.h"

namespace dllm {

namespace {

constexpr std::uint32_t kF32 = Tensor::kF32, kF16 = 1, kI32 = 26, kI64 = 27;
// Where a rotation has the number of its dimensions; behind it, among others, its mode.
constexpr std::size_t kRopeDimsAt = 4, kRopeModeAt = 8;
constexpr std::uint32_t kRopeSections = 8;  // the bit of a mode with four positions a token
constexpr std::uint32_t kUnaryKinds = 64;   // some 22 so far; others abort a worker
constexpr std::array<std::uint32_t, 4> kFlatUnary{8, 9, 10, 14};  // GELU, _QUICK, SILU, GELU_ERF

struct Op {
  Tensor tensor;
  Shape made;
  const Sources& from;

  [[nodiscard]] const Shape& source(std::size_t i) const { return *from[i]; }
  [[nodiscard]] std::uint32_t parameter(std::size_t at) const {
    return load<std::uint32_t>(tensor.bytes() + Tensor::kOpParametersAt + at);
  }
};

bool divides(std::uint32_t part, std::uint32_t whole) {
  return part == 0 ? whole == 0 : whole % part == 0;
}

// ggml_can_repeat
bool repeats(const Shape& part, const Shape& whole) {
  return std::ranges::equal(part.ne, whole.ne, divides);
}

std::uint64_t elements(const Shape& shape) {
  std::uint64_t product = 1;
  for (const std::uint32_t each : shape.ne) product *= each;
  return product;
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

bool has_shape(const Shape& shape, const std::array<std::uint32_t, Tensor::kDims>& ne) {
  return shape.ne == ne;
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

bool second_repeated(const Op& op) {
  return as_its_source(op) && repeats(op.source(1), op.source(0));
}

bool add_of_one(const Op& op) {
  return as_its_source(op) && elements(op.source(1)) == 1;
}

bool add_by_ids(const Op& op) {
  const auto& [a, b, ids] = std::tie(op.source(0), op.source(1), op.source(2));
  const bool chosen = a.ne[1] == ids.ne[0] && a.ne[2] == ids.ne[1] && ids.type == kI32;
  return as_its_source(op) && a.ne[0] == b.ne[0] && chosen;
}

bool sums_of_rows(const Op& op) {
  const Shape& a = op.source(0);
  return has_shape(op.made, {1, a.ne[1], a.ne[2], a.ne[3]});
}

bool greatest_of_rows(const Op& op) {
  return op.made.type == kI32 && has_shape(op.made, {op.source(0).ne[1], 1, 1, 1});
}

bool repeated(const Op& op) {
  return op.made.type == op.source(0).type && repeats(op.source(0), op.made);
}

bool numbers(const Op& op) {
  return as_its_source(op) && op.made.type == kF32 && op.source(0).type == kF32;
}

bool norm(const Op& op) {
  const float least = load<float>(op.tensor.bytes() + Tensor::kOpParametersAt);
  return numbers(op) && least >= 0;
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

bool soft_max(const Op& op) {
  const Shape& a = op.source(0);
  const Shape* mask = op.from[1];
  const bool masked = !mask || ((mask->type == kF16 || mask->type == kF32) &&
                                mask->ne[0] == a.ne[0] && mask->ne[1] >= a.ne[1] &&
                                divides(mask->ne[2], a.ne[2]) && divides(mask->ne[3], a.ne[3]));
  return numbers(op) && masked;
}

bool rotation(const Op& op) {
  const auto& [a, positions] = std::tie(op.source(0), op.source(1));
  const std::uint64_t each = (op.parameter(kRopeModeAt) & kRopeSections) != 0 ? 4 : 1;
  const bool suit = positions.type == kI32 && elements(positions) == each * a.ne[2];
  const std::uint32_t dims = op.parameter(kRopeDimsAt);
  const Shape* factors = op.from[2];
  const bool scaled = !factors || (factors->type == kF32 && factors->ne[0] >= dims / 2);
  return as_its_source(op) && suit && scaled && dims <= a.ne[0] && dims % 2 == 0;
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
  const bool suit =
      q.ne[0] == k.ne[0] && divides(k.ne[2], q.ne[2]) && q.ne[3] == k.ne[3] && q.ne[3] == v.ne[3];
  const Shape* mask = op.from[3];
  const bool masked = !mask || (mask->type == kF16 && divides(mask->ne[2], q.ne[2]) &&
                                divides(mask->ne[3], q.ne[3]));
  return suit && masked && op.made.type == kF32 &&
         has_shape(op.made, {v.ne[0], q.ne[2], q.ne[1], q.ne[3]});
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

struct Fit {
  std::uint32_t op;
  bool (*holds)(const Op&);
};

// Ascending.
constexpr Fit kRules[] = {
    {1, as_many},            // DUP
    {2, second_repeated},    // ADD
    {3, add_by_ids},         // ADD_ID
    {4, add_of_one},         // ADD1
    {6, second_repeated},    // SUB
    {7, second_repeated},    // MUL
    {8, second_repeated},    // DIV
    {9, as_its_source},      // SQR
    {10, as_its_source},     // SQRT
    {11, as_its_source},     // LOG
    {12, as_its_source},     // SIN
    {13, as_its_source},     // COS
    {15, sums_of_rows},      // SUM_ROWS
    {16, as_its_source},     // CUMSUM
    {17, sums_of_rows},      // MEAN
    {18, greatest_of_rows},  // ARGMAX
    {20, repeated},          // REPEAT
    {24, norm},              // NORM
    {25, norm},              // RMS_NORM
    {27, as_its_source},     // GROUP_NORM
    {28, as_its_source},     // L2_NORM
    {29, product},           // MUL_MAT
    {30, product_by_ids},    // MUL_MAT_ID
    {32, flat},              // SCALE
    {34, as_many},           // CPY
    {35, as_many},           // CONT
    {40, rows_got},          // GET_ROWS
    {42, rows_set},          // SET_ROWS
    {44, flat},              // DIAG_MASK_INF
    {45, flat},              // DIAG_MASK_ZERO
    {46, soft_max},          // SOFT_MAX
    {48, rotation},          // ROPE
    {50, flat},              // CLAMP
    {69, sorted},            // ARGSORT
    {70, greatest},          // TOP_K
    {71, flat},              // LEAKY_RELU
    {74, attention},         // FLASH_ATTN_EXT
    {91, unary},             // UNARY
    {100, gated},            // GLU
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
