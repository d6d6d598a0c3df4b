// Keeps a log that somebody else appends to under a size.
#pragma once

#include <cstdint>

namespace dllm {

// When the log is over the limit: copies its newest `limit` bytes (and up to as many that are
// written meanwhile) to log.1 and empties it. The writer goes on where it is, because it appends.
// What it writes between the last byte copied and the emptying (microseconds) is lost. Never
// throws: on a full disk the log is emptied uncopied, which is the one thing that helps. Returns
// whether it emptied the log.
bool enforce_log_limit(int directory, std::uint64_t limit) noexcept;

}  // namespace dllm
