// `dllm-relay worker`: stands beside an rpc-server, and speaks with the relay of the head.
#pragma once

#include <span>

namespace dllm::link {

extern const char* const kWorkerHelp;

// Runs until SIGTERM or SIGINT and then ends the program; throws when it cannot start.
[[noreturn]] void worker(std::span<char* const> args, const char* version);

}  // namespace dllm::link
