#include "usage.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <sstream>

#include "control_groups.h"
#include "json.h"
#include "memory.h"
#include "requests.h"
#include "system.h"

#ifdef __APPLE__
#include <mach/mach.h>
#include <sys/sysctl.h>
#endif

namespace dllm::agent {

namespace {

constexpr std::size_t kCoresMax = 1024;
constexpr std::size_t kAskedMax = 4;
constexpr std::uint64_t kPermille = 1000;
constexpr std::int64_t kLeastUs = 15'000;
constexpr std::uint64_t kUsPerSecond = 1'000'000;

std::int64_t steady_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

// Adds a member where there is a figure.
template <typename Number>
void add(json::Object& object, const char* name, const std::optional<Number>& figure) {
  if (figure) object.number(name, *figure);
}

std::string to_json(const Gpu& gpu) {
  json::Object object;
  object.text("vendor", gpu.vendor).text("name", gpu.name).text("pci", gpu.pci);
  add(object, "load_percent", gpu.load_percent);
  add(object, "used_bytes", gpu.used_bytes);
  add(object, "total_bytes", gpu.total_bytes);
  add(object, "celsius", gpu.celsius);
  add(object, "power_mw", gpu.power_mw);
  add(object, "power_limit_mw", gpu.power_limit_mw);
  add(object, "clock_mhz", gpu.clock_mhz);
  return object.str();
}

struct Swap {
  std::uint64_t total_bytes = 0, used_bytes = 0;
};

#ifdef __APPLE__

Swap swap(const std::string&) {
  xsw_usage told{};
  std::size_t size = sizeof told;
  if (::sysctlbyname("vm.swapusage", &told, &size, nullptr, 0) != 0) return {};
  return {told.xsu_total, told.xsu_used};
}

#else

Swap swap(const std::string& root) {
  constexpr std::uint64_t kKib = 1024;
  std::istringstream lines(slurp(root + "/proc/meminfo"));
  std::uint64_t total = 0, free = 0, value = 0;
  for (std::string name; lines >> name >> value; lines.ignore(64, '\n')) {
    if (name == "SwapTotal:") total = value;
    if (name == "SwapFree:") free = value;
  }
  return {total * kKib, (total - std::min(free, total)) * kKib};
}

#endif

// What can be had, with the limits of control groups.
Memory limited_memory() {
  Memory memory = machine_memory();
  for (const MemoryLimit& limit : memory.limits) {
    memory.total_bytes = std::min(memory.total_bytes, limit.limit_bytes);
    memory.available_bytes = std::min(memory.available_bytes, limit.available_bytes);
  }
  return memory;
}

std::optional<std::uint64_t> rate(const std::optional<std::uint64_t>& before,
                                  const std::optional<std::uint64_t>& now, std::int64_t us) {
  if (!before || !now || *now < *before || us <= 0) return std::nullopt;
  return (*now - *before) * kUsPerSecond / static_cast<std::uint64_t>(us);
}

}  // namespace

Usage::Usage(std::string root, const std::string& nvml)
    : root_(std::move(root)), nvml_(nvml), others_(root_) {}

#ifdef __APPLE__

std::vector<Usage::Ticks> Usage::cores() const {
  std::vector<Ticks> found;
  natural_t count = 0;
  processor_info_array_t info = nullptr;
  mach_msg_type_number_t size = 0;
  if (::host_processor_info(::mach_host_self(), PROCESSOR_CPU_LOAD_INFO, &count, &info, &size) !=
      KERN_SUCCESS) {
    return found;
  }
  const auto* const loads = reinterpret_cast<const processor_cpu_load_info*>(info);
  for (natural_t core = 0; core < std::min<std::size_t>(count, kCoresMax); ++core) {
    Ticks ticks;
    for (int state = 0; state < CPU_STATE_MAX; ++state) {
      ticks.all += loads[core].cpu_ticks[state];
      if (state != CPU_STATE_IDLE) ticks.busy += loads[core].cpu_ticks[state];
    }
    found.push_back(ticks);
  }
  ::vm_deallocate(::mach_task_self(), reinterpret_cast<vm_address_t>(info), size * sizeof *info);
  return found;
}

// They are not read on macOS.
void Usage::count_network(Counters&) const {}
void Usage::count_disks(Counters&) const {}

#else

std::vector<Usage::Ticks> Usage::cores() const {
  std::vector<Ticks> found;
  std::istringstream lines(slurp(root_ + "/proc/stat"));
  for (std::string line; std::getline(lines, line) && found.size() < kCoresMax;) {
    if (!line.starts_with("cpu") || line.size() < 4 || line[3] == ' ') continue;
    std::istringstream words(line);
    std::string name;
    words >> name;
    Ticks ticks;
    // User, nice, system, idle, waiting for input, two kinds of interrupts, stolen.
    std::uint64_t value = 0;
    for (int column = 0; column < 8 && words >> value; ++column) {
      ticks.all += value;
      if (column != 3 && column != 4) ticks.busy += value;
    }
    found.push_back(ticks);
  }
  return found;
}

void Usage::count_network(Counters& counters) const {
  struct Interface {
    std::uint64_t received, sent;
    bool is_hardware;
  };
  std::vector<Interface> found;
  std::istringstream lines(slurp(root_ + "/proc/net/dev"));
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string name =
        line.substr(line.find_first_not_of(' '), colon - line.find_first_not_of(' '));
    std::istringstream words(line.substr(colon + 1));
    std::array<std::uint64_t, 9> columns{};
    for (std::uint64_t& column : columns) words >> column;
    if (name == "lo" || !words) continue;
    std::error_code error;
    const bool is_hardware =
        std::filesystem::exists(root_ + "/sys/class/net/" + name + "/device", error);
    found.push_back({columns[0], columns[8], is_hardware});
  }
  // A bridge repeats what passes its interfaces; within a container no interface is hardware.
  const bool some =
      std::any_of(found.begin(), found.end(), [](const Interface& one) { return one.is_hardware; });
  for (const Interface& one : found) {
    if (some && !one.is_hardware) continue;
    counters.received = counters.received.value_or(0) + one.received;
    counters.sent = counters.sent.value_or(0) + one.sent;
  }
}

void Usage::count_disks(Counters& counters) const {
  constexpr std::uint64_t kSector = 512;
  std::istringstream lines(slurp(root_ + "/proc/diskstats"));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    std::uint64_t major = 0, minor = 0;
    std::array<std::uint64_t, 7> columns{};
    words >> major >> minor >> name;
    for (std::uint64_t& column : columns) words >> column;
    std::error_code error;
    // Not partitions, nor what lies on other disks.
    if (!words || !std::filesystem::exists(root_ + "/sys/block/" + name + "/device", error))
      continue;
    counters.bytes_read = counters.bytes_read.value_or(0) + columns[2] * kSector;
    counters.bytes_written = counters.bytes_written.value_or(0) + columns[6] * kSector;
  }
}

#endif

Usage::Counters Usage::counters() const {
  Counters counters;
  counters.at_us = steady_us();
  counters.cores = cores();
  count_network(counters);
  count_disks(counters);
  return counters;
}

std::string Usage::read(pid_t agent) {
  const Counters now = counters();
  const Counters before = before_.value_or(now);
  // In less than a tick of the clock everything looks idle.
  const bool is_enough = now.at_us - before.at_us >= kLeastUs;
  const std::int64_t us = is_enough ? now.at_us - before.at_us : 0;
  if (!before_ || is_enough) before_ = now;
  std::vector<std::string> loads, gpus;
  for (std::size_t core = 0; us > 0 && core < std::min(now.cores.size(), before.cores.size());
       ++core) {
    const Ticks &old = before.cores[core], &ticks = now.cores[core];
    const std::uint64_t all = ticks.all - std::min(old.all, ticks.all);
    const std::uint64_t busy = std::min(ticks.busy - std::min(old.busy, ticks.busy), all);
    loads.push_back(std::to_string(all == 0 ? 0 : busy * kPermille / all));
  }
  for (const Gpu& gpu : nvml_.read()) gpus.push_back(to_json(gpu));
  for (const Gpu& gpu : others_.read(now.at_us)) gpus.push_back(to_json(gpu));
  const Memory memory = limited_memory();
  const Swap swapped = swap(root_);
  json::Object object;
  object.raw("cores_permille", json::list(loads));
  object.number("memory_total_bytes", memory.total_bytes);
  object.number("memory_available_bytes", memory.available_bytes);
  object.number("swap_total_bytes", swapped.total_bytes);
  object.number("swap_used_bytes", swapped.used_bytes);
  add(object, "received_bytes_per_s", rate(before.received, now.received, us));
  add(object, "sent_bytes_per_s", rate(before.sent, now.sent, us));
  add(object, "read_bytes_per_s", rate(before.bytes_read, now.bytes_read, us));
  add(object, "written_bytes_per_s", rate(before.bytes_written, now.bytes_written, us));
  add(object, "agent_rss_bytes", rss_bytes(agent));
  add(object, "agent_cpu_ms", cpu_ms(agent));
  return object.raw("gpus", json::list(gpus)).str();
}

namespace {

constexpr int kChannel = 3;
// A driver that is held open keeps a GPU awake: nobody has looked for so long.
constexpr int kIdleMs = 60'000;

[[noreturn]] void read_when_asked(int channel, pid_t agent) {
  int status = 0;
  try {
    const UniqueFd null = open_at(AT_FDCWD, "/dev/null", O_RDWR);
    const int high = check(::fcntl(channel, F_DUPFD, 2 * kChannel), "fcntl");
    replace_standard_fds(null.get(), null.get(), null.get());
    check(::dup2(high, kChannel), "dup2");
    close_from(kChannel + 1);
    Usage usage;
    // The first answer is over the time from here on.
    usage.read(agent);
    const auto is_asked = [] {
      pollfd one{kChannel, POLLIN, 0};
      return retry([&] { return ::poll(&one, 1, kIdleMs); }) > 0;
    };
    char request = 0;
    while (is_asked() && retry([&] { return ::read(kChannel, &request, 1); }) == 1) {
      write_all(kChannel, usage.read(agent) + "\n", "answer");
    }
  } catch (const std::exception&) {
    // Nobody is there to hear it.
    status = 1;
  }
  ::_exit(status);
}

}  // namespace

void UsageProcess::ask(const std::string& id) {
  if (asked_.size() == kAskedMax) {
    throw Refusal(kBusy, "the readings before do not come: a driver of this machine hangs");
  }
  if (!channel_) begin();
  write_all(channel_.get(), "?", "cannot ask for a reading");
  asked_.push_back(id);
}

void UsageProcess::begin() {
  std::array<int, 2> ends{};
  check(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), "socketpair");
  UniqueFd ours(ends[0]);
  const UniqueFd theirs(ends[1]);
  for (const int end : ends) check(::fcntl(end, F_SETFD, FD_CLOEXEC), "fcntl");
  const pid_t agent = ::getpid();
  const pid_t pid = check(::fork(), "cannot start another process");
  if (pid == 0) read_when_asked(theirs.get(), agent);
  channel_ = std::move(ours);
  pid_ = pid;
}

void UsageProcess::end() noexcept {
  channel_.reset();
  text_.clear();
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  // One that hangs in a driver is not waited for: it ends when the driver lets it.
  ::waitpid(std::exchange(pid_, -1), nullptr, WNOHANG);
}

std::vector<std::string> UsageProcess::lost() {
  // It has closed its end, so it ends now.
  if (pid_ > 0) retry([&] { return ::waitpid(pid_, nullptr, 0); });
  pid_ = -1;
  end();
  std::vector<std::string> answers;
  for (const std::string& id : std::exchange(asked_, {})) {
    answers.push_back(refusal(id, Refusal(kFailed, "the reading ended without an answer")));
  }
  return answers;
}

void UsageProcess::add_to(std::vector<pollfd>& waited) const {
  if (channel_) waited.push_back({channel_.get(), POLLIN, 0});
}

std::vector<std::string> UsageProcess::take(const std::vector<pollfd>& waited) {
  const bool came = channel_ && std::any_of(waited.begin(), waited.end(), [&](const pollfd& one) {
                      return one.fd == channel_.get() && one.revents != 0;
                    });
  if (!came) return {};
  std::array<char, 64 * 1024> block;
  const ssize_t count = retry([&] { return ::read(channel_.get(), block.data(), block.size()); });
  if (count <= 0) return lost();
  text_.append(block.data(), static_cast<std::size_t>(count));
  std::vector<std::string> answers;
  for (std::size_t at = text_.find('\n'); at != std::string::npos && !asked_.empty();
       at = text_.find('\n')) {
    answers.push_back(answer(asked_.front(), text_.substr(0, at)));
    asked_.pop_front();
    text_.erase(0, at + 1);
  }
  return answers;
}

}  // namespace dllm::agent
