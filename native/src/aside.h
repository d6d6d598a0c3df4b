// Work beside others that may never end, as on a disk that hangs: who waits for it does so for a
// while, and leaves it behind.
#pragma once

#include <chrono>
#include <functional>
#include <future>

namespace dllm {

// Nothing that the work uses may go away before it has ended, unless the process does.
class Aside {
 public:
  // Begins at once, on a thread of its own.
  explicit Aside(std::function<void()> work);
  // Whether it has ended, by then at the latest.
  [[nodiscard]] bool ends_within(std::chrono::milliseconds patience) const;

 private:
  std::future<void> ended_;
};

}  // namespace dllm
