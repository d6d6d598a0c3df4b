#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "control_groups.h"
#include "json.h"
#include "memory.h"
#include "processors.h"
#include "verbs.h"
#include "weights/hash_cache.h"

#ifdef __APPLE__
#include <sys/sysctl.h>
#endif
#ifdef __GLIBC__
#include <gnu/libc-version.h>
#endif

namespace dllm::agent {

namespace {

std::string libc_name() {
#ifdef __GLIBC__
  return std::string("glibc ") + ::gnu_get_libc_version();
#elif defined __linux__
  return "musl";
#else
  return "";
#endif
}

// The distribution or release in the machine's own words.
std::string system_name() {
#ifdef __APPLE__
  char version[64] = "";
  std::size_t size = sizeof version - 1;
  ::sysctlbyname("kern.osproductversion", version, &size, nullptr, 0);
  return std::string("macOS ") + version;
#else
  constexpr std::string_view kKey = "PRETTY_NAME=";
  std::istringstream lines(slurp("/etc/os-release"));
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(kKey)) continue;
    line.erase(0, kKey.size());
    std::erase(line, '"');
    return line;
  }
  return "";
#endif
}

double now_s() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

}  // namespace

std::uint64_t disk_free_bytes(std::filesystem::path directory) {
  struct statvfs status {};
  while (::statvfs(directory.c_str(), &status) != 0) {
    if (!directory.has_relative_path()) return 0;
    directory = directory.parent_path();
  }
  return std::uint64_t{status.f_bavail} * status.f_frsize;
}

std::string memory_of() {
  const Memory memory = machine_memory();
  const Processors processors = machine_processors();
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
  return object.text("cpu", processors.name).number("cores", processors.performance).str();
}

std::string machine(const json::Value& request) {
  utsname names{};
  ::uname(&names);
  const Processors processors = machine_processors();
  json::Object variables;
  for (const std::string& name : json::texts_of(request, "variables")) {
    const char* const value = std::getenv(name.c_str());
    if (value != nullptr) variables.raw(name, json::quote_bytes(value));
  }
  json::Object object;
  object.text("os", names.sysname).text("arch", names.machine).text("hostname", names.nodename);
  object.text("system", system_name()).text("libc", libc_name());
  object.text("instructions", processors.instructions).number("usable", processors.usable);
  object.number("performance", processors.performance).raw("memory", memory_of());
  const std::filesystem::path hashes = weights::hash_cache_directory();
  const std::filesystem::path cache = hashes.parent_path();
  object.raw("cache", json::quote_bytes(cache.native()));
  object.number("disk_free_bytes", disk_free_bytes(cache));
  return object.raw("variables", variables.str()).time("time", now_s()).str();
}

}  // namespace dllm::agent
