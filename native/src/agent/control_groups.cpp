#include "control_groups.h"

#include <fcntl.h>

#include <charconv>
#include <sstream>
#include <string_view>
#include <system_error>

#include "posix.h"

namespace dllm::agent {

namespace {

constexpr std::size_t kFileMax = 4U << 20;

bool has_name(const std::string& list, const std::string& wanted) {
  std::istringstream names(list);
  for (std::string name; std::getline(names, name, ',');) {
    if (name == wanted) return true;
  }
  return false;
}

}  // namespace

std::string slurp(const std::string& path) {
  try {
    return read_all(open_at(AT_FDCWD, path, O_RDONLY).get(), kFileMax);
  } catch (const std::system_error&) {
    return "";
  }
}

std::optional<std::uint64_t> number_in(const std::string& text) {
  std::uint64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{}) return std::nullopt;
  return value;
}

std::vector<ControlGroup> control_groups(const std::string& controller, const std::string& root) {
  std::vector<ControlGroup> groups;
  const auto add_levels = [&](std::string group, const std::string& mount, bool unified) {
    while (!group.empty()) {
      if (group.back() != '/') groups.push_back({root + mount + group + "/", mount + group, unified});
      group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
    }
    // Where a container's own group is mounted as the root, its path names none below.
    groups.push_back({root + mount + "/", mount, unified});
  };
  std::istringstream lines(slurp(root + "/proc/self/cgroup"));
  // Lines such as 0::/user.slice and 4:cpu,memory:/docker/1f.
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) {
      add_levels(group, "/sys/fs/cgroup", true);
      // Beside version 1.
      add_levels(group, "/sys/fs/cgroup/unified", true);
    } else if (has_name(controllers, controller)) {
      add_levels(group, "/sys/fs/cgroup/" + controller, false);
    }
  }
  return groups;
}

}  // namespace dllm::agent
