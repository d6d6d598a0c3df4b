#include "run_program.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <stdexcept>

#include "posix.h"

namespace dllm::agent {

namespace {

using std::chrono::steady_clock;

// How often to look whether it has ended though something it started holds its output open.
constexpr auto kLookInterval = std::chrono::milliseconds(20);
constexpr std::size_t kReadBytes = 64 * 1024;
constexpr std::size_t kFailureTextMax = 4096;
constexpr int kNotExecuted = 127;

void become(const Program& program, int out, int err) {
  const UniqueFd null = open_at(AT_FDCWD, "/dev/null", O_RDONLY);
  replace_standard_fds(null.get(), out, err);
  check(::chdir(program.cwd.c_str()), "cannot enter " + program.cwd);
  for (const auto& [name, value] : program.env) ::setenv(name.c_str(), value.c_str(), 1);
  execute(program.argv);
}

[[noreturn]] void run_child(const Program& program, int out, int err, int failure) {
  ::setsid();
  reset_signals();
  try {
    become(program, out, err);
  } catch (const std::exception& error) {
    const std::string why = error.what();
    [[maybe_unused]] const ssize_t sent = ::write(failure, why.data(), why.size());
  }
  ::_exit(kNotExecuted);
}

// A stream of the program, read as long as it is open.
struct Stream {
  UniqueFd fd;
  std::string text;
  bool truncated = false;

  void read(std::size_t limit) {
    std::array<char, kReadBytes> block;
    const ssize_t count = retry([&] { return ::read(fd.get(), block.data(), block.size()); });
    if (count < 0 && errno == EAGAIN) return;
    if (count <= 0) return fd.reset();
    const std::size_t room = limit - text.size();
    const auto size = static_cast<std::size_t>(count);
    text.append(block.data(), std::min(room, size));
    truncated = truncated || size > room;
  }

  // What is there at this moment.
  void drain(std::size_t limit) {
    pollfd ready{fd.get(), POLLIN, 0};
    while (fd && ::poll(&ready, 1, 0) == 1 && !truncated) read(limit);
  }
};

// Whether it has ended; its number is kept, so that its group cannot be mistaken.
bool has_ended(pid_t pid) {
  siginfo_t information{};
  return ::waitid(P_PID, static_cast<id_t>(pid), &information, WEXITED | WNOHANG | WNOWAIT) != 0 ||
         information.si_pid == pid;
}

// Connects and leaves without a word; returns whether somebody listened.
bool touch(int port) {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return socket &&
         ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

// Whether a whole line of the text has one of these words.
bool has_line_with(const std::string& text, const std::vector<std::string>& words) {
  return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
    const std::size_t at = text.find(word);
    return at != std::string::npos && text.find('\n', at) != std::string::npos;
  });
}

// Returns whether it ended, or said what was waited for, in time and with somebody there to hear.
bool follow(pid_t pid, Stream& out, Stream& err, const Program& program, int lifeline) {
  const auto deadline =
      steady_clock::now() + std::chrono::duration_cast<steady_clock::duration>(program.timeout);
  bool touched = program.touch_port == 0;
  while (!has_ended(pid)) {
    if (steady_clock::now() > deadline) return false;
    if (has_line_with(out.text, program.until) || has_line_with(err.text, program.until)) {
      return true;
    }
    touched = touched || touch(program.touch_port);
    // A negative descriptor is passed over.
    std::array<pollfd, 3> waited = {pollfd{out.fd.get(), POLLIN, 0},
                                    pollfd{err.fd.get(), POLLIN, 0}, pollfd{lifeline, POLLIN, 0}};
    ::poll(waited.data(), waited.size(), static_cast<int>(kLookInterval.count()));
    if (waited[0].revents != 0) out.read(program.limit_bytes);
    if (waited[1].revents != 0) err.read(program.limit_bytes);
    if (waited[2].revents != 0) return false;
  }
  return true;
}

}  // namespace

Outcome run_program(const Program& program, int lifeline) {
  Pipe out = make_pipe(), err = make_pipe(), failure = make_pipe();
  const pid_t pid = check(::fork(), "cannot start another process");
  if (pid == 0) run_child(program, out.writer.get(), err.writer.get(), failure.writer.get());
  out.writer.reset();
  err.writer.reset();
  failure.writer.reset();
  const std::string why = read_all(failure.reader.get(), kFailureTextMax);
  Stream output{std::move(out.reader), "", false}, errors{std::move(err.reader), "", false};
  const bool in_time = why.empty() && follow(pid, output, errors, program, lifeline);
  // Its number is still its own: it has not been waited for.
  ::kill(-pid, SIGKILL);
  int status = 0;
  retry([&] { return ::waitpid(pid, &status, 0); });
  if (!why.empty()) throw std::runtime_error(why);
  output.drain(program.limit_bytes);
  errors.drain(program.limit_bytes);
  Outcome outcome(status);
  outcome.timed_out = !in_time;
  outcome.truncated = output.truncated || errors.truncated;
  outcome.out = std::move(output.text);
  outcome.err = std::move(errors.text);
  return outcome;
}

}  // namespace dllm::agent
