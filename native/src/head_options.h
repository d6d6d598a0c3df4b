// The command line of `dllm-relay head`.
#pragma once

#include <span>
#include <string>

#include "sockets.h"

namespace dllm {

struct HeadOptions {
  Endpoint listen;
  Endpoint worker;
  std::string name;   // of the worker
  std::string stats;  // path of the stats socket; empty: none
  bool answers = true;
  bool guard = true;
};

// Parses what follows `head`. Throws UsageError.
HeadOptions parse_head_options(std::span<const char* const> args);

}  // namespace dllm
