#include "spawn.h"

#include <fcntl.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <stdexcept>
#include <string>

#include "json.h"
#include "posix.h"
#include "process_dir.h"

#ifdef __linux__
#include <sys/prctl.h>
#endif

namespace dllm {

namespace {

constexpr int kExitNotExecuted = 127;
constexpr timespec kLogCheckInterval = {1, 0};
constexpr std::size_t kFailureTextMax = 4096;
constexpr const char* kMarkerVariable = "DLLM_PROCESS_DIR";

struct Child {
  pid_t pid = -1;
  std::string start;  // its start_id
  UniqueFd go;        // one byte lets it execute; closing it ends it
  UniqueFd failure;   // why it could not execute; empty when it did
};

void apply_environment(const SpawnOptions& options, const std::string& dir) {
  for (const std::string& name : options.unset) ::unsetenv(name.c_str());
  for (const auto& [name, value] : options.env) ::setenv(name.c_str(), value.c_str(), 1);
  ::setenv(kMarkerVariable, dir.c_str(), 1);
}

// Everything a process inherits is set here; descriptors beyond 2 all close on exec.
void become_child(const SpawnOptions& options, const ProcessDir& dir, int log) {
  const UniqueFd null = open_at(AT_FDCWD, "/dev/null", O_RDONLY);
  replace_standard_fds(null.get(), log, log);
  if (options.ignore_sigpipe) ::signal(SIGPIPE, SIG_IGN);
  check(::chdir(options.cwd.c_str()), "cannot enter " + options.cwd);
  apply_environment(options, dir.path());
  execute(options.argv);
}

[[noreturn]] void run_child(const SpawnOptions& options, const ProcessDir& dir, int log,
                            const Pipe& gate, const Pipe& failure) {
  ::setsid();
  // Before the gate: from its record on, a signal sent to it must count.
  reset_signals();
  char go = 0;
  if (retry([&] { return ::read(gate.reader.get(), &go, 1); }) == 1) {
    try {
      become_child(options, dir, log);
    } catch (const std::exception& error) {
      const std::string why = error.what();
      [[maybe_unused]] const ssize_t sent = ::write(failure.writer.get(), why.data(), why.size());
    }
  }
  ::_exit(kExitNotExecuted);
}

// The child waits at the gate until its record is on disk: none ever runs unrecorded.
Child fork_child(const SpawnOptions& options, const ProcessDir& dir) {
  const UniqueFd log = dir.open_log();
  Pipe gate = make_pipe();
  Pipe failure = make_pipe();
  const pid_t pid = check(::fork(), "cannot start another process");
  if (pid == 0) {
    gate.writer.reset();  // so that the supervisor's end is the only one
    run_child(options, dir, log.get(), gate, failure);
  }
  return {pid, start_id(pid), std::move(gate.writer), std::move(failure.reader)};
}

std::string environment_json(const SpawnOptions& options) {
  json::Object object;
  for (const auto& [name, value] : options.env) object.text(name, value);
  return object.str();
}

// ProcessDir reads the first two members back; they stay first.
std::string record_json(const SpawnOptions& options, const Child& child) {
  json::Object record;
  record.number("pid", child.pid).text("start_id", child.start);
  record.number("supervisor_pid", ::getpid()).text("supervisor_start_id", start_id(::getpid()));
  record.time("started_at", unix_time());
  record.raw("argv", json::array(options.argv)).text("cwd", options.cwd);
  record.raw("env", environment_json(options)).raw("unset", json::array(options.unset));
  record.flag("ignore_sigpipe", options.ignore_sigpipe);
  record.number("log_limit", options.log_limit).text("meta", options.meta);
  return record.line();
}

std::string exit_json(const Child& child, int status) {
  const ExitStatus ended(status);
  json::Object record;
  record.number("pid", child.pid).text("start_id", child.start);
  record.number("code", ended.code).number("signal", ended.signal).time("at", unix_time());
  return record.line();
}

// Returns why the child could not be executed; empty when it runs.
std::string open_gate(Child& child) {
  // A child killed at the gate has closed its end; waiting for it will tell.
  [[maybe_unused]] const ssize_t sent = ::write(child.go.get(), "g", 1);
  child.go.reset();
  return read_all(child.failure.get(), kFailureTextMax);
}

// Nothing of the caller may stay open or in use in a process that lives for days.
void detach() {
  const UniqueFd null = open_at(AT_FDCWD, "/dev/null", O_RDWR);
  replace_standard_fds(null.get(), null.get(), null.get());
  check(::chdir("/"), "cannot enter /");
#ifdef __linux__
  ::prctl(PR_SET_NAME, "dllm-supervisor");
#endif
}

void wake(int) {}

// Signals meant for the child or the terminal must not take its observer; SIGKILL still does, and
// then the child lives on and stays adoptable. SIGCHLD only interrupts pselect.
void settle_signals() {
  reset_signals();
  for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGXFSZ}) {
    ::signal(number, SIG_IGN);
  }
  struct sigaction action{};
  action.sa_handler = wake;
  ::sigaction(SIGCHLD, &action, nullptr);
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &blocked, nullptr);
}

int wait_for(pid_t child, const ProcessDir& dir, std::uint64_t log_limit) {
  sigset_t none;
  sigemptyset(&none);
  int status = 0;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    ::pselect(0, nullptr, nullptr, nullptr, log_limit ? &kLogCheckInterval : nullptr, &none);
    enforce_log_limit(dir.fd(), log_limit);
  }
  return status;
}

// Tells the spawning program how it went: one byte, its exit status, and the text it prints.
void send_report(const UniqueFd& report, int status, const std::string& text) {
  const std::string message = static_cast<char>(status) + text;
  // A spawning program that is gone cannot be told; the record says the same.
  [[maybe_unused]] const ssize_t sent = ::write(report.get(), message.data(), message.size());
}

// Starts the child and says how that went. Returns whether it runs; throws when it could not even
// be recorded.
bool start(Child& child, const SpawnOptions& options, const ProcessDir& dir,
           const UniqueFd& report) {
  child = fork_child(options, dir);
  if (!options.private_text.empty()) dir.write(kPrivateFile, options.private_text);
  dir.write(kProcessFile, record_json(options, child));
  const std::string failure = open_gate(child);
  if (!failure.empty()) {
    ::waitpid(child.pid, nullptr, 0);
    dir.remove();
    send_report(report, kExitNotExecuted, failure);
    return false;
  }
  json::Object started;
  started.number("pid", child.pid).text("start_id", child.start);
  send_report(report, kExitOk, started.line());
  return true;
}

void record_exit(const ProcessDir& dir, const std::string& record) noexcept {
  try {
    dir.write(kExitFile, record);
  } catch (const std::exception&) {
    // Disk full or directory deleted: the process then counts as ended unseen.
  }
}

// Deletes the directory of a child that never ran and reports why it did not.
void abandon(const ProcessDir& dir, const UniqueFd& report, const std::string& why) {
  dir.remove();
  send_report(report, kExitFailed, why);
}

// Runs in its own detached process and returns when the child has ended. Reports as soon as it is
// known whether exec succeeded. A child that could not be started leaves no directory; a started
// one carries DLLM_PROCESS_DIR in its environment and can be recognised anywhere.
void supervise(const SpawnOptions& options, const ProcessDir& dir, UniqueFd report) {
  Child child;
  try {
    detach();
    settle_signals();
    if (!start(child, options, dir, report)) return;
  } catch (const std::exception& error) {
    abandon(dir, report, error.what());
    return;
  }
  report.reset();
  const int status = wait_for(child.pid, dir, options.log_limit);
  dir.discard(kPrivateFile);
  record_exit(dir, exit_json(child, status));
}

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

}  // namespace dllm
