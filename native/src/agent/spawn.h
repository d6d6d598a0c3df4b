// Starts a process that outlives us, described by a directory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "posix.h"
#include "process_dir.h"

namespace dllm {

inline constexpr std::uint64_t kDefaultLogLimitBytes = 64ULL << 20;

struct SpawnOptions {
  std::string dir;
  std::vector<std::string> argv;
  std::vector<std::pair<std::string, std::string>> env;
  std::vector<std::string> unset;
  std::string meta;
  std::string private_text;  // for a file that only the child's user may read; empty: none
  std::string cwd = "/";
  std::uint64_t log_limit = kDefaultLogLimitBytes;  // 0: none
  bool ignore_sigpipe = false;
};

// What a supervisor tells of the start of its child.
struct StartReport {
  int status = 0;    // 0 started, 1 failed, 127 not executable
  std::string text;  // {"pid", "start_id"} or why not
};

// Starts the supervisor and waits until the program has been executed or could not be. Of our
// descriptors beyond 2 the supervisor closes `unwanted`. Throws when it died before it told.
StartReport start_supervised(const SpawnOptions& options, const ProcessDir& dir,
                             std::span<const int> unwanted);

// What the supervisor and its child would inherit of us is as it must be: standard descriptors
// open, SIGCHLD seen, files private.
void settle_for_spawning();

}  // namespace dllm
