#include "commands.h"

#include <algorithm>
#include <array>

namespace dllm {

namespace {

constexpr std::uint8_t kFirstMajor = 1;
constexpr std::uint8_t kLastMajor = 8;
constexpr Version kStart{1, 0, 0};
constexpr Version kEnd{kLastMajor + 1, 0, 0};
constexpr Version v2_0{2, 0, 0}, v3_0{3, 0, 0}, v3_5{3, 5, 0}, v3_6{3, 6, 0}, v4_0{4, 0, 0},
    v5_0{5, 0, 0}, v5_1{5, 1, 0}, v6_0{6, 0, 0}, v7_0{7, 0, 0}, v8_0{8, 0, 0};
constexpr Version kKnown[] = {kStart, v2_0, v3_0, v3_5, v3_6, v4_0, v5_0, v5_1, v6_0, v7_0, v8_0};
constexpr std::uint32_t kT = kTensorBytes;
constexpr auto kNone = Reply::kNone;
constexpr auto kFixed = Reply::kFixed;

// id, name, from, before, fixed bytes, data follows, reply. An empty reply is fixed, 0 bytes.
constexpr Rule kRules[] = {
    {kAllocBuffer, "ALLOC_BUFFER", kStart, v3_0, 8, false, kFixed, 16},
    {kAllocBuffer, "ALLOC_BUFFER", v3_0, kEnd, 12, false, kFixed, 16},
    {kGetAlignment, "GET_ALIGNMENT", kStart, v3_0, 0, false, kFixed, 8},
    {kGetAlignment, "GET_ALIGNMENT", v3_0, kEnd, 4, false, kFixed, 8},
    {kGetMaxSize, "GET_MAX_SIZE", kStart, v3_0, 0, false, kFixed, 8},
    {kGetMaxSize, "GET_MAX_SIZE", v3_0, kEnd, 4, false, kFixed, 8},
    {kBufferGetBase, "BUFFER_GET_BASE", kStart, kEnd, 8, false, kFixed, 8},
    {kFreeBuffer, "FREE_BUFFER", kStart, v6_0, 8, false, kFixed, 0},
    {kFreeBuffer, "FREE_BUFFER", v6_0, kEnd, 8, false, kNone},
    {kBufferClear, "BUFFER_CLEAR", kStart, v6_0, 9, false, kFixed, 0},
    {kBufferClear, "BUFFER_CLEAR", v6_0, kEnd, 9, false, kNone},
    {kSetTensor, "SET_TENSOR", kStart, v2_0, kT + 8, true, kFixed, 0},
    {kSetTensor, "SET_TENSOR", v2_0, v7_0, kT + 8, true, kNone},
    {kSetTensor, "SET_TENSOR", v7_0, kEnd, kT + 9, true, kNone},
    {kSetTensorHash, "SET_TENSOR_HASH", kStart, kEnd, kT + 16, false, kFixed, 1},
    {kGetTensor, "GET_TENSOR", kStart, kEnd, kT + 16, false, Reply::kTensor},
    {kCopyTensor, "COPY_TENSOR", kStart, kEnd, 2 * kT, false, kFixed, 1},
    // Only up to the number of nodes; nodes and tensors follow.
    {kGraphCompute, "GRAPH_COMPUTE", kStart, v3_0, 4, true, kFixed, 1},
    {kGraphCompute, "GRAPH_COMPUTE", v3_0, v3_5, 8, true, kFixed, 1},
    {kGraphCompute, "GRAPH_COMPUTE", v3_5, v8_0, 8, true, kNone},
    {kGraphCompute, "GRAPH_COMPUTE", v8_0, kEnd, 16, true, kNone},
    {kGetDeviceMemory, "GET_DEVICE_MEMORY", kStart, v3_0, 0, false, kFixed, 16},
    {kGetDeviceMemory, "GET_DEVICE_MEMORY", v3_0, kEnd, 4, false, kFixed, 16},
    {kInitTensor, "INIT_TENSOR", kStart, v6_0, kT, false, kFixed, 0},
    {kInitTensor, "INIT_TENSOR", v6_0, kEnd, kT, false, kNone},
    {kGetAllocSize, "GET_ALLOC_SIZE", kStart, v3_0, kT, false, kFixed, 8},
    {kGetAllocSize, "GET_ALLOC_SIZE", v3_0, v3_6, 4 + kT, false, kFixed, 8},
    {kGetAllocSize, "GET_ALLOC_SIZE", v3_6, kEnd, 4 + 11 * kT, false, kFixed, 8},
    {kHello, "HELLO", kStart, v4_0, 0, false, Reply::kHello},
    {kHello, "HELLO", v4_0, kEnd, 24, false, Reply::kHello},
    {kDeviceCount, "DEVICE_COUNT", v3_0, kEnd, 0, false, kFixed, 4},
    {kGraphRecompute, "GRAPH_RECOMPUTE", v3_5, v8_0, 4, false, kNone},
    {kGraphRecompute, "GRAPH_RECOMPUTE", v8_0, kEnd, 12, false, kNone},
    {kMemsetTensor, "MEMSET_TENSOR", v5_0, v6_0, kT + 17, false, kFixed, 0},
    {kMemsetTensor, "MEMSET_TENSOR", v6_0, kEnd, kT + 17, false, kNone},
    {kSetTensor2d, "SET_TENSOR_2D", v8_0, kEnd, kT + 32, true, kNone},
    {kGetTensor2d, "GET_TENSOR_2D", v8_0, kEnd, kT + 32, false, Reply::kTensorRows},
    {kCommInit, "COMM_INIT", v8_0, kEnd, 80, false, kFixed, 1},
    {kCommAllreduce, "COMM_ALLREDUCE", v8_0, kEnd, 4 + kT, false, kNone},
    {kCommFree, "COMM_FREE", v8_0, kEnd, 4, false, kNone},
};

// Used before the version is known: either size is right.
constexpr Rule kHelloRule{kHello, "HELLO", kStart, kEnd, 0, true, Reply::kHello};

}  // namespace

std::string Version::text() const {
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

bool Protocol::covers(Version version) {
  return version.major >= kFirstMajor && version.major <= kLastMajor;
}

Protocol::Protocol(Version version) : version_(version) {
  for (const Rule& rule : kRules) {
    if (rule.from <= version && version < rule.before) rules_[rule.id] = &rule;
  }
}

bool Protocol::is_exact() const {
  return std::ranges::any_of(kKnown, [this](Version known) {
    return known.major == version_.major && known.minor == version_.minor;
  });
}

const Rule* Protocol::rule(std::uint8_t id) const {
  return id < kCommands ? rules_[id] : nullptr;
}

const Rule& hello_rule() {
  return kHelloRule;
}

const char* command_name(std::uint8_t id) {
  const auto* found = std::ranges::find(kRules, id, &Rule::id);
  return found == std::end(kRules) ? "?" : found->name;
}

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
