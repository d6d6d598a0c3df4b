// The watch, told by the kernel and by looking: arrivals, ends and removals, each once.
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "agent/process_dir.h"
#include "agent/process_watch.h"
#include "check.h"

using check::contains;
using check::spill;
using check::TempDir;
using dllm::agent::Clock;
using dllm::agent::ProcessWatch;
using dllm::agent::RunDir;

namespace {

constexpr auto kPatience = std::chrono::seconds(30);
constexpr auto kToldWithin = std::chrono::seconds(1);

// What is told within a time; waits as the agent does.
std::vector<std::string> told(ProcessWatch& watch, std::chrono::milliseconds within,
                              std::size_t enough) {
  std::vector<std::string> lines;
  const auto end = Clock::now() + within;
  while (Clock::now() < end && lines.size() < enough) {
    const auto due = std::min(watch.deadline().value_or(end), end);
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(due - Clock::now());
    pollfd ready{watch.fd(), POLLIN, 0};
    ::poll(&ready, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
    const bool is_due = watch.deadline() && Clock::now() >= *watch.deadline();
    if (ready.revents == 0 && !is_due) continue;
    for (std::string& line : watch.news(Clock::now())) lines.push_back(std::move(line));
  }
  return lines;
}

std::string one(ProcessWatch& watch) {
  const auto lines = told(watch, kPatience, 1);
  return lines.empty() ? "" : lines.front();
}

bool is_quiet(ProcessWatch& watch) {
  return told(watch, std::chrono::milliseconds(600), 1).empty();
}

std::string record_of(pid_t pid) {
  return R"({"pid":)" + std::to_string(pid) + R"(,"start_id":")" + dllm::start_id(pid) + R"("})";
}

void leads_a_life(const std::string& run, ProcessWatch& watch) {
  CHECK(watch.begin(Clock::now()).empty());
  CHECK(!std::filesystem::exists(run));
  CHECK(is_quiet(watch));
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::pause();
    ::_exit(0);
  }
  std::filesystem::create_directories(run + "/default/w");
  spill(run + "/default/w/new", record_of(pid));
  std::filesystem::rename(run + "/default/w/new", run + "/default/w/process.json");
  const std::string came = one(watch);
  CHECK(contains(came, R"("name":"default/w")") && contains(came, R"("alive":true)"));
  CHECK(is_quiet(watch));
  spill(run + "/default/w/log", "output is no news");
  CHECK(is_quiet(watch));
  // Either the kernel tells of an end, or it is seen soon.
  const auto next = watch.deadline();
  CHECK(!next || *next - Clock::now() < kToldWithin);
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  CHECK(contains(one(watch), R"("alive":false)"));
  CHECK(is_quiet(watch));
  std::filesystem::remove_all(run);
  CHECK(contains(one(watch), R"({"push":"removed","name":"default/w"})"));
  CHECK(is_quiet(watch));
}

}  // namespace

TEST(told_by_the_kernel) {
  const TempDir folder;
  const RunDir run(folder / "not/yet/there");
  ProcessWatch watch(run, dllm::agent::kernel_events());
  CHECK(watch.fd() >= 0);
  leads_a_life(run.path(), watch);
  CHECK(!watch.deadline());
}

TEST(found_by_looking) {
  const TempDir folder;
  const RunDir run(folder / "not/yet/there");
  ProcessWatch watch(run, nullptr);
  CHECK(watch.fd() == -1);
  leads_a_life(run.path(), watch);
}

TEST(an_end_waits_a_moment_for_its_cause) {
  const TempDir folder;
  const RunDir run(folder.path());
  std::filesystem::create_directories(folder / "p");
  // The supervisor, this process, lives; the process has ended.
  const std::string us = std::to_string(::getpid());
  const std::string identity = dllm::start_id(::getpid());
  spill(folder / "p/process.json", R"({"pid":1,"start_id":"gone","supervisor_pid":)" + us +
                                       R"(,"supervisor_start_id":")" + identity + "\"}");
  ProcessWatch watch(run, dllm::agent::kernel_events());
  CHECK(watch.begin(Clock::now()).empty());
  spill(folder / "p/new", R"({"pid":1,"start_id":"gone","code":4,"signal":null})");
  std::filesystem::rename(folder / "p/new", folder / "p/exit.json");
  CHECK(contains(one(watch), R"("code":4)"));
}

TEST(an_end_without_a_cause_is_told_in_time) {
  const TempDir folder;
  const RunDir run(folder.path());
  std::filesystem::create_directories(folder / "p");
  spill(folder / "p/process.json", R"({"pid":1,"start_id":"gone","supervisor_pid":)" +
                                       std::to_string(::getpid()) + R"(,"supervisor_start_id":")" +
                                       dllm::start_id(::getpid()) + "\"}");
  ProcessWatch watch(run, dllm::agent::kernel_events());
  const auto began = Clock::now();
  CHECK(watch.begin(began).empty());
  CHECK(watch.deadline() && *watch.deadline() - began < kToldWithin);
  CHECK(contains(one(watch), R"("code":null)"));
}

RUN_TESTS()
