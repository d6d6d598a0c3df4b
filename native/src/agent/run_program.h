// Runs a program to its end, or to a limit, and leaves nothing of it behind.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "posix.h"

namespace dllm::agent {

struct Program {
  std::vector<std::string> argv;
  std::vector<std::pair<std::string, std::string>> env;  // added to ours
  std::string cwd = "/";
  std::chrono::duration<double> timeout{10};
  std::size_t limit_bytes = 1 << 20;  // of each stream; more is read and dropped
  int touch_port = 0;                 // connected to once, on 127.0.0.1, as soon as it listens
  std::vector<std::string> until;     // it is ended after a line with one of these
};

struct Outcome : ExitStatus {
  using ExitStatus::ExitStatus;

  bool timed_out = false;
  bool truncated = false;
  std::string out;
  std::string err;
};

// Ends it early when `lifeline` can be read to its end. Throws std::runtime_error when it cannot be
// executed.
Outcome run_program(const Program& program, int lifeline);

}  // namespace dllm::agent
