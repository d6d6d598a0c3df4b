#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "agent/process_dir.h"
#include "check.h"
#include "protocol/json.h"

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

RUN_TESTS()
