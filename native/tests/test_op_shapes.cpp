// Shapes and types: what ggml makes of an op suits it, a little beside it does not.
#include "check.h"
#include "guard/op_shapes.h"
#include "protocol/tensor.h"
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
  const dllm::TensorType* type = dllm::tensor_type(part.type);
  std::uint32_t stride = type->block_bytes;
  for (std::size_t i = 0; i < part.nb.size(); ++i) {
    transcript::write(made, kStridesAt + 4 * i, part.nb == Ne{} ? stride : part.nb[i]);
    stride *= i == 0 ? part.ne[0] / type->block : part.ne[i];
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
const Part kHeads{kF32, {4, 3, 6, 1}}, kBonus{kF32, {4, 3, 1, 1}}, kState{kF32, {48, 2, 1, 1}};

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
    // 25: attention with one number a head, then the greatest with one.
    {74,
     {kF32, {16, 4, 6, 1}},
     {{kF32, {8, 6, 4, 1}},
      {kF16, {8, 64, 2, 1}},
      {kF16, {16, 64, 2, 1}},
      {kF16, {64, 6, 1, 1}},
      {kF32, {4, 1, 1, 1}}}},
    {46, kRows, {kRows, kMask, {kF32, {4, 1, 1, 1}}}},
    // 27: a part set behind two rows, a part added, joined along rows, a sum, a diagonal.
    {33, kRows, {kRows, {kF32, {8, 4, 1, 1}}}, {32, 192, 768, 64}},
    {5, kRows, {kRows, {kF32, {8, 4, 1, 1}}}, {32, 192, 768, 64}},
    {22, {kF16, {8, 9, 1, 1}}, {kMask, {kF16, {8, 3, 1, 1}}}, {1}},
    {14, {kF32, {1, 1, 1, 1}}, {kRows}},
    {43, {kF32, {8, 8, 4, 1}}, {{kF32, {8, 1, 4, 1}}}},
    {27, kRows, {kRows}, {2}},
    {16, kRows, {kRows}},
    // 34: states of a sequence.
    {76, {kF32, {6, 5, 2, 1}}, {{kF32, {8, 6, 2, 1}}, {kF32, {4, 6, 1, 1}}}},
    {77,
     {kF32, {3 * 4 * 5 * 2 + 2 * 16 * 3 * 4, 1, 1, 1}},
     {{kF32, {16, 3, 4, 9}},
      {kF32, {3, 4, 5, 2}},
      {kF32, {4, 5, 2, 1}},
      {kF32, {1, 4, 1, 1}},
      {kF32, {16, 2, 5, 2}},
      {kF32, {16, 2, 5, 2}},
      {kI32, {2, 1, 1, 1}}},
     {1}},
    {86,
     {kF32, {12, 2 * (5 + 4), 1, 1}},
     {{kF32, {4, 1, 5, 2}},
      {kF32, {4, 1, 5, 2}},
      {kF32, {4, 3, 5, 2}},
      {kF32, {1, 3, 5, 2}},
      {kF32, {1, 3, 5, 2}},
      {kF32, {4, 4, 3, 2}}},
     {1}},
    {82, {kF32, {12, 6 + 2 * 4, 1, 1}}, {kHeads, kHeads, kHeads, kBonus, kHeads, kState}},
    {83, {kF32, {12, 6 + 2 * 4, 1, 1}}, {kHeads, kHeads, kHeads, kHeads, kState}},
    {84, {kF32, {12, 6 + 2 * 4, 1, 1}}, {kHeads, kHeads, kHeads, kHeads, kHeads, kHeads, kState}},
    {85, {kF32, {8, 4, 2, 1}}, {{kF32, {4, 4, 2, 1}}, {kF32, {8, 4, 2, 1}}}},
    // 41: a score of what to look at, and mixed streams.
    {87,
     {kF32, {64, 6, 1, 1}},
     {{kF32, {8, 4, 6, 1}}, {kF16, {8, 1, 64, 1}}, {kF32, {4, 6, 1, 1}}, {kF16, {64, 6, 1, 1}}}},
    {88,
     {kF32, {4, 4, 6, 1}},
     {{kF32, {24, 6, 1, 1}}, {kF32, {3, 1, 1, 1}}, {kF32, {24, 1, 1, 1}}},
     {0, 1}},
    {89, {kF32, {8, 6, 1, 1}}, {{kF32, {8, 4, 6, 1}}, {kF32, {4, 6, 1, 1}}}},
    {90, {kF32, {8, 4, 6, 1}}, {{kF32, {8, 6, 1, 1}}, {kF32, {8, 4, 6, 1}}, {kF32, {4, 6, 1, 1}}}},
    // 45: images and sound.
    {52,
     {kF16, {27, 6, 6, 2}},
     {{kF16, {3, 3, 3, 8}}, {kF32, {8, 8, 3, 2}}},
     {1, 1, 0, 0, 1, 1, 1}},
    {52, {kF32, {9, 6, 2, 1}}, {{kF16, {3, 3, 8, 1}}, {kF32, {8, 3, 2, 1}}}, {1, 1, 0, 0, 1, 1, 0}},
    {55, {kF32, {9, 4, 1, 1}}, {{kF32, {12, 4, 1, 1}}}, {2, 4, 0}},
    {56, {kF32, {6, 6, 5, 2}}, {{kF16, {3, 3, 4, 5}}, {kF32, {8, 8, 4, 2}}}, {1, 1, 0, 0, 1, 1}},
    {58, {kF32, {6, 6, 4, 2}}, {{kF16, {3, 3, 1, 4}}, {kF32, {8, 8, 4, 2}}}, {1, 1, 0, 0, 1, 1}},
    {60, {kF32, {4, 6, 4, 2}}, {kRows}, {1, 2, 2, 0}},
    {61, {kF32, {4, 3, 4, 2}}, {kRows}, {1, 2, 2, 2, 2, 0, 0}},
    {63, {kF32, {16, 12, 4, 2}}, {kRows}},
    {64, {kF32, {10, 6, 4, 2}}, {kRows}, {1, 1}},
    {65, {kF32, {13, 6, 4, 2}}, {kRows}, {2, 3}},
    {66, kRows, {kRows}, {3, 0xffffffff}},
    {67, kRow, {}},
    {68, {kF32, {8, 6, 1, 1}}, {{kF32, {6, 1, 1, 1}}}, {8, 100}},
    {73, kRows, {kRows}},
    {78, {kF32, {8, 3, 3, 4}}, {{kF32, {8, 5, 6, 1}}}, {2, 2, 3}},
    {79, {kF32, {8, 5, 6, 1}}, {{kF32, {8, 3, 3, 4}}}, {3}},
    {80, {kF16, {8, 4, 4, 1}}, {{kF16, {8, 7, 1, 1}}}},
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
    // A mask of fewer cells, of fewer tokens; values of fewer cells, of too many heads; no F32.
    {21, 3, {kF16, {63, 6, 1, 1}}},
    {21, 3, {kF16, {64, 5, 1, 1}}},
    {21, 2, {kF16, {16, 63, 2, 1}}},
    {21, 2, {kF16, {16, 64, 3, 1}}},
    {21, 0, {kF16, {8, 6, 4, 1}}},
    {25, 4, {kF32, {3, 1, 1, 1}}},
    {26, 2, {kF16, {4, 1, 1, 1}}},
    {27, 1, {kF32, {8, 47, 1, 1}}},
    {27, 1, {kF32, {8, 4, 1, 3}}},
    {27, -1, {kI32, {8, 6, 4, 2}}},
    {28, 1, {kF32, {8, 47, 1, 1}}},
    {29, 1, {kF16, {7, 3, 1, 1}}},
    {29, -1, {kF16, {8, 8, 1, 1}}},
    {30, -1, {kF32, {2, 1, 1, 1}}},
    {31, 0, {kF32, {8, 2, 4, 1}}},
    {32, -1, {kF32, {8, 6, 4, 1}}},
    {33, 0, {kF16, {8, 6, 4, 2}}},
    {34, 0, {kF32, {7, 6, 2, 1}}},
    {34, 1, {kF32, {4, 5, 1, 1}}},
    {34, 1, {kF32, {4, 6, 1, 1}, {4, 64, 384, 384}}},
    {35, 0, {kF32, {16, 3, 4, 1}, {4, 64, 192, 1 << 20}}},
    {35, 2, {kF32, {4, 4, 2, 1}}},
    {35, 4, {kF32, {16, 3, 5, 2}}},
    {35, 6, {kI32, {1, 1, 1, 1}}},
    {35, -1, {kF32, {503, 1, 1, 1}}},
    {36, 0, {kF32, {3, 1, 5, 2}}},
    {36, 1, {kF32, {4, 1, 4, 2}}},
    {36, 3, {kF32, {2, 3, 5, 2}}},
    {36, 5, {kF32, {4, 4, 3, 1}}},
    {36, -1, {kF32, {12, 17, 1, 1}}},
    {37, 3, {kF32, {4, 2, 1, 1}}},
    {37, 5, {kF32, {48, 4, 1, 1}}},
    {38, 3, kBonus},
    {39, 6, {kF32, {47, 2, 1, 1}}},
    {39, -1, {kF32, {12, 13, 1, 1}}},
    {40, 0, {kF32, {4, 4, 1, 1}}},
    {41, 2, {kF32, {4, 5, 1, 1}}},
    {41, 3, {kF16, {63, 6, 1, 1}}},
    {42, 1, {kF32, {2, 1, 1, 1}}},
    {43, 1, {kF32, {4, 5, 1, 1}}},
    {44, 2, {kF32, {4, 5, 1, 1}}},
    {45, -1, {kF16, {27, 6, 6, 1}}},
    {45, 1, {kF32, {8, 8, 3, 2}, {4, 32, 256, 1U << 31}}},
    {45, 1, {kF32, {8, 8, 3, 2}, {4, 4, 256, 768}}},
    {46, -1, {kF32, {9, 6, 1, 1}}},
    {47, -1, {kF32, {9, 3, 1, 1}}},
    {47, 0, {kF16, {12, 4, 1, 1}}},
    {48, -1, {kF32, {6, 6, 4, 2}}},
    {48, 0, {kF16, {3, 3, 3, 5}}},
    {49, -1, {kF32, {6, 6, 4, 1}}},
    {50, -1, {kF32, {4, 5, 4, 2}}},
    {51, -1, {kF32, {4, 3, 4, 1}}},
    {51, 0, {kF32, {8, 6, 4, 2}, {4, 32, 4, 768}}},
    {52, 0, {kF32, {8, 0, 4, 2}}},
    {52, -1, {kF32, {16, (1 << 20) + 1, 4, 2}}},
    {53, -1, {kF32, {11, 6, 4, 2}}},
    {54, -1, {kF32, {14, 6, 4, 2}}},
    {55, -1, {kF32, {8, 6, 4, 1}}},
    {56, -1, {kI32, {8, 1, 1, 1}}},
    {57, -1, {kF32, {8, 5, 1, 1}}},
    {58, -1, {kF16, {8, 6, 4, 2}}},
    {59, -1, {kF32, {8, 3, 3, 5}}},
    {59, 0, {kF16, {8, 5, 6, 1}}},
    {60, 0, {kF32, {8, 3, 3, 3}}},
    {61, 0, {kF16, {8, 6, 1, 1}}},
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
  CHECK(!suits({27, kRows, {kRows}, {0}}));
}

TEST(parameters_that_lead_out_of_a_tensor_do_not) {
  constexpr std::uint32_t kMinus = 0xfffffffe;
  struct Led {
    std::size_t right;
    std::vector<std::uint32_t> parameters;
  };
  const std::vector<Led> all = {
      {27, {32, 192, 768, 1536}},    // SET behind the end
      {27, {32, 192, 768, kMinus}},  // or before
      {28, {kMinus, 192, 768, 64}},  // ACC of rows that go back
      {29, {4}},                     // CONCAT of no dimension
      {35, {2}},                     // SSM_SCAN of more snapshots
      {36, {2}},                     // GATED_DELTA_NET
      {43, {0, 1}},                  // DSV4_HC_PRE with a gate
      {45, {1, 1, 0, 0, 1, 1, 0}},   // IM2COL of rows
      {47, {0, 4, 0}},               // COL2IM_1D without a step
      {47, {2, 5, 0}},
      {53, {2, 1}},                            // PAD
      {53, {kMinus, 4, 0, 0, 0, 0, 0, 0, 1}},  // round a ring
      {54, {8, 0xfffffffd}},                   // PAD_REFLECT_1D
      {55, {8}},                               // ROLL
      {57, {9}},                               // TIMESTEP_EMBEDDING
      {57, {0xffffffff}},
      {59, {2, 2, 2}},  // WIN_PART
      {60, {0}},        // WIN_UNPART
  };
  for (const Led& each : all) {
    Case wrong = kRight[each.right];
    CHECK(suits(wrong));
    wrong.parameters = each.parameters;
    CHECK(!suits(wrong));
    if (suits(wrong)) std::fprintf(stderr, "  case %zu\n", each.right);
  }
  const Part turned{kF32, {8, 2, 6, 1}};
  std::vector<std::uint32_t> offset(16);
  offset[1] = 6;
  offset[15] = 4;
  CHECK(!suits({48, turned, {turned, kIds}, offset}));
  // Positions in a column, of which all but one would lie behind the tensor.
  CHECK(!suits({48, turned, {turned, {kI32, {1, 6, 1, 1}, {4, 0, 0, 0}}}, {0, 8, 2}}));
}

TEST(ops_that_no_model_has_suit_nothing) {
  for (const std::uint32_t op :
       {19, 21, 23, 26, 31, 41, 47, 51, 53, 54, 57, 59, 62, 75, 81, 96, 97, 98, 99}) {
    CHECK(!suits({op, kRows, {kRows, kRows, kRows, kRows, kRows}}));
  }
}

// A hostile shape whose elements overlap is as large as 64 bits say, not as their overflow does.
TEST(products_do_not_overflow) {
  constexpr std::uint32_t kVast = 1U << 31;
  const Part vast{kF32, {4, 1, kVast, kVast}, {4, 16, 0, 0}};
  const Part gates{kF32, {1, 1, kVast, kVast}, {4, 4, 4, 0}};
  const Part state{kF32, {4, 4, 1, kVast}, {4, 16, 64, 64}};
  CHECK(!suits({86, {kF32, {4, 0x80000000, 1, 1}}, {vast, vast, vast, gates, gates, state}, {1}}));
  CHECK(!suits({77,
                {kF32, {8, 1, 1, 1}},
                {state, vast, gates, {kF32, {1, 1, 1, 1}}, vast, vast, {kI32, {kVast, 1, 1, 1}}},
                {1}}));
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

TEST(an_op_without_a_result_suits_anything) {
  CHECK(suits({29, {kF32, {0, 6, 4, 2}}, {kRow, kRows}}));
  // 2^64 elements are not none.
  const Part vast{kF32, {1U << 16, 1U << 16, 1U << 16, 1U << 16}};
  CHECK(!suits({29, vast, {kRow, kRows}}));
}

RUN_TESTS()
