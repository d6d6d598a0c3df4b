// The processes that belong to a process directory, and ending them.
//
// A process tree is the started process (the leader) and everything it started: whoever shares its
// session or process group, or carries DLLM_PROCESS_DIR of that directory.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <compare>
#include <string>
#include <vector>

#include "records.h"

namespace dllm::agent {

// One process, never mistaken for a later one with its number.
struct Member {
  pid_t pid = 0;
  std::string start_id;

  [[nodiscard]] bool alive() const;
  auto operator<=>(const Member&) const = default;
};

// Everything alive that belongs to a process; `known` was seen before.
//
// Session and group count as long as something certain is left in them: the leader, a marked or a
// known process. Otherwise their number may be another's by now (daemons live in sessions whose
// leader is gone), and nobody must ever be ended by mistake.
std::vector<Member> find_process_tree(const RunDir& run, const std::string& name,
                                      const std::vector<Member>& known = {});

struct Patience {
  std::chrono::duration<double> grace{5};
  std::chrono::duration<double> kill{10};       // an uninterruptible read of a slow disk ends
  std::chrono::duration<double> supervisor{2};  // it writes how its child ended
};

// TERM to a process tree, KILL to what is left after the grace, then sees the supervisor off.
// Returns who outlived SIGKILL.
std::vector<pid_t> end_process_tree(const RunDir& run, const std::string& name,
                                    const Patience& patience);

struct Orphan {
  std::string name;  // what to stop it by
  Member member;
  std::vector<std::string> argv;
};

// Processes that carry a marker below the run directory but have no living record.
std::vector<Orphan> find_orphans(const RunDir& run);

}  // namespace dllm::agent
