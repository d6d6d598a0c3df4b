// Main memory: what there is, what can be had, and the limits control groups set.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dllm::agent {

struct MemoryLimit {
  std::uint64_t limit_bytes = 0;
  std::uint64_t available_bytes = 0;  // left below the limit, the file cache counted as free
  std::string where;                  // the control group
};

struct Memory {
  std::uint64_t total_bytes = 0;
  std::uint64_t available_bytes = 0;  // without swapping
  std::vector<MemoryLimit> limits;
};

Memory machine_memory();

// The limits of all levels of the control groups a process is in, of version 1 and 2, as the files
// below `root` tell ("" on a real system).
std::vector<MemoryLimit> memory_limits(const std::string& root = "");

}  // namespace dllm::agent
