// dllm-relay thin: writes a model with holes in it.
#pragma once

#include <span>

namespace dllm::sparse {

extern const char* const kThinHelp;

int thin(std::span<char* const> args);

}  // namespace dllm::sparse
