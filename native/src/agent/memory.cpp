#include "memory.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "protocol/json.h"

#ifdef __APPLE__
#include <mach/mach.h>
#include <sys/sysctl.h>
#endif

namespace dllm::agent {

namespace {

std::string machine_name() {
  utsname names{};
  return ::uname(&names) == 0 ? names.machine : "";
}

#ifdef __APPLE__

std::string text_of(const char* name) {
  char text[256] = "";
  std::size_t size = sizeof text - 1;
  return ::sysctlbyname(name, text, &size, nullptr, 0) == 0 ? text : "";
}

std::uint64_t number_of(const char* name) {
  std::uint64_t value = 0;
  std::size_t size = sizeof value;
  return ::sysctlbyname(name, &value, &size, nullptr, 0) == 0 ? value : 0;
}

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
  memory.total_bytes = number_of("hw.memsize");
  memory.available_bytes = available();
  memory.cpu = text_of("machdep.cpu.brand_string");
  memory.cores = static_cast<int>(number_of("hw.physicalcpu"));
}

#else

constexpr const char* kProcessors = "/sys/devices/system/cpu";

// The value behind "name:" in a file such as /proc/meminfo; empty when it is not there.
std::string value_in(const char* path, const std::string& name) {
  std::ifstream lines(path);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(':');
    const std::size_t end = line.find_last_not_of(" \t", colon == 0 ? 0 : colon - 1);
    if (colon == std::string::npos || line.substr(0, end + 1) != name) continue;
    return line.substr(std::min(line.find_first_not_of(" \t", colon + 1), line.size()));
  }
  return "";
}

std::uint64_t meminfo_bytes(const std::string& name) {
  std::uint64_t kib = 0;
  std::istringstream(value_in("/proc/meminfo", name)) >> kib;
  return kib * 1024;
}

// Processors that share a core name the same list of siblings.
int physical_cores() {
  std::set<std::string> cores;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(kProcessors, error)) {
    std::ifstream file(entry.path() / "topology/core_cpus_list");
    std::string siblings;
    if (file >> siblings) cores.insert(siblings);
  }
  return static_cast<int>(cores.size());
}

void describe(Memory& memory) {
  memory.total_bytes = meminfo_bytes("MemTotal");
  memory.available_bytes = meminfo_bytes("MemAvailable");
  // Kernels before 3.14 do not tell what is available.
  if (memory.available_bytes == 0) memory.available_bytes = meminfo_bytes("MemFree");
  memory.cpu = value_in("/proc/cpuinfo", "model name");
  memory.cores = physical_cores();
}

#endif

}  // namespace

Memory machine_memory() {
  Memory memory;
  describe(memory);
  if (memory.cpu.empty()) memory.cpu = machine_name();
  if (memory.cores < 1) memory.cores = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  memory.limits = memory_limits();
  return memory;
}

std::string to_json(const Memory& memory) {
  std::vector<std::string> limits;
  for (const MemoryLimit& limit : memory.limits) {
    json::Object object;
    object.number("limit_bytes", limit.limit_bytes);
    object.number("available_bytes", limit.available_bytes).text("where", limit.where);
    limits.push_back(object.str());
  }
  json::Object object;
  object.number("total_bytes", memory.total_bytes);
  object.number("available_bytes", memory.available_bytes).raw("limits", json::list(limits));
  return object.text("cpu", memory.cpu).number("cores", std::max(memory.cores, 1)).str();
}

}  // namespace dllm::agent
