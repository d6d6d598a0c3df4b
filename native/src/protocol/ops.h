// What is known of ggml's ops, version by version: tensors name them by number.
#pragma once

#include <cstdint>
#include <optional>

#include "commands.h"

namespace dllm {

// GGML_OP_COUNT and the number of MAP_CUSTOM1.
struct Ops {
  Version version;
  std::uint32_t count;
  std::uint32_t first_custom;
};

// Those of this version, or of the one before it that is known; null before the first, as up to
// 3.6.0 the version does not tell them.
const Ops* find_ops(Version version);

// So many sources, the first ones, an op reads whatever else it is given. None where it computes
// nothing, or we do not know.
std::optional<std::uint32_t> needed_sources(Version version, std::uint32_t op);

// Whether the op numbers of exactly this version are known. Of a patch between, the range of the
// ops that may call into memory is refused; of versions before 3.6.1 nothing tells the ops.
bool knows_ops(Version version);

}  // namespace dllm
