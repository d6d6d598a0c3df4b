#include "pacer.h"

#include <algorithm>

#ifdef __linux__
#include <sys/prctl.h>
#endif

namespace dllm {

namespace {

// How soon a delay that was switched off ends for bytes under way.
constexpr Nanos kLookAgain = 20 * kNanosPerMilli;
// Handed on in one piece, about.
constexpr std::size_t kDeliveredBytes = 64 << 10;

void sleep_precisely() {
#ifdef __linux__
  ::prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
#endif
}

}  // namespace

Pacer::Pacer(const Lab& lab, std::uint64_t stream, Deliver deliver)
    : lab_(lab), deliver_(std::move(deliver)), schedule_(stream) {}

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
  if (!lab_.on() && steps_.empty() && !delivering_) {
    lock.unlock();
    return deliver_(bytes);
  }
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  while (!bytes.empty() && !broken_) {
    const Bytes step = bytes.first(std::min(bytes.size(), kStepBytes));
    push(lock, step);
    bytes = bytes.subspan(step.size());
  }
  return !broken_;
}

void Pacer::push(std::unique_lock<std::mutex>& lock, Bytes bytes) {
  changed_.wait(lock, [&] { return broken_ || under_way_ + bytes.size() <= kUnderWayMaxBytes; });
  if (const std::uint64_t now = lab_.generation(); now != generation_) {
    generation_ = now;
    schedule_.apply(lab_.get());
  }
  const bool idle = steps_.empty() && !delivering_;
  const Nanos due = schedule_.arrival(monotonic_now(), bytes.size(), idle);
  steps_.push_back({due, {bytes.begin(), bytes.end()}});
  under_way_ += bytes.size();
  changed_.notify_all();
}

// False when there is nothing left to wait for.
bool Pacer::wait_for_due(std::unique_lock<std::mutex>& lock) {
  changed_.wait(lock, [&] { return ending_ || !steps_.empty(); });
  while (!ending_ && lab_.on()) {
    const Nanos left = steps_.front().due - monotonic_now();
    if (left <= 0) break;
    const std::chrono::nanoseconds pause(std::min(left, kLookAgain));
    changed_.wait_for(lock, pause, [&] { return ending_; });
  }
  return !ending_;
}

// The first step, and with it what is due by now as well: fewer calls, so that nobody falls behind.
Pacer::Step Pacer::take_due() {
  const Nanos now = monotonic_now();
  Step taken = std::move(steps_.front());
  steps_.pop_front();
  while (!steps_.empty() && steps_.front().due <= now && taken.bytes.size() < kDeliveredBytes) {
    const std::vector<std::uint8_t>& more = steps_.front().bytes;
    taken.bytes.insert(taken.bytes.end(), more.begin(), more.end());
    steps_.pop_front();
  }
  return taken;
}

void Pacer::run() {
  sleep_precisely();
  std::unique_lock lock(mutex_);
  while (wait_for_due(lock)) {
    Step step = take_due();
    delivering_ = true;
    lock.unlock();
    const bool taken = broken_ || deliver_(step.bytes);
    lock.lock();
    delivering_ = false;
    under_way_ -= step.bytes.size();
    broken_ = broken_ || !taken;
    changed_.notify_all();
  }
}

void Pacer::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return broken_ || (steps_.empty() && !delivering_); });
}

}  // namespace dllm
