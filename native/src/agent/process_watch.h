// Sees processes come, end and go, and says so once.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "records.h"

namespace dllm::agent {

// One descriptor to wait for. What it tells may be too much, never too little: who is woken looks.
class Events {
 public:
  virtual ~Events() = default;

  // Becomes readable when something happened.
  [[nodiscard]] virtual int fd() const = 0;

  // Whether entries of this directory that come, go or are replaced will be told of; watching one
  // again is fine. False when there is no such directory or the kernel watches no more.
  virtual bool watch_directory(const std::string& path) = 0;

  // No longer tell of a directory that was watched.
  virtual void forget_directory(const std::string& path) = 0;

  // Whether the end of a process will be told of; watching one again is fine. False when it is gone
  // or the kernel watches no more.
  virtual bool watch_process(pid_t pid) = 0;

  // Take what has been told, so that `fd` is quiet until more happens.
  virtual void take() = 0;
};

// None when the kernel offers nothing of the kind.
std::unique_ptr<Events> kernel_events();

using Clock = std::chrono::steady_clock;

class ProcessWatch {
 public:
  // Without `events`, and where they do not reach, it looks every 250 ms.
  ProcessWatch(const RunDir& run, std::unique_ptr<Events> events)
      : run_(run), events_(std::move(events)) {}

  // Readable when something happened; -1 where nobody tells.
  [[nodiscard]] int fd() const { return events_ ? events_->fd() : -1; }

  // Everything there is, as JSON by name; from now on `news` tells what changes.
  std::vector<std::string> begin(Clock::time_point now);

  // What changed since, as lines; after `fd` became readable or `deadline` passed.
  std::vector<std::string> news(Clock::time_point now);

  // When to look although nothing was told; none: never.
  [[nodiscard]] std::optional<Clock::time_point> deadline() const { return deadline_; }

 private:
  std::map<std::string, Record> look(Clock::time_point now);
  void watch_run_dir();
  void watch_directories();
  void watch_process(pid_t pid, const std::string& identity);
  bool held_back(const Record& record, Clock::time_point now);
  void look_again_at(Clock::time_point when);

  const RunDir& run_;
  std::unique_ptr<Events> events_;
  std::map<std::string, std::string> told_;        // name to what was said last
  std::map<std::string, Clock::time_point> ends_;  // since when an end waits for its cause
  std::string ancestor_;                           // watched while there is no run directory
  bool blind_ = false;                             // something is not watched
  std::optional<Clock::time_point> deadline_;
};

}  // namespace dllm::agent
