// `dllm-relay probe`: whether one machine reaches another directly, and how fast that way is.
#pragma once

#include <span>

namespace dllm {

extern const char* const kProbeHelp;

int probe(std::span<char* const> args);

}  // namespace dllm
