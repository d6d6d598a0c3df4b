#include "delay_line.h"

#include <algorithm>

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

}  // namespace dllm
