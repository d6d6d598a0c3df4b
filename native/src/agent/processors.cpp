#include "processors.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "control_groups.h"

#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

namespace dllm::agent {

namespace {

int online() {
  return std::max(static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)), 1);
}

#ifdef __APPLE__

std::string text_of(const char* name) {
  char text[4096] = "";
  std::size_t size = sizeof text - 1;
  return ::sysctlbyname(name, text, &size, nullptr, 0) == 0 ? text : "";
}

int number_of(const std::string& name) {
  int value = 0;
  std::size_t size = sizeof value;
  return ::sysctlbyname(name.c_str(), &value, &size, nullptr, 0) == 0 ? value : 0;
}

// Those of ARM that a compiler may use: each is a value of its own.
std::string instructions() {
  std::string found = text_of("machdep.cpu.features") + " " + text_of("machdep.cpu.leaf7_features");
  for (const std::string name : {"FEAT_DotProd", "FEAT_FP16", "FEAT_BF16", "FEAT_I8MM", "FEAT_SHA512",
                                 "FEAT_SME", "FEAT_SME2"}) {
    if (number_of("hw.optional.arm." + name) == 1) found += " " + name;
  }
  return found;
}

void describe(Processors& processors, const std::string&) {
  processors.name = text_of("machdep.cpu.brand_string");
  processors.instructions = instructions();
  processors.usable = online();
  // The first level is absent on Intel.
  const int fastest = number_of("hw.perflevel0.physicalcpu");
  processors.performance = fastest > 0 ? fastest : number_of("hw.physicalcpu");
}

#else

constexpr const char* kProcessors = "/sys/devices/system/cpu";
// Cores with this part of the largest capacity count as performance cores.
constexpr double kFastShare = 0.6;

// The value behind "name:" in a file such as /proc/cpuinfo; empty when it is not there.
std::string value_in(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(':');
    const std::size_t end = line.find_last_not_of(" \t", colon == 0 ? 0 : colon - 1);
    if (colon == std::string::npos || line.substr(0, end + 1) != name) continue;
    return line.substr(std::min(line.find_first_not_of(" \t", colon + 1), line.size()));
  }
  return "";
}

// The numbers in "0-3,8"; what cannot be understood is left out.
std::set<int> numbers_in(const std::string& text) {
  constexpr std::uint64_t kMost = 1U << 16;
  std::set<int> numbers;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const std::size_t dash = part.find('-');
    const auto first = number_in(part);
    const auto last = dash == std::string::npos ? first : number_in(part.substr(dash + 1));
    if (!first || !last || *last >= kMost) continue;
    for (std::uint64_t n = *first; n <= *last; ++n) numbers.insert(static_cast<int>(n));
  }
  return numbers;
}

struct Thread {
  std::string core;  // the list of all threads of its core
  double speed;
};

std::map<int, Thread> threads(const std::string& root) {
  std::map<int, Thread> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(root + kProcessors, error)) {
    const std::string name = entry.path().filename();
    const auto number = name.starts_with("cpu") ? number_in(name.substr(3)) : std::nullopt;
    // Kernels before 5.3 know the older name only.
    std::string core = slurp(entry.path() / "topology/core_cpus_list");
    if (core.empty()) core = slurp(entry.path() / "topology/thread_siblings_list");
    if (!number || core.empty()) continue;
    const auto speed = number_in(slurp(entry.path() / "cpu_capacity"));
    found[static_cast<int>(*number)] = {core, static_cast<double>(speed.value_or(0))};
  }
  return found;
}

int fast_cores(const std::string& root, const std::set<int>& allowed) {
  // What a hybrid x86 calls its performance cores.
  const std::set<int> fast = numbers_in(slurp(root + "/sys/devices/cpu_core/cpus"));
  std::map<int, Thread> all = threads(root);
  double highest = 0;
  for (const auto& [number, thread] : all) highest = std::max(highest, thread.speed);
  std::erase_if(all, [&](const auto& one) {
    const bool slow = one.second.speed < kFastShare * highest;
    return slow || (!allowed.empty() && !allowed.contains(one.first));
  });
  const bool has_fast = std::any_of(all.begin(), all.end(),
                                    [&](const auto& one) { return fast.contains(one.first); });
  std::set<std::string> cores;
  for (const auto& [number, thread] : all) {
    if (!has_fast || fast.contains(number)) cores.insert(thread.core);
  }
  return static_cast<int>(cores.size());
}

// How many processors the control groups allow at a time; none where they set no limit.
std::optional<int> quota(const std::string& root) {
  std::optional<int> least;
  for (const ControlGroup& group : control_groups("cpu", root)) {
    std::istringstream both(slurp(group.folder + "cpu.max"));
    std::string share, period;
    both >> share >> period;
    if (!group.unified) {
      share = slurp(group.folder + "cpu.cfs_quota_us");
      period = slurp(group.folder + "cpu.cfs_period_us");
    }
    const auto microseconds = number_in(share), of = number_in(period);
    if (!microseconds || of.value_or(0) == 0) continue;
    const double whole = std::ceil(static_cast<double>(*microseconds) / static_cast<double>(*of));
    const int count = static_cast<int>(std::clamp(whole, 1.0, 1e6));
    least = std::min(least.value_or(count), count);
  }
  return least;
}

void describe(Processors& processors, const std::string& root) {
  const std::string told = slurp(root + "/proc/cpuinfo");
  processors.name = value_in(told, "model name");
  processors.instructions = value_in(told, "flags") + value_in(told, "Features");
  const auto allowed = numbers_in(value_in(slurp(root + "/proc/self/status"), "Cpus_allowed_list"));
  processors.usable = allowed.empty() ? online() : static_cast<int>(allowed.size());
  const int cores = fast_cores(root, allowed);
  processors.performance = cores > 0 ? cores : processors.usable;
  if (const auto most = quota(root)) {
    processors.performance = std::min(processors.performance, *most);
  }
}

#endif

}  // namespace

Processors machine_processors(const std::string& root) {
  Processors processors;
  describe(processors, root);
  utsname names{};
  if (processors.name.empty() && ::uname(&names) == 0) processors.name = names.machine;
  processors.performance = std::max(processors.performance, 1);
  return processors;
}

}  // namespace dllm::agent
