// `dllm-relay spawn`: starts a process that outlives us, described by a directory.
#pragma once

#include <span>

namespace dllm {

extern const char* const kSpawnHelp;

// Returns the exit status: 0 started, 1 refused or failed, 127 not executable.
// Throws UsageError.
int spawn(std::span<char* const> args);

}  // namespace dllm
