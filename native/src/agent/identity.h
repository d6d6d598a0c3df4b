// What tells a process from a later one that was given the same number.
#pragma once

#include <sys/types.h>

#include <string>

namespace dllm {

// Linux: "<boot id>:<start time in clock ticks since boot>"; macOS: start time in µs since 1970.
// Empty when there is no such process, or only its zombie.
std::string start_id(pid_t pid);

}  // namespace dllm
