// `dllm-relay agent`: looks after the processes of one machine; see native/AGENT.md.
#pragma once

#include <span>

namespace dllm::agent {

extern const char* const kAgentHelp;

// Serves standard input until it ends; returns the exit status. Throws UsageError.
int serve(std::span<char* const> args, const char* version);

}  // namespace dllm::agent
