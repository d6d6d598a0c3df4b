#include "aside.h"

#include <thread>
#include <utility>

namespace dllm {

Aside::Aside(std::function<void()> work) {
  std::promise<void> promise;
  ended_ = promise.get_future();
  std::thread([work = std::move(work), promise = std::move(promise)]() mutable {
    work();
    promise.set_value();
  }).detach();
}

bool Aside::ends_within(std::chrono::milliseconds patience) const {
  return ended_.wait_for(patience) == std::future_status::ready;
}

}  // namespace dllm
