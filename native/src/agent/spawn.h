// `dllm-relay spawn`: starts a process that outlives us, described by a directory.
#pragma once

#include <span>
#include <string>

#include "process_dir.h"
#include "spawn_options.h"

namespace dllm {

// What a supervisor tells of the start of its child.
struct StartReport {
  int status = 0;    // 0 started, 1 failed, 127 not executable
  std::string text;  // {"pid", "start_id"} or why not
};

// Starts the supervisor and waits until the program has been executed or could not be. Of our
// descriptors beyond 2 the supervisor closes `unwanted`. Throws when it died before it told.
StartReport start_supervised(const SpawnOptions& options, const ProcessDir& dir,
                             std::span<const int> unwanted = {});

// What the supervisor and its child would inherit of us is as it must be: standard descriptors
// open, SIGCHLD seen, files private.
void settle_for_spawning();

extern const char* const kSpawnHelp;

// Returns the exit status: 0 started, 1 refused or failed, 127 not executable.
// Throws UsageError.
int spawn(std::span<char* const> args);

}  // namespace dllm
