#ifdef __APPLE__

#include <fcntl.h>
#include <sys/event.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <map>
#include <set>

#include "posix.h"
#include "process_watch.h"

namespace dllm::agent {

namespace {

constexpr int kTakenAtOnce = 32;
constexpr unsigned kChanges = NOTE_WRITE | NOTE_DELETE | NOTE_RENAME | NOTE_REVOKE;

// Whether a path still leads to the directory that is open.
bool is_same_directory(const std::string& path, int fd) {
  struct stat there{}, open{};
  return ::stat(path.c_str(), &there) == 0 && ::fstat(fd, &open) == 0 &&
         there.st_dev == open.st_dev && there.st_ino == open.st_ino;
}

class MacEvents : public Events {
 public:
  explicit MacEvents(UniqueFd queue) : queue_(std::move(queue)) {}

  [[nodiscard]] int fd() const override { return queue_.get(); }

  bool watch_directory(const std::string& path) override {
    const auto found = directories_.find(path);
    if (found != directories_.end() && is_same_directory(path, found->second.get())) return true;
    UniqueFd directory(
        retry([&] { return ::open(path.c_str(), O_EVTONLY | O_DIRECTORY | O_CLOEXEC); }));
    if (!directory) return false;
    struct kevent change;
    EV_SET(&change, directory.get(), EVFILT_VNODE, EV_ADD | EV_CLEAR, kChanges, 0, nullptr);
    if (::kevent(queue_.get(), &change, 1, nullptr, 0, nullptr) != 0) return false;
    directories_.insert_or_assign(path, std::move(directory));
    return true;
  }

  // Closing a descriptor ends what it watches.
  void forget_directory(const std::string& path) override { directories_.erase(path); }

  bool watch_process(pid_t pid) override {
    if (processes_.contains(pid)) return true;
    struct kevent change;
    EV_SET(&change, pid, EVFILT_PROC, EV_ADD | EV_ONESHOT, NOTE_EXIT, 0, nullptr);
    if (::kevent(queue_.get(), &change, 1, nullptr, 0, nullptr) != 0) return false;
    processes_.insert(pid);
    return true;
  }

  void take() override {
    std::array<struct kevent, kTakenAtOnce> told;
    const timespec at_once{};
    const int count = retry(
        [&] { return ::kevent(queue_.get(), nullptr, 0, told.data(), kTakenAtOnce, &at_once); });
    for (int i = 0; i < count; ++i) {
      const struct kevent& event = told[static_cast<std::size_t>(i)];
      if (event.filter == EVFILT_PROC) processes_.erase(static_cast<pid_t>(event.ident));
    }
    // Of a directory that was deleted nothing more is told.
    std::erase_if(directories_, [](const auto& watched) {
      return !is_same_directory(watched.first, watched.second.get());
    });
  }

 private:
  UniqueFd queue_;
  std::map<std::string, UniqueFd> directories_;
  std::set<pid_t> processes_;
};

}  // namespace

std::unique_ptr<Events> kernel_events() {
  UniqueFd queue(::kqueue());
  return queue ? std::make_unique<MacEvents>(std::move(queue)) : nullptr;
}

}  // namespace dllm::agent

#endif
