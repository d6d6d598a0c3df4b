#include "spawn.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <exception>
#include <stdexcept>
#include <string>

#include "posix.h"
#include "process_dir.h"
#include "spawn_options.h"
#include "child_process.h"

namespace dllm {

const char* const kSpawnHelp =
    R"(usage: dllm-relay spawn --dir DIR [options] -- COMMAND [ARGUMENT...]

Starts COMMAND detached from this terminal, in a session and process group of its own, with
/dev/null as input, DIR/log as output and no other open file. Prints {"pid", "start_id"} and
returns as soon as COMMAND runs. A supervisor stays to record how it ends.

  --dir DIR           describes the process: process.json, log, exit.json (mode 0700);
                      refused while a process lives there, taken over when it has ended
  --env NAME=VALUE    set a variable (repeatable); DLLM_PROCESS_DIR=DIR is always set
  --unset NAME        remove a variable (repeatable; before --env)
  --ignore-sigpipe    start with SIGPIPE ignored
  --cwd DIRECTORY     working directory (default /)
  --log-limit BYTES   beyond this, log is moved to log.1 (default 67108864, 0: never)
  --meta TEXT         kept as it is in process.json

exit status: 0 started, 1 refused or failed, 2 wrong usage, 127 COMMAND cannot be executed
)";

namespace {

constexpr std::size_t kReportMax = 64 * 1024;
constexpr const char* kCannotFork = "cannot start another process";
constexpr mode_t kPrivate = 077;

[[noreturn]] void run_supervisor(const SpawnOptions& options, const ProcessDir& dir,
                                 UniqueFd report) {
  supervise(options, dir, std::move(report));
  ::_exit(kExitOk);
}

// Forks twice: the supervisor is nobody's child and leads no session, so that no terminal can
// ever become its own.
void fork_supervisor(const SpawnOptions& options, const ProcessDir& dir, Pipe& report,
                     std::span<const int> unwanted) {
  const pid_t between = check(::fork(), kCannotFork);
  if (between == 0) {
    ::setsid();
    report.reader.reset();
    for (const int fd : unwanted) ::close(fd);
    const pid_t supervisor = ::fork();
    if (supervisor == 0) run_supervisor(options, dir, std::move(report.writer));
    if (supervisor < 0) abandon(dir, report.writer, kCannotFork);
    ::_exit(kExitOk);
  }
  report.writer.reset();
  retry([&] { return ::waitpid(between, nullptr, 0); });
}

// Prints what the supervisor reports; returns our exit status. A caller that reads no output finds
// the same in process.json, so failing to print is no failure.
int print_report(const StartReport& report) {
  if (report.status == kExitOk) {
    [[maybe_unused]] const ssize_t sent =
        ::write(STDOUT_FILENO, report.text.data(), report.text.size());
  } else {
    complain(report.text);
  }
  return report.status;
}

}  // namespace

StartReport start_supervised(const SpawnOptions& options, const ProcessDir& dir,
                             std::span<const int> unwanted) {
  Pipe report;
  try {
    report = make_pipe();
    fork_supervisor(options, dir, report, unwanted);
  } catch (...) {
    dir.remove();
    throw;
  }
  const std::string told = read_all(report.reader.get(), kReportMax);
  if (told.empty()) {
    throw std::runtime_error("the supervisor died before the process was started");
  }
  return {told.front(), told.substr(1)};
}

void settle_for_spawning() {
  ensure_standard_fds();
  // An inherited "ignore" of SIGCHLD would let children vanish unseen.
  ::signal(SIGCHLD, SIG_DFL);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
  ::umask(kPrivate);
}

int spawn(std::span<char* const> args) {
  const SpawnOptions options = parse_spawn_options(args);
  hide_private_arguments(args);
  settle_for_spawning();
  // Until the process has a session of its own, the end of this terminal would take it along.
  ::signal(SIGHUP, SIG_IGN);
  close_from(STDERR_FILENO + 1);
  const ProcessDir dir = ProcessDir::claim(options.dir);
  return print_report(start_supervised(options, dir));
}

}  // namespace dllm
