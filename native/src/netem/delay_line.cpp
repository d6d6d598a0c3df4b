#include "delay_line.h"

#include <algorithm>

#include "link/kernel.h"

namespace dllm {

namespace {

// Handed on in one piece, about.
constexpr std::size_t kDeliveredBytes = 64 << 10;

// What a link without a limit carries: ten gigabits a second.
constexpr double kUnlimitedMBs = 1250;
constexpr double kBytesPerMsAt1MBs = 1e3;
constexpr std::size_t kUnderWayMinBytes = 6 << 20;
constexpr std::size_t kUnderWayMaxBytes = 256 << 20;

}  // namespace

std::size_t DelayLine::under_way_max(const LabSettings& lab) {
  const double rate = lab.rate_mb_s > 0 ? lab.rate_mb_s : kUnlimitedMBs;
  const double delay_ms = lab.latency_ms + 3 * lab.jitter_ms;
  const double filled = std::min(delay_ms * rate * kBytesPerMsAt1MBs, double(kUnderWayMaxBytes));
  return std::max(kUnderWayMinBytes, static_cast<std::size_t>(filled));
}

bool DelayLine::has_room(std::size_t bytes) {
  apply_changes(monotonic_now());
  return under_way_ + bytes <= under_way_max_;
}

void DelayLine::push(Bytes bytes, Nanos now, bool idle) {
  apply_changes(now);
  const Nanos due = schedule_.arrival(now, bytes.size(), idle);
  steps_.push_back({due, {bytes.begin(), bytes.end()}});
  under_way_ += bytes.size();
}

// What is under way arrives no later than it would if it left now.
void DelayLine::apply_changes(Nanos now) {
  const std::uint64_t generation = lab_.generation();
  if (generation == generation_) return;
  generation_ = generation;
  const LabSettings lab = lab_.get();
  schedule_.apply(lab);
  under_way_max_ = under_way_max(lab);
  for (Step& step : steps_) {
    step.due = std::min(step.due, schedule_.arrival(now, step.bytes.size(), false));
  }
}

Nanos DelayLine::due(Nanos now) {
  if (!lab_.on()) return now;
  apply_changes(now);
  return steps_.front().due;
}

// With the first step what is due by now as well: fewer calls, so that nobody falls behind.
std::vector<std::uint8_t> DelayLine::take(Nanos now) {
  std::vector<std::uint8_t> taken = std::move(steps_.front().bytes);
  steps_.pop_front();
  while (!steps_.empty() && steps_.front().due <= now && taken.size() < kDeliveredBytes) {
    const std::vector<std::uint8_t>& more = steps_.front().bytes;
    taken.insert(taken.end(), more.begin(), more.end());
    steps_.pop_front();
  }
  under_way_ -= taken.size();
  return taken;
}

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
