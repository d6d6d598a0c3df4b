// Shapes and types: what ggml makes of an op suits it, a little beside it does not.
#include "check.h"
#include "guard/fitting.h"
#include "transcript.h"

using dllm::Shape;
using dllm::Sources;
using dllm::Tensor;

namespace {

constexpr std::uint32_t kF32 = 0, kF16 = 1, kQ8 = 8, kI32 = 26, kI64 = 27;

using Ne = std::array<std::uint32_t, Tensor::kDims>;

struct Part {
  std::uint32_t type;
  Ne ne;
  Ne nb = {};  // packed when all are 0
};

// An op, its result, its sources, and its first parameters.
struct Case {
  std::uint32_t op;
  Part made;
  std::vector<Part> from;
  std::vector<std::uint32_t> parameters = {};
};

std::string packed(const Part& part, std::uint32_t op = 0) {
  transcript::TensorSpec spec;
  spec.type = part.type;
  spec.ne.assign(part.ne.begin(), part.ne.end());
  spec.op = op;
  std::string made = transcript::tensor(spec);
  constexpr std::size_t kStridesAt = Tensor::kShapeAt + Tensor::kShapeBytes / 2;
  if (part.nb == Ne{}) return made;
  for (std::size_t i = 0; i < part.nb.size(); ++i) {
    transcript::write(made, kStridesAt + 4 * i, part.nb[i]);
  }
  return made;
}

const std::uint8_t* at(const std::string& bytes) {
  return reinterpret_cast<const std::uint8_t*>(bytes.data());
}

bool suits(const Case& each) {
  std::string made = packed(each.made, each.op);
  for (std::size_t i = 0; i < each.parameters.size(); ++i) {
    transcript::write(made, Tensor::kOpParametersAt + 4 * i, each.parameters[i]);
  }
  std::vector<Shape> shapes;
  for (const Part& part : each.from) shapes.emplace_back(Tensor(at(packed(part))));
  Sources sources{};
  for (std::size_t i = 0; i < shapes.size(); ++i) sources[i] = &shapes[i];
  return dllm::fits(Tensor(at(made)), sources);
}

const Part kRow{kF32, {8, 1, 1, 1}}, kRows{kF32, {8, 6, 4, 2}}, kIds{kI32, {6, 1, 1, 1}};
const Part kMask{kF16, {8, 6, 1, 1}};

// As llama.cpp makes them.
const std::vector<Case> kRight = {
    {1, kRows, {{kF16, {4, 12, 8, 1}}}},
    {2, kRows, {kRows, kRow}},
    {2, kRows, {kRows, {kF32, {8, 3, 2, 1}}}},
    {3, {kF32, {8, 2, 3, 1}}, {{kF32, {8, 2, 3, 1}}, {kF32, {8, 9, 1, 1}}, {kI32, {2, 3, 1, 1}}}},
    {4, kRows, {kRows, {kF32, {1, 1, 1, 1}}}},
    {7, kRows, {kRows, kRow}},
    {15, {kF32, {1, 6, 4, 2}}, {kRows}},
    {18, {kI32, {6, 1, 1, 1}}, {{kF32, {8, 6, 1, 1}}}},
    {20, kRows, {kRow}},
    {25, kRows, {kRows}, {0x358637bd}},
    {29, {kF32, {5, 6, 4, 2}}, {{kQ8, {32, 5, 2, 1}}, {kF32, {32, 6, 4, 2}}}},
    {30, {kF32, {5, 2, 6, 1}}, {{kQ8, {32, 5, 9, 1}}, {kF32, {32, 1, 6, 1}}, {kI32, {2, 6, 1, 1}}}},
    {34, kRows, {{kF16, {48, 8, 1, 1}}, kRows}},
    {40, {kF32, {32, 6, 1, 1}}, {{kQ8, {32, 99, 1, 1}}, kIds}},
    {42, {kF16, {8, 99, 1, 1}}, {{kF32, {8, 6, 1, 1}}, {kI64, {6, 1, 1, 1}}}},
    {46, kRows, {kRows}},
    {46, kRows, {kRows, kMask}},
    {48, {kF32, {8, 2, 6, 1}}, {{kF32, {8, 2, 6, 1}}, kIds}, {0, 8, 2}},
    {48, {kF32, {8, 2, 6, 1}}, {{kF32, {8, 2, 6, 1}}, {kI32, {24, 1, 1, 1}}}, {0, 8, 40}},
    {69, {kI32, {8, 6, 1, 1}}, {{kF32, {8, 6, 1, 1}}}},
    {70, {kI32, {3, 6, 1, 1}}, {{kF32, {8, 6, 1, 1}}}},
    {74,
     {kF32, {16, 4, 6, 1}},
     {{kF32, {8, 6, 4, 1}}, {kF16, {8, 64, 2, 1}}, {kF16, {16, 64, 2, 1}}, {kF16, {64, 6, 1, 1}}}},
    {91, kRows, {kRows}, {10}},
    {100, kRows, {kRows, kRows}},
    {100, {kF32, {4, 6, 4, 2}}, {kRows}},
};

// What of a right case, changed alone, does not suit its op: a source (or the result: -1) and how.
struct Wrong {
  std::size_t right;
  int which;
  Part part;
};

const std::vector<Wrong> kWrong = {
    {0, 0, {kF16, {4, 12, 8, 2}}},
    {1, 1, {kF32, {3, 1, 1, 1}}},
    {1, -1, {kF32, {16, 6, 4, 2}}},
    {2, 1, {kF32, {8, 4, 2, 1}}},
    {3, 2, {kF32, {2, 3, 1, 1}}},
    {3, 1, {kF32, {4, 9, 1, 1}}},
    {4, 1, kRow},
    {5, 1, {kF32, {16, 1, 1, 1}}},
    {6, -1, kRows},
    {7, -1, {kF32, {6, 1, 1, 1}}},
    {8, 0, {kF32, {3, 1, 1, 1}}},
    {9, 0, {kF16, {8, 6, 4, 2}}},
    {9, -1, {kF32, {9, 6, 4, 2}}},
    {10, 1, {kF32, {64, 6, 4, 2}}},
    {10, 1, {kF32, {32, 6, 3, 2}}},
    {10, -1, {kF16, {5, 6, 4, 2}}},
    {10, -1, {kF32, {5, 7, 4, 2}}},
    {11, 2, {kF32, {2, 6, 1, 1}}},
    {11, 2, {kI32, {2, 5, 1, 1}}},
    {12, -1, kRow},
    {13, 1, {kF32, {6, 1, 1, 1}}},
    {13, -1, {kF32, {32, 7, 1, 1}}},
    {14, 0, {kQ8, {8, 6, 1, 1}}},
    {14, 1, {kI64, {5, 1, 1, 1}}},
    {14, 0, {kF32, {16, 6, 1, 1}}},
    {15, 0, {kI32, {8, 6, 4, 2}}},
    {16, 1, {kF16, {9, 6, 1, 1}}},
    {16, 1, {kF16, {8, 5, 1, 1}}},
    {16, 1, {kF16, {8, 6, 3, 1}}},
    {17, 1, {kI32, {5, 1, 1, 1}}},
    {17, 1, {kF32, {6, 1, 1, 1}}},
    {17, 0, {kF32, {8, 2, 5, 1}}},
    {18, 1, kIds},
    {19, -1, {kF32, {8, 6, 1, 1}}},
    {20, -1, {kI32, {9, 6, 1, 1}}},
    {21, 3, {kF32, {64, 6, 1, 1}}},
    {21, 1, {kF16, {16, 64, 2, 1}}},
    {21, 1, {kF16, {8, 64, 3, 1}}},
    {21, -1, {kF32, {16, 4, 7, 1}}},
    {22, 0, kRow},
    {23, 1, kRow},
    {24, -1, kRows},
};

Case changed(const Wrong& wrong) {
  Case made = kRight[wrong.right];
  (wrong.which < 0 ? made.made : made.from[static_cast<std::size_t>(wrong.which)]) = wrong.part;
  return made;
}

}  // namespace

TEST(what_ggml_makes_suits) {
  for (std::size_t i = 0; i < kRight.size(); ++i) {
    CHECK(suits(kRight[i]));
    if (!suits(kRight[i])) std::fprintf(stderr, "  case %zu\n", i);
  }
}

TEST(what_is_a_little_beside_it_does_not) {
  for (std::size_t i = 0; i < kWrong.size(); ++i) {
    CHECK(!suits(changed(kWrong[i])));
    if (suits(changed(kWrong[i]))) std::fprintf(stderr, "  case %zu\n", i);
  }
}

TEST(parameters_that_abort_a_worker_do_not) {
  constexpr std::uint32_t kMinusOne = 0xbf800000, kNotANumber = 0x7fc00000;
  CHECK(!suits({25, kRows, {kRows}, {kMinusOne}}));
  CHECK(!suits({25, kRows, {kRows}, {kNotANumber}}));
  CHECK(!suits({91, kRows, {kRows}, {4000}}));
  const Part turned{kF32, {8, 2, 6, 1}};
  CHECK(!suits({48, turned, {turned, kIds}, {0, 10, 2}}));
  CHECK(!suits({48, turned, {turned, kIds}, {0, 7, 2}}));
}

TEST(ops_that_ignore_strides_do_not_leave_their_tensors) {
  struct Flat {
    std::uint32_t op, kind = 0, made_type = kF32;
  };
  // SCALE, DIAG_MASK_INF, CLAMP, ARGSORT, TOP_K, LEAKY_RELU, SILU, GLU
  const std::vector<Flat> ops = {{32},          {44}, {50},     {69, 0, kI32},
                                 {70, 0, kI32}, {71}, {91, 10}, {100}};
  const Ne ne = {8, 1, 4, 2}, packed = {4, 32, 32, 128};
  // A huge step where there is one row, one matrix too far apart, rows all at one place.
  const std::vector<Ne> wrong = {{4, 1U << 30, 32, 128}, {4, 32, 256, 32}, {4, 0, 0, 0}};
  for (const Flat& each : ops) {
    const auto with = [&](const Ne& source, const Ne& made) {
      std::vector<Part> from = {{kF32, ne, source}};
      if (each.op == 100) from.push_back(from[0]);
      return suits({each.op, {each.made_type, ne, made}, from, {each.kind}});
    };
    CHECK(with(packed, packed));
    // Gaps between rows, as views of a fused tensor have.
    CHECK(with({4, 64, 64, 256}, packed));
    for (const Ne& bad : wrong) CHECK(!with(bad, packed) && !with(packed, bad));
  }
  // Numbers wider than the tensor says.
  CHECK(!suits({71, {kF16, ne}, {{kF32, ne}}}));
  // What follows every stride may have any: SIGMOID.
  CHECK(suits({91, {kF32, ne}, {{kF32, ne, wrong[0]}}, {7}}));
}

TEST(an_op_without_a_result_and_one_not_ruled_suit_anything) {
  CHECK(suits({29, {kF32, {0, 6, 4, 2}}, {kRow, kRows}}));
  CHECK(suits({77, kRow, {kRows, kRows, kRows, kRows, kRows, kRows, kRows}}));
  // 2^64 elements are not none.
  const Part vast{kF32, {1U << 16, 1U << 16, 1U << 16, 1U << 16}};
  CHECK(!suits({29, vast, {kRow, kRows}}));
}

RUN_TESTS()
