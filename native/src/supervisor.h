// Starts the child, records it, waits for it, records its end.
#pragma once

#include "posix.h"
#include "process_dir.h"
#include "spawn_options.h"

namespace dllm {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitNotExecuted = 127;

// Runs in its own detached process and returns when the child has ended. Sends one report to the
// spawning program as soon as it is known whether exec succeeded: a byte, the exit status for the
// spawning program, and a text, what it prints. A child that could not be started leaves no
// directory; an environment with DLLM_PROCESS_DIR makes a started one recognisable anywhere.
void supervise(const SpawnOptions& options, const ProcessDir& dir, UniqueFd report);

}  // namespace dllm
