#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "agent/process_dir.h"
#include "check.h"
#include "json.h"
#include "posix.h"

#ifdef __linux__
#include <sys/prctl.h>
#endif

using check::contains;
using check::slurp;
using check::spill;
using check::thrown;
using dllm::ProcessDir;
using dllm::Refused;

namespace {

std::string record_of(pid_t pid, const std::string& start) {
  return dllm::json::Object().number("pid", pid).text("start_id", start).line();
}

std::string refusal(const std::string& path) {
  return thrown<Refused>([&] { ProcessDir::claim(path); });
}

}  // namespace

TEST(a_new_directory_is_private_and_has_its_parents) {
  const check::TempDir temp;
  const ProcessDir dir = ProcessDir::claim(temp / "run/worker");
  struct stat status{};
  CHECK(::stat((temp / "run/worker").c_str(), &status) == 0 && (status.st_mode & 0777) == 0700);
  CHECK(dir.path() == temp / "run/worker");
}

TEST(a_living_owner_keeps_its_directory) {
  const check::TempDir temp;
  spill(temp / "process.json", record_of(::getpid(), dllm::start_id(::getpid())));
  const std::string text = refusal(temp.path());
  CHECK(contains(text, "already runs") && contains(text, std::to_string(::getpid())));
}

TEST(another_process_with_the_same_number_does_not_count) {
  const check::TempDir temp;
  spill(temp / "process.json", record_of(::getpid(), "some-other-boot:17"));
  spill(temp / "exit.json", "{}");
  spill(temp / "log", "why it ended");
  spill(temp / "log.1", "before");
  const ProcessDir dir = ProcessDir::claim(temp.path());
  CHECK(!std::filesystem::exists(temp / "process.json"));
  CHECK(!std::filesystem::exists(temp / "exit.json"));
  CHECK(!std::filesystem::exists(temp / "log.1"));
  CHECK(slurp(temp / "log.old") == "why it ended");
}

TEST(an_unreadable_record_belongs_to_nobody) {
  for (const char* text : {"", "{", "null", "{\"pid\":-1,\"start_id\":\"\"}", "\xff\xfe"}) {
    const check::TempDir temp;
    spill(temp / "process.json", text);
    CHECK(refusal(temp.path()).empty());
  }
}

TEST(a_directory_with_other_files_is_never_touched) {
  const check::TempDir temp;
  spill(temp / "thesis.txt", "years of work");
  CHECK(contains(refusal(temp.path()), "thesis.txt"));
  CHECK(slurp(temp / "thesis.txt") == "years of work");
  CHECK(!std::filesystem::exists(temp / "lock"));
}

TEST(one_claim_at_a_time) {
  const check::TempDir temp;
  const ProcessDir held = ProcessDir::claim(temp / "a");
  CHECK(contains(refusal(temp / "a"), "being used"));
}

TEST(a_claim_waits_for_one_that_lets_go) {
  const check::TempDir temp;
  std::thread holder;
  {
    auto held = std::make_unique<ProcessDir>(ProcessDir::claim(temp / "a"));
    holder = std::thread([held = std::move(held)]() mutable {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      held->remove();
      held.reset();
    });
  }
  CHECK(refusal(temp / "a").empty());
  holder.join();
  CHECK(std::filesystem::exists(temp / "a/lock"));
}

TEST(removal_takes_only_what_is_ours) {
  const check::TempDir temp;
  const ProcessDir dir = ProcessDir::claim(temp / "a");
  dir.write(dllm::kProcessFile, "{}");
  const dllm::UniqueFd log = dir.open_log();
  spill(temp / "a/core", "dump");
  dir.remove();
  CHECK(std::filesystem::exists(temp / "a/core") && !std::filesystem::exists(temp / "a/log"));
  std::filesystem::remove(temp / "a/core");
  dir.remove();
  CHECK(!std::filesystem::exists(temp / "a"));
}

TEST(the_log_is_never_written_through_a_link) {
  const check::TempDir temp;
  const ProcessDir dir = ProcessDir::claim(temp / "a");
  std::filesystem::create_symlink(temp / "elsewhere", temp / "a/log");
  CHECK(!thrown<std::system_error>([&] { static_cast<void>(dir.open_log()); }).empty());
  CHECK(!std::filesystem::exists(temp / "elsewhere"));
}

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

using dllm::enforce_log_limit;

namespace {

dllm::UniqueFd open_dir(const check::TempDir& dir) {
  return dllm::open_at(AT_FDCWD, dir.path(), O_RDONLY | O_DIRECTORY);
}

}  // namespace

TEST(a_log_within_its_limit_is_left_alone) {
  const check::TempDir dir;
  spill(dir / "log", "12345");
  CHECK(!enforce_log_limit(open_dir(dir).get(), 5));
  CHECK(slurp(dir / "log") == "12345");
  CHECK(!std::filesystem::exists(dir / "log.1"));
}

TEST(the_newest_bytes_are_kept_aside) {
  const check::TempDir dir;
  spill(dir / "log", "0123456789");
  spill(dir / "log.1", "older");
  CHECK(enforce_log_limit(open_dir(dir).get(), 4));
  CHECK(slurp(dir / "log").empty());
  CHECK(slurp(dir / "log.1") == "6789");
}

TEST(a_writer_goes_on_at_the_beginning) {
  const check::TempDir dir;
  const auto writer = dllm::open_at(AT_FDCWD, dir / "log", O_WRONLY | O_CREAT | O_APPEND, 0600);
  dllm::write_all(writer.get(), std::string(1 << 20, 'x'), "write");
  CHECK(enforce_log_limit(open_dir(dir).get(), 1000));
  dllm::write_all(writer.get(), "next", "write");
  CHECK(slurp(dir / "log") == "next");
  CHECK(slurp(dir / "log.1") == std::string(1000, 'x'));
}

TEST(what_cannot_be_copied_is_still_emptied) {
  const check::TempDir dir;
  spill(dir / "log", "0123456789");
  std::filesystem::create_directories(dir / "log.1/in the way");
  CHECK(enforce_log_limit(open_dir(dir).get(), 4));
  CHECK(slurp(dir / "log").empty());
  CHECK(!std::filesystem::exists(dir / "log.1.tmp"));
}

TEST(no_limit_and_no_log_do_nothing) {
  const check::TempDir dir;
  CHECK(!enforce_log_limit(open_dir(dir).get(), 1));
  spill(dir / "log", "0123456789");
  CHECK(!enforce_log_limit(open_dir(dir).get(), 0));
  CHECK(slurp(dir / "log") == "0123456789");
}

RUN_TESTS()
