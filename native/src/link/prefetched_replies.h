// Replies that the worker's end prefetched, as they cross: in KNOWN frames.
#pragma once

#include <vector>

#include "frames.h"
#include "reply_cache.h"

namespace dllm::link {

// In frames of their own.
std::vector<std::vector<std::uint8_t>> encode_prefetched(
    const std::vector<PrefetchedReply>& replies);
// Of the command that was asked; none has that id where the key says nothing.
std::uint8_t id_of(const PrefetchedReply& prefetched);
// What one takes in its frame.
std::size_t encoded_bytes(const PrefetchedReply& prefetched);
// Throws LinkBroken.
std::vector<PrefetchedReply> decode_prefetched(View payload);

}  // namespace dllm::link
