#include "aside.h"

#include <unistd.h>

#include <csignal>
#include <exception>
#include <thread>
#include <utility>

#include "posix.h"

namespace dllm {

Aside::Aside(std::function<void()> work) {
  std::promise<void> promise;
  ended_ = promise.get_future();
  std::thread([work = std::move(work), promise = std::move(promise)]() mutable {
    try {
      work();
    } catch (const std::exception& error) {
      // Without this work the program is of no use: it ends in order, and is started again.
      log(Level::kError, error.what());
      ::kill(::getpid(), SIGTERM);
    }
    promise.set_value();
  }).detach();
}

bool Aside::ends_within(std::chrono::milliseconds patience) const {
  return ended_.wait_for(patience) == std::future_status::ready;
}

}  // namespace dllm
