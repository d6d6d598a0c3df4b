#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "agent/process_dir.h"
#include "check.h"

#ifdef __linux__
#include <sys/prctl.h>
#endif

using dllm::start_id;

namespace {

pid_t sleeper() {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::pause();
    ::_exit(0);
  }
  return pid;
}

}  // namespace

TEST(is_stable_and_tells_processes_apart) {
  const pid_t child = sleeper();
  CHECK(!start_id(child).empty());
  CHECK(start_id(child) == start_id(child));
  CHECK(start_id(::getpid()) == start_id(::getpid()));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST(a_zombie_and_a_reaped_process_have_none) {
  const pid_t child = sleeper();
  ::kill(child, SIGKILL);
  siginfo_t info;
  ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
  CHECK(start_id(child).empty());
  ::waitpid(child, nullptr, 0);
  CHECK(start_id(child).empty());
}

TEST(nonsense_numbers_have_none) {
  CHECK(start_id(0).empty());
  CHECK(start_id(-1).empty());
  CHECK(start_id(1 << 30).empty());
}

#ifdef __linux__
TEST(brackets_and_spaces_in_the_name_do_not_matter) {
  const std::string before = start_id(::getpid());
  ::prctl(PR_SET_NAME, "a) Z 1 (b c");
  CHECK(start_id(::getpid()) == before);
  CHECK(before.find(':') == 36);
}
#endif

RUN_TESTS()
