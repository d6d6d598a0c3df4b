// What the kernel tells without being asked: directories that change, processes that end.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

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

}  // namespace dllm::agent
