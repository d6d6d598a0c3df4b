#include <fcntl.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>

#include "memory.h"
#include "posix.h"

namespace dllm::agent {

namespace {

constexpr std::size_t kFileMax = 1U << 20;
// Version 1 writes "no limit" as the largest multiple of a page.
constexpr std::uint64_t kNoLimit = 1ULL << 62;

// The files of one version of control groups.
struct Version {
  const char* mount;
  const char* limit;
  const char* used;
  const char* cache;  // in memory.stat: given back on demand
};

constexpr Version kTwo = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"};
constexpr Version kTwoBesideOne = {"/sys/fs/cgroup/unified", "memory.max", "memory.current",
                                   "inactive_file"};
constexpr Version kOne = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                          "total_inactive_file"};

std::string slurp(const std::string& path) {
  try {
    return read_all(open_at(AT_FDCWD, path, O_RDONLY).get(), kFileMax);
  } catch (const std::system_error&) {
    return "";
  }
}

// None when it is no number, for example "max".
std::optional<std::uint64_t> number_in(const std::string& text) {
  std::uint64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{}) return std::nullopt;
  return value;
}

std::uint64_t field_in(const std::string& text, std::string_view wanted) {
  std::istringstream lines(text);
  std::string name;
  std::uint64_t value = 0;
  while (lines >> name >> value) {
    if (name == wanted) return value;
  }
  return 0;
}

void add_limit(const std::string& root, const std::string& group, const Version& version,
               std::vector<MemoryLimit>& limits) {
  const std::string folder = root + version.mount + group + "/";
  const auto limit = number_in(slurp(folder + version.limit));
  const auto used = number_in(slurp(folder + version.used));
  if (!limit || !used || *limit >= kNoLimit) return;
  const std::uint64_t cache = field_in(slurp(folder + "memory.stat"), version.cache);
  const std::uint64_t held = *used - std::min(*used, cache);
  limits.push_back({*limit, *limit - std::min(*limit, held), version.mount + group});
}

// A group and all above it: each may be narrower than those below.
void add_levels(const std::string& root, std::string group, const Version& version,
                std::vector<MemoryLimit>& limits) {
  while (!group.empty() && group.back() == '/') group.pop_back();
  while (!group.empty()) {
    add_limit(root, group, version, limits);
    group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
  // Where a container's own group is mounted as the root, its path names none below.
  add_limit(root, "", version, limits);
}

bool names_memory(const std::string& controllers) {
  std::istringstream names(controllers);
  for (std::string name; std::getline(names, name, ',');) {
    if (name == "memory") return true;
  }
  return false;
}

}  // namespace

std::vector<MemoryLimit> memory_limits(const std::string& root) {
  std::vector<MemoryLimit> limits;
  std::istringstream lines(slurp(root + "/proc/self/cgroup"));
  // Lines such as 0::/user.slice and 4:cpu,memory:/docker/1f.
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) {
      add_levels(root, group, kTwo, limits);
      add_levels(root, group, kTwoBesideOne, limits);
    } else if (names_memory(controllers)) {
      add_levels(root, group, kOne, limits);
    }
  }
  return limits;
}

}  // namespace dllm::agent
