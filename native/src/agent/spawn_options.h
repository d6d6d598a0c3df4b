// The command line of `dllm-relay spawn`.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "program.h"

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

// Parses what follows `spawn`. Throws UsageError.
SpawnOptions parse_spawn_options(std::span<const char* const> args);

// Blanks what other users must not read in the process table, where the supervisor stays as long
// as its child: the environment, the meta text and the child's command line.
void hide_private_arguments(std::span<char* const> args);

}  // namespace dllm
