#include "posix.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#ifdef __linux__
#include <sys/syscall.h>
#endif

namespace dllm {

namespace {

constexpr std::size_t kReadBlock = 16 * 1024;
constexpr int kLastStandardFd = 2;
// Where the descriptors of this process are listed, on Linux and macOS alike.
constexpr const char* kFdDirectory = "/dev/fd";
constexpr int kSignalsEnd = 65;

void set_cloexec(int fd) {
  check(::fcntl(fd, F_SETFD, FD_CLOEXEC), "fcntl");
}

bool close_range_from([[maybe_unused]] int first) noexcept {
#if defined(__linux__) && defined(SYS_close_range)
  return ::syscall(SYS_close_range, static_cast<unsigned>(first), ~0U, 0U) == 0;
#else
  return false;
#endif
}

std::vector<int> open_fds_from(int first) {
  std::vector<int> fds;
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(kFdDirectory), ::closedir);
  if (!listing) {
    for (int fd = first; fd < ::sysconf(_SC_OPEN_MAX); ++fd) fds.push_back(fd);
    return fds;
  }
  while (const dirent* entry = ::readdir(listing.get())) {
    const int fd = std::atoi(entry->d_name);
    if (fd >= first && fd != dirfd(listing.get())) fds.push_back(fd);
  }
  return fds;
}

}  // namespace

void UniqueFd::reset(int fd) noexcept {
  // No retry: after EINTR the descriptor is closed on Linux, and its number may be another's.
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

void throw_errno(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

Pipe make_pipe() {
  int ends[2];
  check(::pipe(ends), "cannot create a pipe");
  Pipe made{UniqueFd(ends[0]), UniqueFd(ends[1])};
  // pipe2 is missing on macOS; nothing else forks between these lines.
  set_cloexec(ends[0]);
  set_cloexec(ends[1]);
  return made;
}

UniqueFd open_at(int directory, const std::string& name, int flags, mode_t mode) {
  const int fd = retry([&] { return ::openat(directory, name.c_str(), flags | O_CLOEXEC, mode); });
  return UniqueFd(check(fd, "cannot open " + name));
}

void write_all(int fd, std::string_view data, const std::string& what) {
  while (!data.empty()) {
    const ssize_t written = retry([&] { return ::write(fd, data.data(), data.size()); });
    data.remove_prefix(static_cast<std::size_t>(check(written, what)));
  }
}

std::optional<std::vector<std::string>> entries_of(const std::string& directory) {
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(directory.c_str()), ::closedir);
  if (!listing) return std::nullopt;
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(listing.get())) names.emplace_back(entry->d_name);
  std::erase_if(names, [](const std::string& name) { return name == "." || name == ".."; });
  std::ranges::sort(names);
  return names;
}

std::string read_all(int fd, std::size_t limit) {
  std::string data;
  char block[kReadBlock];
  while (data.size() < limit) {
    const std::size_t wanted = std::min(sizeof block, limit - data.size());
    const ssize_t count = check(retry([&] { return ::read(fd, block, wanted); }), "cannot read");
    if (count == 0) break;
    data.append(block, static_cast<std::size_t>(count));
  }
  return data;
}

void write_file_atomic(int directory, const std::string& name, std::string_view data) {
  const std::string temporary = name + ".tmp";
  const std::string what = "cannot write " + name;
  try {
    const UniqueFd file = open_at(directory, temporary, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    write_all(file.get(), data, what);
    check(::renameat(directory, temporary.c_str(), directory, name.c_str()), what);
  } catch (...) {
    ::unlinkat(directory, temporary.c_str(), 0);
    throw;
  }
}

ExitStatus::ExitStatus(int status) {
  if (WIFSIGNALED(status)) {
    signal = WTERMSIG(status);
  } else {
    code = WEXITSTATUS(status);
  }
}

void execute(const std::vector<std::string>& argv) {
  std::vector<char*> texts;
  for (const std::string& arg : argv) texts.push_back(const_cast<char*>(arg.c_str()));
  texts.push_back(nullptr);
  ::execvp(texts[0], texts.data());
  throw_errno("cannot execute '" + argv.front() + "'");
}

void close_from(int first) noexcept {
  if (close_range_from(first)) return;
  try {
    for (const int fd : open_fds_from(first)) ::close(fd);
  } catch (const std::bad_alloc&) {
    std::abort();
  }
}

void ensure_standard_fds() noexcept {
  int fd = 0;
  // The lowest free number is handed out, so this fills every gap and goes one beyond.
  while (fd >= 0 && fd <= kLastStandardFd) fd = ::open("/dev/null", O_RDWR);
  if (fd > kLastStandardFd) ::close(fd);
}

void replace_standard_fds(int in, int out, int err) {
  check(retry([&] { return ::dup2(in, STDIN_FILENO); }), "dup2");
  check(retry([&] { return ::dup2(out, STDOUT_FILENO); }), "dup2");
  check(retry([&] { return ::dup2(err, STDERR_FILENO); }), "dup2");
}

void reset_signals() noexcept {
  // SIGKILL, SIGSTOP and the two glibc keeps for itself refuse; that is fine.
  for (int number = 1; number < kSignalsEnd; ++number) ::signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

void complain(std::string_view text) noexcept {
  std::fprintf(stderr, "dllm-relay: %.*s\n", static_cast<int>(text.size()), text.data());
}

std::string log_line(Level level, std::string_view text) {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto since = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch());
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  char start[64];
  const std::size_t length = std::strftime(start, sizeof start, "%Y-%m-%dT%H:%M:%S", &utc);
  std::snprintf(start + length, sizeof start - length,
                ".%03dZ %c dllm-relay: ", static_cast<int>(since.count() % 1000),
                static_cast<char>(level));
  return start + std::string(text) + "\n";
}

void log(Level level, std::string_view text) noexcept {
  std::fputs(log_line(level, text).c_str(), stderr);
}

std::string machine_name() {
  char name[256]{};
  return ::gethostname(name, sizeof name - 1) == 0 && *name ? name : "?";
}

double unix_time() noexcept {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

Aside::Aside(std::function<void()> work) {
  std::promise<void> promise;
  ended_ = promise.get_future();
  std::thread([work = std::move(work), promise = std::move(promise)]() mutable {
    try {
      work();
    } catch (const std::exception& error) {
      // Without this work the program is of no use: it ends in order, and is started again.
      log(Level::kError, error.what());
      ::kill(::getpid(), SIGTERM);
    }
    promise.set_value();
  }).detach();
}

bool Aside::ends_within(std::chrono::milliseconds patience) const {
  return ended_.wait_for(patience) == std::future_status::ready;
}

}  // namespace dllm
