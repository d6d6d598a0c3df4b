// `dllm-relay host`: looks after the processes of one machine; see native/HOST.md.
#pragma once

#include <span>

namespace dllm::agent {

extern const char* const kHostHelp;

// Serves standard input until it ends; returns the exit status. Throws UsageError.
int host(std::span<char* const> args, const char* version);

}  // namespace dllm::agent
