#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <system_error>

#include "check.h"
#include "posix.h"

using check::contains;
using check::slurp;
using check::spill;
using check::thrown;
using dllm::Pipe;
using dllm::UniqueFd;

namespace {

bool is_open(int fd) {
  return ::fcntl(fd, F_GETFD) != -1;
}

// Runs `body` in a process of its own; its exit status.
template <typename Body>
int in_child(Body&& body) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(body());
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST(a_descriptor_closes_with_its_owner) {
  int number = -1;
  {
    const UniqueFd fd(::open("/dev/null", O_RDONLY));
    number = fd.get();
    CHECK(is_open(number));
  }
  CHECK(!is_open(number));
}

TEST(moving_hands_the_descriptor_over) {
  UniqueFd first(::open("/dev/null", O_RDONLY));
  const int number = first.get();
  UniqueFd second = std::move(first);
  CHECK(second.get() == number);
  UniqueFd third(::open("/dev/null", O_RDONLY));
  const int replaced = third.get();
  third = std::move(second);
  CHECK(third.get() == number && !is_open(replaced));
  third.reset();
  CHECK(!third && !is_open(number));
}

TEST(interrupted_calls_are_repeated) {
  int calls = 0;
  const int result = dllm::retry([&] {
    errno = EINTR;
    return ++calls < 3 ? -1 : 7;
  });
  CHECK(result == 7 && calls == 3);
}

TEST(failures_carry_the_reason) {
  const std::string text =
      thrown<std::system_error>([] { dllm::open_at(AT_FDCWD, "/does/not/exist", O_RDONLY); });
  CHECK(contains(text, "/does/not/exist") && contains(text, "No such file"));
}

TEST(pipes_carry_data_and_do_not_survive_exec) {
  Pipe pipe = dllm::make_pipe();
  CHECK(::fcntl(pipe.reader.get(), F_GETFD) & FD_CLOEXEC);
  CHECK(::fcntl(pipe.writer.get(), F_GETFD) & FD_CLOEXEC);
  dllm::write_all(pipe.writer.get(), "hello", "write");
  CHECK(dllm::read_all(pipe.reader.get(), 2) == "he");
  pipe.writer.reset();
  CHECK(dllm::read_all(pipe.reader.get(), 100) == "llo");
}

TEST(files_are_replaced_whole_and_private) {
  const check::TempDir dir;
  const UniqueFd fd = dllm::open_at(AT_FDCWD, dir.path(), O_RDONLY | O_DIRECTORY);
  dllm::write_file_atomic(fd.get(), "a", "one");
  dllm::write_file_atomic(fd.get(), "a", "two");
  CHECK(slurp(dir / "a") == "two");
  CHECK(!std::filesystem::exists(dir / "a.tmp"));
  const auto mode = std::filesystem::status(dir / "a").permissions();
  CHECK((mode & std::filesystem::perms::mask) ==
        (std::filesystem::perms::owner_read | std::filesystem::perms::owner_write));
}

TEST(a_failed_replacement_leaves_nothing) {
  const check::TempDir dir;
  const UniqueFd fd = dllm::open_at(AT_FDCWD, dir.path(), O_RDONLY | O_DIRECTORY);
  std::filesystem::create_directories(dir / "a/in the way");
  CHECK(contains(thrown<std::system_error>([&] { dllm::write_file_atomic(fd.get(), "a", "x"); }),
                 "cannot write a"));
  CHECK(!std::filesystem::exists(dir / "a.tmp"));
}

TEST(all_descriptors_from_one_on_are_closed) {
  CHECK(in_child([] {
          const int near = ::open("/dev/null", O_RDONLY);
          const int far = ::dup2(near, 200);
          dllm::close_from(near);
          return !is_open(near) && !is_open(far) && is_open(1) ? 0 : 1;
        }) == 0);
}

TEST(closed_standard_descriptors_are_filled) {
  CHECK(in_child([] {
          ::close(0);
          ::close(2);
          const int beyond = ::open("/dev/null", O_RDONLY);  // takes 0
          ::close(beyond);
          dllm::ensure_standard_fds();
          return is_open(0) && is_open(1) && is_open(2) ? 0 : 1;
        }) == 0);
}

TEST(signals_go_back_to_their_defaults) {
  CHECK(in_child([] {
          ::signal(SIGPIPE, SIG_IGN);
          sigset_t all;
          sigfillset(&all);
          ::sigprocmask(SIG_SETMASK, &all, nullptr);
          dllm::reset_signals();
          sigset_t blocked;
          ::sigprocmask(SIG_SETMASK, nullptr, &blocked);
          return ::signal(SIGPIPE, SIG_DFL) == SIG_DFL && !sigismember(&blocked, SIGTERM) ? 0 : 1;
        }) == 0);
}

RUN_TESTS()
