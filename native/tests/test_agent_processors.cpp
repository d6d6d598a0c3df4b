#include <filesystem>

#include "agent/processors.h"
#include "check.h"

using check::TempDir;
using check::write;
using dllm::agent::machine_processors;

#ifdef __linux__

namespace {

const std::string kCpus = "sys/devices/system/cpu/cpu";

void core(const TempDir& root, int first, int last) {
  const std::string all = std::to_string(first) + "-" + std::to_string(last);
  for (int number = first; number <= last; ++number) {
    const std::string folder = kCpus + std::to_string(number) + "/topology/";
    write(root, folder + "thread_siblings_list", (first == last ? std::to_string(first) : all) + "\n");
  }
}

void allow(const TempDir& root, const std::string& list) {
  write(root, "proc/self/status", "Name:\tx\nCpus_allowed_list:\t" + list + "\n");
}

// Four cores of two threads, and eight efficiency cores.
void hybrid(const TempDir& root) {
  for (int number = 0; number < 8; number += 2) core(root, number, number + 1);
  for (int number = 8; number < 16; ++number) core(root, number, number);
  write(root, "sys/devices/cpu_core/cpus", "0-7\n");
}

}  // namespace

TEST(performance_cores_of_a_hybrid_count_once) {
  const TempDir root;
  hybrid(root);
  allow(root, "0-15");
  const auto found = machine_processors(root.path());
  CHECK(found.usable == 16 && found.performance == 4);
}

TEST(only_what_a_cpuset_allows_counts) {
  const TempDir root;
  hybrid(root);
  allow(root, "0-2,8");
  CHECK(machine_processors(root.path()).usable == 4);
  CHECK(machine_processors(root.path()).performance == 2);
  allow(root, "8-11");
  CHECK(machine_processors(root.path()).performance == 4);
}

TEST(little_cores_do_not_count) {
  const TempDir root;
  for (int number = 0; number < 6; ++number) {
    core(root, number, number);
    write(root, kCpus + std::to_string(number) + "/cpu_capacity", number < 4 ? "381\n" : "1024\n");
  }
  allow(root, "0-5");
  CHECK(machine_processors(root.path()).performance == 2);
}

TEST(a_container_may_use_so_many_at_a_time) {
  const TempDir root;
  hybrid(root);
  allow(root, "0-15");
  write(root, "proc/self/cgroup", "0::/a/b\n");
  write(root, "sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  write(root, "sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  CHECK(machine_processors(root.path()).performance == 2);
  write(root, "proc/self/cgroup", "4:cpu,cpuacct:/c\n");
  write(root, "sys/fs/cgroup/cpu/c/cpu.cfs_quota_us", "100000\n");
  write(root, "sys/fs/cgroup/cpu/c/cpu.cfs_period_us", "100000\n");
  write(root, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  write(root, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  CHECK(machine_processors(root.path()).performance == 1);
}

TEST(names_and_instructions) {
  const TempDir root;
  write(root, "proc/cpuinfo", "model name\t: AMD EPYC\nflags\t\t: fpu avx2\n\nflags\t\t: other\n");
  const auto found = machine_processors(root.path());
  CHECK(found.name == "AMD EPYC" && found.instructions == "fpu avx2");
  CHECK(found.usable >= 1 && found.performance == found.usable);
}

#endif

TEST(this_machine) {
  const auto found = machine_processors();
  CHECK(!found.name.empty() && !found.instructions.empty());
  CHECK(found.performance >= 1 && found.performance <= found.usable);
}

RUN_TESTS()
