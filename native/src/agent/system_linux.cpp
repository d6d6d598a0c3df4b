#ifdef __linux__

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <set>
#include <sstream>
#include <system_error>

#include "control_groups.h"
#include "listeners_linux.h"
#include "posix.h"
#include "system.h"

namespace dllm::agent {

namespace {

using Directory = std::unique_ptr<DIR, int (*)(DIR*)>;

std::string proc(pid_t pid, const char* name) {
  return "/proc/" + std::to_string(pid) + "/" + name;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(separator, at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

// Names of the sockets that listen there, as links in /proc/PID/fd show them.
std::set<std::string> listening_sockets(int port) {
  std::set<std::string> links;
  for (const std::string& inode : listeners(port)) links.insert("socket:[" + inode + "]");
  return links;
}

bool holds_one_of(pid_t pid, const std::set<std::string>& sockets) {
  const Directory listing(::opendir(proc(pid, "fd").c_str()), ::closedir);
  if (!listing || sockets.empty()) return false;
  while (const dirent* entry = ::readdir(listing.get())) {
    char link[64];
    const ssize_t size = ::readlinkat(dirfd(listing.get()), entry->d_name, link, sizeof link);
    if (size > 0 && sockets.contains(std::string(link, static_cast<std::size_t>(size)))) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::vector<pid_t> all_pids() {
  std::vector<pid_t> pids;
  const Directory listing(::opendir("/proc"), ::closedir);
  if (!listing) return pids;
  while (const dirent* entry = ::readdir(listing.get())) {
    const std::string_view name = entry->d_name;
    pid_t pid = 0;
    const auto [stop, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error == std::errc{} && stop == name.data() + name.size()) pids.push_back(pid);
  }
  return pids;
}

std::string variable_of(pid_t pid, const std::string& name) {
  const std::string text = slurp(proc(pid, "environ"));
  const std::string wanted = name + "=";
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\0', at), text.size());
    if (text.compare(at, wanted.size(), wanted) == 0) {
      return text.substr(at + wanted.size(), end - at - wanted.size());
    }
    at = end + 1;
  }
  return "";
}

std::vector<std::string> argv_of(pid_t pid) {
  return split(slurp(proc(pid, "cmdline")), '\0');
}

std::string name_of(pid_t pid) {
  const std::string name = slurp(proc(pid, "comm"));
  return name.substr(0, name.find('\n'));
}

std::optional<std::uint64_t> rss_bytes(pid_t pid) {
  std::istringstream fields(slurp(proc(pid, "statm")));
  std::uint64_t size = 0, resident = 0;
  if (!(fields >> size >> resident)) return std::nullopt;
  return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

// The fields of a process from its state on; empty when it is gone.
static std::istringstream state_of(pid_t pid) {
  const std::string text = slurp(proc(pid, "stat"));
  const std::size_t name_end = text.rfind(')');  // the name may hold anything, ')' too
  return std::istringstream(name_end == std::string::npos ? "" : text.substr(name_end + 1));
}

bool is_stopped(pid_t pid) {
  std::istringstream fields = state_of(pid);
  std::string state;
  return fields >> state && (state == "T" || state == "t");
}

std::optional<std::uint64_t> cpu_ms(pid_t pid) {
  constexpr std::size_t kUserTime = 11;  // counted from the state
  std::istringstream fields = state_of(pid);
  std::string skipped;
  for (std::size_t at = 0; at < kUserTime; ++at) fields >> skipped;
  std::uint64_t user = 0, system = 0;
  if (!(fields >> user >> system)) return std::nullopt;
  return (user + system) * 1000 / static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK));
}

bool listens(pid_t pid, int port) {
  return pid > 0 && holds_one_of(pid, listening_sockets(port));
}

std::optional<pid_t> listener_on(int port) {
  const std::set<std::string> sockets = listening_sockets(port);
  std::optional<pid_t> lowest;
  if (sockets.empty()) return lowest;
  for (const pid_t pid : all_pids()) {
    if ((!lowest || pid < *lowest) && holds_one_of(pid, sockets)) lowest = pid;
  }
  return lowest;
}

}  // namespace dllm::agent

#endif
