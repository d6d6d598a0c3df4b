// Answers the worker's end has asked for ahead, as they cross: in KNOWN frames.
#pragma once

#include <vector>

#include "frames.h"
#include "reply_cache.h"

namespace dllm::link {

// In frames of their own.
std::vector<std::vector<std::uint8_t>> encode_known(const std::vector<Known>& known);
// Of the command that was asked; none has that id where the key says nothing.
std::uint8_t id_of(const Known& known);
// What one takes in its frame.
std::size_t encoded_bytes(const Known& known);
// Throws LinkBroken.
std::vector<Known> decode_known(View payload);

}  // namespace dllm::link
