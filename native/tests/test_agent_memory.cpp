#include <filesystem>

#include "agent/memory.h"
#include "check.h"

using check::TempDir;
using check::write;
using dllm::agent::memory_limits;

namespace {

void two(const TempDir& root, const std::string& group, const std::string& limit, int used,
         int cache) {
  write(root, "sys/fs/cgroup" + group + "/memory.max", limit + "\n");
  write(root, "sys/fs/cgroup" + group + "/memory.current", std::to_string(used) + "\n");
  write(root, "sys/fs/cgroup" + group + "/memory.stat",
        "anon 1\ninactive_file " + std::to_string(cache) + "\n");
}

}  // namespace

TEST(every_level_of_version_2_counts) {
  const TempDir root;
  write(root, "proc/self/cgroup", "0::/user.slice/session/work\n");
  two(root, "/user.slice", "1000", 700, 100);
  two(root, "/user.slice/session", "max", 10, 0);
  two(root, "/user.slice/session/work", "5000", 100, 0);
  const auto limits = memory_limits(root.path());
  CHECK(limits.size() == 2);
  CHECK(limits[0].limit_bytes == 5000 && limits[0].available_bytes == 4900);
  CHECK(limits[1].limit_bytes == 1000 && limits[1].available_bytes == 400);
  CHECK(limits[1].where == "/sys/fs/cgroup/user.slice");
}

TEST(a_container_whose_group_is_the_root) {
  const TempDir root;
  write(root, "proc/self/cgroup", "0::/system.slice/docker-1f.scope\n");
  two(root, "", "2000", 2500, 0);
  const auto limits = memory_limits(root.path());
  CHECK(limits.size() == 1);
  CHECK(limits[0].limit_bytes == 2000 && limits[0].available_bytes == 0);
}

TEST(version_1) {
  const TempDir root;
  write(root, "proc/self/cgroup", "12:pids:/x\n4:cpu,memory:/docker/1f\n1:name=systemd:/\n0::/\n");
  const std::string mount = "sys/fs/cgroup/memory";
  write(root, mount + "/docker/1f/memory.limit_in_bytes", "3000\n");
  write(root, mount + "/docker/1f/memory.usage_in_bytes", "1000\n");
  write(root, mount + "/docker/1f/memory.stat", "cache 5\ntotal_inactive_file 500\n");
  write(root, mount + "/memory.limit_in_bytes", "9223372036854771712\n");
  write(root, mount + "/memory.usage_in_bytes", "1\n");
  const auto limits = memory_limits(root.path());
  CHECK(limits.size() == 1);
  CHECK(limits[0].limit_bytes == 3000 && limits[0].available_bytes == 2500);
}

TEST(no_limit_and_nonsense_are_no_limit) {
  const TempDir root;
  CHECK(memory_limits(root.path()).empty());
  write(root, "proc/self/cgroup", "nonsense\n0::/a\n::\n");
  two(root, "/a", "nonsense", 1, 1);
  two(root, "", "", 1, 1);
  CHECK(memory_limits(root.path()).empty());
}

TEST(this_machine) {
  const auto memory = dllm::agent::machine_memory();
  CHECK(memory.total_bytes > 0 && memory.available_bytes > 0);
  CHECK(memory.available_bytes <= memory.total_bytes);
}

RUN_TESTS()
