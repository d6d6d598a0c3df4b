#include "process_tree.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <set>
#include <thread>

#include "posix.h"
#include "process_dir.h"
#include "system.h"

namespace dllm::agent {

namespace {

using std::chrono::steady_clock;
using Deadline = steady_clock::time_point;
using Members = std::vector<Member>;

constexpr auto kPause = std::chrono::milliseconds(20);

Deadline after(std::chrono::duration<double> patience) {
  return steady_clock::now() + std::chrono::duration_cast<steady_clock::duration>(patience);
}

std::vector<pid_t> other_pids() {
  std::vector<pid_t> pids = all_pids();
  std::erase_if(pids, [](pid_t pid) { return pid == ::getpid() || pid == ::getppid(); });
  return pids;
}

// The session and group a record's process tree leads; 0 when another process has that number.
pid_t leader_number(const std::optional<Record>& record) {
  if (!record || record->pid == 0) return 0;
  const std::string present = start_id(record->pid);
  return present.empty() || present == record->start_id ? record->pid : 0;
}

Members living(const std::set<pid_t>& pids) {
  Members members;
  for (const pid_t pid : pids) {
    if (std::string identity = start_id(pid); !identity.empty()) {
      members.push_back({pid, std::move(identity)});
    }
  }
  return members;
}

bool intersects(const std::set<pid_t>& one, const std::set<pid_t>& other) {
  return std::any_of(one.begin(), one.end(), [&](pid_t pid) { return other.contains(pid); });
}

bool any_alive(const Members& members) {
  return std::any_of(members.begin(), members.end(), [](const Member& m) { return m.alive(); });
}

// Whether all are gone in time.
bool wait_gone(const Members& members, Deadline deadline) {
  while (any_alive(members)) {
    if (steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

// Ends one process tree; remembers whom it saw, because what told that they are related may go
// first.
class Ending {
 public:
  Ending(const RunDir& run, const std::string& name)
      : run_(run), name_(name), first_(run.read(name)) {}

  // Signals each member once, newcomers too; whether all are gone in time.
  bool end_with(int number, Deadline deadline) {
    std::set<Member> told;
    for (left_ = present(); !left_.empty(); left_ = present()) {
      Members newcomers;
      for (const Member& member : left_) {
        if (told.insert(member).second) newcomers.push_back(member);
      }
      tell(newcomers, number);
      if (!wait_gone(left_, deadline)) return false;
    }
    return true;
  }

  [[nodiscard]] std::vector<pid_t> left() const {
    std::vector<pid_t> pids;
    for (const Member& member : left_) {
      if (member.alive()) pids.push_back(member.pid);
    }
    return pids;
  }

  // Whoever comes now must not count on what is about to end.
  void announce() const {
    if (!first_ || !first_->alive) return;
    const std::string path = run_.directory(name_) + "/" + kStoppingFile;
    const UniqueFd file(retry(
        [&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600); }));
  }

  // Lets the supervisor write how it ended; ends it if it does not come to that.
  void end_supervisor(std::chrono::duration<double> patience) const {
    if (!first_ || first_->supervisor_pid == 0) return;
    const Members supervisor = {{first_->supervisor_pid, first_->supervisor_start_id}};
    if (wait_gone(supervisor, after(patience))) return;
    ::kill(first_->supervisor_pid, SIGKILL);
    wait_gone(supervisor, after(patience));
  }

 private:
  Members present() {
    if (was_replaced()) return {};
    Members members = find_process_tree(run_, name_, known_);
    for (const Member& member : members) {
      if (std::find(known_.begin(), known_.end(), member) == known_.end()) {
        known_.push_back(member);
      }
    }
    return members;
  }

  // Whether a later process has that name now. A start is refused while anything of a tree
  // lives, so all of ours are gone; an end that was begun long ago must not take the new one.
  [[nodiscard]] bool was_replaced() const {
    const auto now = run_.read(name_);
    if (!now || now->pid == 0) return false;
    return !first_ || first_->pid != now->pid || first_->start_id != now->start_id;
  }

  // The group at once, so that forking cannot outrun it, then the others.
  void tell(const Members& members, int number) const {
    const pid_t group = first_ ? first_->pid : 0;
    const bool led = group > 0 && std::any_of(members.begin(), members.end(), [&](const Member& m) {
                       return m.alive() && ::getpgid(m.pid) == group;
                     });
    // A living member in the group proves that its number was not given away.
    if (led) ::kill(-group, number);
    for (const Member& member : members) {
      if (!member.alive()) continue;
      if (!led || ::getpgid(member.pid) != group) ::kill(member.pid, number);
      // A stopped process hears TERM only once it is continued.
      if (number == SIGTERM) ::kill(member.pid, SIGCONT);
    }
  }

  const RunDir& run_;
  const std::string& name_;
  std::optional<Record> first_;
  Members known_;
  Members left_;
};

}  // namespace

bool Member::alive() const {
  return pid > 0 && !start_id.empty() && dllm::start_id(pid) == start_id;
}

std::vector<Member> find_process_tree(const RunDir& run, const std::string& name,
                                      const std::vector<Member>& known) {
  const std::string directory = run.directory(name);
  const pid_t leader = leader_number(run.read(name));
  std::set<pid_t> certain, grouped;
  for (const Member& member : known) {
    if (member.alive()) certain.insert(member.pid);
  }
  for (const pid_t pid : other_pids()) {
    if (variable_of(pid, kMarkerVariable) == directory) certain.insert(pid);
    if (leader > 0 && (::getsid(pid) == leader || ::getpgid(pid) == leader)) grouped.insert(pid);
  }
  if (grouped.contains(leader) || intersects(certain, grouped)) {
    certain.insert(grouped.begin(), grouped.end());
  }
  return living(certain);
}

std::vector<pid_t> end_process_tree(const RunDir& run, const std::string& name,
                                    const Patience& patience) {
  Ending ending(run, name);
  ending.announce();
  if (!ending.end_with(SIGTERM, after(patience.grace)) &&
      !ending.end_with(SIGKILL, after(patience.kill))) {
    return ending.left();
  }
  ending.end_supervisor(patience.supervisor);
  return {};
}

std::vector<Orphan> find_orphans(const RunDir& run) {
  const std::string prefix = run.path() + "/";
  std::map<std::string, bool> covered;
  std::vector<Orphan> orphans;
  for (const pid_t pid : other_pids()) {
    const std::string mark = variable_of(pid, kMarkerVariable);
    if (!mark.starts_with(prefix)) continue;
    const std::string name = mark.substr(prefix.size());
    if (!is_process_name(name)) continue;
    if (!covered.contains(name)) {
      const auto record = run.read(name);
      covered[name] = record && record->alive;
    }
    std::string identity = start_id(pid);
    if (covered[name] || identity.empty()) continue;
    orphans.push_back({name, {pid, std::move(identity)}, argv_of(pid)});
  }
  return orphans;
}

}  // namespace dllm::agent
