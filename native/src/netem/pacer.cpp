#include "pacer.h"

#include <algorithm>

#include "link/kernel.h"

namespace dllm {

Pacer::Pacer(const Lab& lab, std::uint64_t stream, Deliver deliver)
    : lab_(lab), deliver_(std::move(deliver)), line_(lab, stream) {}

Pacer::~Pacer() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool Pacer::send(Bytes bytes) {
  // Only this thread starts the other, so this needs no lock.
  if (!thread_.joinable() && !lab_.on()) return deliver_(bytes);
  return enqueue(bytes);
}

bool Pacer::enqueue(Bytes bytes) {
  std::unique_lock lock(mutex_);
  if (line_.is_idle() && delivering_ == 0) {
    lock.unlock();
    return deliver_(bytes);
  }
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  while (!bytes.empty() && !broken_) {
    const Bytes step = bytes.first(std::min(bytes.size(), DelayLine::kStepBytes));
    push(lock, step);
    bytes = bytes.subspan(step.size());
  }
  return !broken_;
}

void Pacer::push(std::unique_lock<std::mutex>& lock, Bytes bytes) {
  changed_.wait(lock, [&] { return broken_ || line_.has_room(bytes.size() + delivering_); });
  line_.push(bytes, monotonic_now(), line_.empty() && delivering_ == 0);
  changed_.notify_all();
}

// False when there is nothing left to wait for.
bool Pacer::wait_for_due(std::unique_lock<std::mutex>& lock) {
  changed_.wait(lock, [&] { return ending_ || !line_.empty(); });
  while (!ending_) {
    const Nanos now = monotonic_now();
    const Nanos left = line_.due(now) - now;
    if (left <= 0) break;
    const std::chrono::nanoseconds pause(std::min(left, DelayLine::kLookAgain));
    changed_.wait_for(lock, pause, [&] { return ending_; });
  }
  return !ending_;
}

void Pacer::run() {
  sleep_precisely();
  std::unique_lock lock(mutex_);
  while (wait_for_due(lock)) {
    std::vector<std::uint8_t> bytes = line_.take(monotonic_now());
    delivering_ = bytes.size();
    lock.unlock();
    const bool taken = broken_ || deliver_(bytes);
    lock.lock();
    delivering_ = 0;
    broken_ = broken_ || !taken;
    changed_.notify_all();
  }
}

void Pacer::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return broken_ || (line_.empty() && delivering_ == 0); });
}

}  // namespace dllm
