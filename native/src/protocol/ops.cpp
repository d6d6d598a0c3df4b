#include "ops.h"

#include <algorithm>
#include <array>

namespace dllm {

namespace {

// Ascending.
constexpr Ops kOps[] = {
    {{3, 6, 1}, 96, 87},  {{4, 0, 0}, 96, 87},  {{4, 0, 1}, 97, 88},  {{4, 0, 2}, 98, 89},
    {{4, 0, 3}, 101, 92}, {{5, 0, 0}, 101, 92}, {{5, 1, 0}, 101, 92}, {{6, 0, 0}, 101, 92},
    {{7, 0, 0}, 101, 92}, {{8, 0, 0}, 101, 92},
};

// By number, of the versions with so many ops. Idle: a view, which computes nothing, or an op
// that is refused anyway.
constexpr std::uint32_t kOpsNamed = 101;
constexpr std::uint8_t kIdle = 9;
constexpr std::array<std::uint8_t, kOpsNamed> kNeeded{
    9, 1, 2, 3, 2, 2, 2, 2, 2, 1,  // NONE, DUP, ADD, ADD_ID, ADD1, ACC, SUB, MUL, DIV, SQR
    1, 1, 1, 1, 1, 1, 1, 1, 1, 2,  // SQRT, LOG, SIN, COS, SUM, …_ROWS, CUMSUM, MEAN, ARGMAX, COUNT…
    1, 1, 2, 2, 1, 1, 2, 1, 1, 2,  // REPEAT, …_BACK, CONCAT, SILU_BACK, norms, MUL_MAT
    3, 2, 1, 2, 2, 1, 9, 9, 9, 9,  // MUL_MAT_ID, OUT_PROD, SCALE, SET, CPY, CONT, views
    2, 2, 2, 1, 1, 1, 1, 2, 2, 2,  // GET_ROWS, …_BACK, SET_ROWS, DIAG…, SOFT_MAX, …, ROPE, …
    1, 2, 2, 2, 2, 1, 2, 2, 2, 2,  // CLAMP, CONV_TRANSPOSE_1D, IM2COL…, COL2IM_1D, CONV_…
    1, 1, 2, 1, 1, 1, 1, 0, 1, 1,  // POOL…, UPSCALE, PAD…, ROLL, ARANGE, TIMESTEP_…, ARGSORT
    1, 1, 1, 1, 3, 4, 2, 7, 1, 1,  // TOP_K, LEAKY_RELU, TRI, FILL, FLASH_ATTN…, SSM_…, WIN_…
    1, 3, 6, 5, 7, 2, 6, 4, 3, 2,  // …REL_POS, RWKV…, GATED…, SOLVE_TRI, LIGHTNING_…, DSV4_…
    3, 1, 9, 9, 9, 9, 2, 3, 5, 3,  // DSV4_HC_POST, UNARY, custom ops, CROSS_ENTROPY…, OPT_STEP…
    1,                             // GLU
};

}  // namespace

const Ops* find_ops(Version version) {
  const auto* after = std::ranges::upper_bound(kOps, version, {}, &Ops::version);
  return after == std::begin(kOps) ? nullptr : after - 1;
}

std::optional<std::uint32_t> needed_sources(Version version, std::uint32_t op) {
  const bool named = knows_ops(version) && find_ops(version)->count == kOpsNamed;
  if (!named || op >= kOpsNamed || kNeeded[op] == kIdle) return std::nullopt;
  return kNeeded[op];
}

bool knows_ops(Version version) {
  const Ops* ops = find_ops(version);
  return ops && ops->version == version;
}

}  // namespace dllm
