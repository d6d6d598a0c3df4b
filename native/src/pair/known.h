// Answers the worker's end has asked for ahead, as they cross: in KNOWN frames.
#pragma once

#include <vector>

#include "frames.h"
#include "relay/answers.h"

namespace dllm::pair {

// In frames of their own.
std::vector<std::vector<std::uint8_t>> encode_known(const std::vector<Known>& known);
// Throws LinkBroken.
std::vector<Known> decode_known(View payload);

}  // namespace dllm::pair
