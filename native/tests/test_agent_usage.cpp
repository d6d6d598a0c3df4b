#include <poll.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "agent/requests.h"
#include "agent/usage.h"
#include "check.h"
#include "json.h"

using check::TempDir;
using check::write;
using dllm::agent::Usage;
using dllm::agent::UsageProcess;
namespace json = dllm::json;

namespace {

json::Value reading(Usage& usage) {
  return json::parse(usage.read(::getpid()));
}

void machine(const TempDir& root, int busy, int idle, int bytes) {
  write(root, "proc/stat",
        "cpu  9 9 9 9\ncpu0 " + std::to_string(busy) + " 0 0 " + std::to_string(idle) +
            " 0 0 0 0 5 5\ncpu1 0 0 0 100 100 0 0 0\n" + "intr 1\n");
  const std::string traffic = std::to_string(bytes) + " 1 0 0 0 0 0 0 " + std::to_string(2 * bytes);
  write(root, "proc/net/dev",
        "Inter-| Receive\n face |bytes\n    lo: 7 1 0 0 0 0 0 0 7\n  eth0: " + traffic +
            " 1\ndocker0: 5555 1 0 0 0 0 0 0 5555 1\n");
  write(root, "proc/diskstats",
        "8 0 sda 1 2 " + std::to_string(bytes) + " 4 5 6 1 8\n" +
            "8 1 sda1 1 2 99999 4 5 6 99999 8\n");
  write(root, "proc/meminfo", "MemTotal: 1 kB\nSwapTotal: 100 kB\nSwapFree: 25 kB\n");
}

std::vector<std::string> taken(UsageProcess& process, std::size_t wanted) {
  std::vector<std::string> answers;
  while (answers.size() < wanted) {
    std::vector<pollfd> waited;
    process.add_to(waited);
    if (waited.empty() || ::poll(waited.data(), waited.size(), 10'000) < 1) break;
    for (std::string& one : process.take(waited)) answers.push_back(std::move(one));
  }
  return answers;
}

}  // namespace

#ifndef __APPLE__

TEST(loads_and_rates_are_of_the_time_between) {
  const TempDir root;
  std::filesystem::create_directories(root / "sys/class/net/eth0/device");
  std::filesystem::create_directories(root / "sys/block/sda/device");
  machine(root, 100, 100, 1000);
  Usage usage(root.path(), "");
  const json::Value first = reading(usage);
  CHECK(first.find("cores_permille")->array("cores").empty());
  CHECK(first.find("received_bytes_per_s") == nullptr);
  CHECK(json::integer_of(first, "swap_used_bytes") == 75 * 1024);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  machine(root, 175, 125, 1'001'000);
  const json::Value second = reading(usage);
  const auto& cores = second.find("cores_permille")->array("cores");
  CHECK(cores.size() == 2);
  CHECK(cores[0].integer("core") == 750 && cores[1].integer("core") == 0);
  // The bridge is not counted, nor the partition.
  const auto received = json::integer_of(second, "received_bytes_per_s");
  CHECK(received > 0 && received <= 1'000'000 / 0.02);
  const auto sent = json::integer_of(second, "sent_bytes_per_s");
  CHECK(sent / 2 >= received - 1 && sent / 2 <= received + 1);
  CHECK(json::integer_of(second, "read_bytes_per_s") / 512 <= received + 1);
  CHECK(json::integer_of(second, "written_bytes_per_s") == 0);
}

#endif

TEST(this_machine_by_a_process_of_its_own) {
  UsageProcess process;
  process.ask("7");
  process.ask("8");
  const std::vector<std::string> answers = taken(process, 2);
  CHECK(answers.size() == 2);
  const json::Value one = json::parse(answers[0]);
  CHECK(json::integer_of(one, "id") == 7 && json::integer_of(json::parse(answers[1]), "id") == 8);
  CHECK(json::integer_of(*one.find("ok"), "memory_total_bytes") > 0);
  CHECK(json::integer_of(*one.find("ok"), "agent_rss_bytes") > 0);
}

TEST(more_than_four_that_wait_are_refused) {
  UsageProcess process;
  for (const char* id : {"1", "2", "3", "4"}) process.ask(id);
  const std::string why = check::thrown<dllm::agent::Refusal>([&] { process.ask("5"); });
  CHECK(check::contains(why, "hangs"));
  CHECK(taken(process, 4).size() == 4);
}

RUN_TESTS()
