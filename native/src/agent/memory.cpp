#include "memory.h"

#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <string_view>

#include "control_groups.h"

#ifdef __APPLE__
#include <mach/mach.h>
#include <sys/sysctl.h>
#endif

namespace dllm::agent {

namespace {

// Version 1 writes "no limit" as the largest multiple of a page.
constexpr std::uint64_t kNoLimit = 1ULL << 62;

std::uint64_t field_in(const std::string& text, std::string_view wanted) {
  std::istringstream lines(text);
  std::string name;
  std::uint64_t value = 0;
  while (lines >> name >> value) {
    if (name == wanted) return value;
    lines.ignore(64, '\n');
  }
  return 0;
}

#ifdef __APPLE__

std::uint64_t available() {
  vm_statistics64_data_t statistics{};
  mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
  const kern_return_t done = ::host_statistics64(
      ::mach_host_self(), HOST_VM_INFO64, reinterpret_cast<host_info64_t>(&statistics), &count);
  if (done != KERN_SUCCESS) return 0;
  const std::uint64_t pages =
      std::uint64_t{statistics.free_count} + std::uint64_t{statistics.inactive_count};
  return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

void describe(Memory& memory) {
  std::size_t size = sizeof memory.total_bytes;
  ::sysctlbyname("hw.memsize", &memory.total_bytes, &size, nullptr, 0);
  memory.available_bytes = available();
}

#else

void describe(Memory& memory) {
  constexpr std::uint64_t kKib = 1024;
  const std::string told = slurp("/proc/meminfo");
  memory.total_bytes = field_in(told, "MemTotal:") * kKib;
  memory.available_bytes = field_in(told, "MemAvailable:") * kKib;
  // Kernels before 3.14 do not tell what is available.
  if (memory.available_bytes == 0) memory.available_bytes = field_in(told, "MemFree:") * kKib;
}

#endif

}  // namespace

Memory machine_memory() {
  Memory memory;
  describe(memory);
  memory.limits = memory_limits();
  return memory;
}

std::vector<MemoryLimit> memory_limits(const std::string& root) {
  std::vector<MemoryLimit> limits;
  for (const ControlGroup& group : control_groups("memory", root)) {
    const bool two = group.unified;
    const auto limit =
        number_in(slurp(group.folder + (two ? "memory.max" : "memory.limit_in_bytes")));
    const auto used =
        number_in(slurp(group.folder + (two ? "memory.current" : "memory.usage_in_bytes")));
    if (!limit || !used || *limit >= kNoLimit) continue;
    // Given back on demand.
    const std::uint64_t cache = field_in(slurp(group.folder + "memory.stat"),
                                         two ? "inactive_file" : "total_inactive_file");
    const std::uint64_t held = *used - std::min(*used, cache);
    limits.push_back({*limit, *limit - std::min(*limit, held), group.name});
  }
  return limits;
}

}  // namespace dllm::agent
