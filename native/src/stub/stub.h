// `dllm-relay paper`: speaks for workers that do not run, so that a plan's memory can be asked.
#pragma once

#include <span>

namespace dllm {

extern const char* const kStubHelp;

// Does not return while it serves; the program's exit code.
[[noreturn]] void stub(std::span<char* const> args);

}  // namespace dllm
