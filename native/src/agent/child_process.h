// Starts the child, records it, waits for it, records its end.
#pragma once

#include "posix.h"
#include "process_dir.h"
#include "program.h"
#include "spawn_options.h"

namespace dllm {

inline constexpr int kExitNotExecuted = 127;

// Tells the spawning program how it went: one byte, its exit status, and the text it prints.
void send_report(const UniqueFd& report, int status, const std::string& text);

// Deletes the directory of a child that never ran and reports why it did not.
void abandon(const ProcessDir& dir, const UniqueFd& report, const std::string& why);

// Runs in its own detached process and returns when the child has ended. Reports as soon as it is
// known whether exec succeeded. A child that could not be started leaves no directory; a started
// one carries DLLM_PROCESS_DIR in its environment and can be recognised anywhere.
void supervise(const SpawnOptions& options, const ProcessDir& dir, UniqueFd report);

}  // namespace dllm
