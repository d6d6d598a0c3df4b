// `dllm-relay head`: stands between llama-server and one worker.
#pragma once

#include <span>

namespace dllm {

extern const char* const kHeadHelp;

// Runs until SIGTERM or SIGINT and then ends the program; throws when it cannot start.
[[noreturn]] void head(std::span<char* const> args, const char* version);

}  // namespace dllm
