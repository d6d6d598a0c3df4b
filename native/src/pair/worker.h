// `dllm-relay worker`: stands beside an rpc-server, and speaks with the relay of the head.
#pragma once

#include <span>

namespace dllm::pair {

extern const char* const kWorkerHelp;

// Runs until SIGTERM or SIGINT; throws when it cannot start.
int worker(std::span<char* const> args, const char* version);

}  // namespace dllm::pair
