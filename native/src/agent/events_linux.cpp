#ifdef __linux__

#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <map>

#include "posix.h"
#include "process_watch.h"

namespace dllm::agent {

namespace {

// Not IN_MODIFY: a log that grows is no news.
constexpr std::uint32_t kChanges = IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO |
                                   IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR;
constexpr int kTakenAtOnce = 32;
// The descriptor of the directories among those of processes, whose numbers are above 0.
constexpr pid_t kDirectories = 0;

UniqueFd open_process(pid_t pid) {
#ifdef SYS_pidfd_open
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0U)));
#else
  errno = ENOSYS;
  return UniqueFd();
#endif
}

class LinuxEvents : public Events {
 public:
  LinuxEvents(UniqueFd poller, UniqueFd directories)
      : poller_(std::move(poller)), directories_(std::move(directories)) {}

  [[nodiscard]] int fd() const override { return poller_.get(); }

  bool watch_directory(const std::string& path) override { return add_directory(path) >= 0; }

  void forget_directory(const std::string& path) override {
    // Adding it again gives the number it has.
    const int watch = add_directory(path);
    if (watch >= 0) ::inotify_rm_watch(directories_.get(), watch);
  }

  bool watch_process(pid_t pid) override {
    if (processes_.contains(pid)) return true;
    UniqueFd process = open_process(pid);
    if (!process || !add(process.get(), pid)) return false;
    processes_.emplace(pid, std::move(process));
    return true;
  }

  bool add(int fd, pid_t pid) const {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = pid;
    return ::epoll_ctl(poller_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
  }

  void take() override {
    std::array<epoll_event, kTakenAtOnce> told{};
    const int count =
        retry([&] { return ::epoll_wait(poller_.get(), told.data(), kTakenAtOnce, 0); });
    for (int i = 0; i < count; ++i) {
      const pid_t pid = told[static_cast<std::size_t>(i)].data.fd;
      if (pid == kDirectories) {
        take_directories();
      } else {
        // Closing it also ends the waiting for it.
        processes_.erase(pid);
      }
    }
  }

 private:
  [[nodiscard]] int add_directory(const std::string& path) const {
    return ::inotify_add_watch(directories_.get(), path.c_str(), kChanges);
  }

  void take_directories() const {
    std::array<char, 16 * 1024> events{};
    while (::read(directories_.get(), events.data(), events.size()) > 0) {
    }
  }

  UniqueFd poller_;
  UniqueFd directories_;
  std::map<pid_t, UniqueFd> processes_;
};

}  // namespace

std::unique_ptr<Events> kernel_events() {
  UniqueFd poller(::epoll_create1(EPOLL_CLOEXEC));
  UniqueFd directories(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!poller || !directories) return nullptr;
  const int fd = directories.get();
  auto events = std::make_unique<LinuxEvents>(std::move(poller), std::move(directories));
  return events->add(fd, kDirectories) ? std::move(events) : nullptr;
}

}  // namespace dllm::agent

#endif
