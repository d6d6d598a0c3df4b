// Owners and retries around POSIX: descriptors close themselves, EINTR never surfaces, and
// a failed call becomes std::system_error naming what was attempted.
#pragma once

#include <sys/types.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <optional>
#include <functional>
#include <future>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dllm {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

// A command line that cannot be meant; the program exits with kExitUsage.
class UsageError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Owns one file descriptor; -1 is none.
class UniqueFd {
 public:
  UniqueFd() noexcept = default;
  explicit UniqueFd(int fd) noexcept : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }

  [[nodiscard]] int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  int release() noexcept { return std::exchange(fd_, -1); }
  void reset(int fd = -1) noexcept;

 private:
  int fd_ = -1;
};

// Both ends of a pipe.
struct Pipe {
  UniqueFd reader;
  UniqueFd writer;
};

// Calls again while the call fails with EINTR.
template <typename Call>
auto retry(Call&& call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

// Throws std::system_error "<what>: <text of errno>".
[[noreturn]] void throw_errno(const std::string& what);

// The result, or throws when it is -1.
template <typename Result>
Result check(Result result, const std::string& what) {
  if (result == -1) throw_errno(what);
  return result;
}

// A pipe whose ends do not survive exec.
Pipe make_pipe();

// Opens relative to a directory; the descriptor does not survive exec.
UniqueFd open_at(int directory, const std::string& name, int flags, mode_t mode = 0);

// Writes everything or throws.
void write_all(int fd, std::string_view data, const std::string& what);

// The names in a directory, sorted; none when it cannot be read, for which errno tells the reason.
std::optional<std::vector<std::string>> entries_of(const std::string& directory);

// Reads to the end, at most limit bytes.
std::string read_all(int fd, std::size_t limit);

// Replaces a file (mode 0600) in one step: a reader sees the old or the new content, whole.
// Leaves no temporary file when it throws.
void write_file_atomic(int directory, const std::string& name, std::string_view data);

// How a process ended, as waitpid tells it.
struct ExitStatus {
  explicit ExitStatus(int status);
  std::optional<int> code, signal;
};

// Executes a program by its name. Throws std::system_error: it does not return otherwise.
[[noreturn]] void execute(const std::vector<std::string>& argv);

// Closes every descriptor from `first` on.
void close_from(int first) noexcept;

// Opens /dev/null for each of 0, 1, 2 that is closed, so that nothing else gets these numbers.
void ensure_standard_fds() noexcept;

// Points 0, 1 and 2 at the given descriptors.
void replace_standard_fds(int in, int out, int err);

// Every signal at its default, none blocked.
void reset_signals() noexcept;

// Prints "dllm-relay: <text>" on stderr: the last words of a command.
void complain(std::string_view text) noexcept;

enum class Level : char { kInfo = 'I', kWarning = 'W', kError = 'E' };
// "2026-01-31T23:59:59.123Z I dllm-relay: <text>" and the end of the line: of what runs for long.
std::string log_line(Level level, std::string_view text);
// Prints that on stderr.
void log(Level level, std::string_view text) noexcept;

// What this machine calls itself; "?" when it does not.
std::string machine_name();

// Seconds since 1970.
double unix_time() noexcept;

// Nothing that the work uses may go away before it has ended, unless the process does.
class Aside {
 public:
  // Begins at once, on a thread of its own.
  explicit Aside(std::function<void()> work);
  // Whether it has ended, by then at the latest.
  [[nodiscard]] bool ends_within(std::chrono::milliseconds patience) const;

 private:
  std::future<void> ended_;
};

}  // namespace dllm
