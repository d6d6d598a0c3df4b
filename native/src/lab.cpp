#include "lab.h"

#include <algorithm>

namespace dllm {

namespace {

constexpr double kNanosPerMilli = 1e6;
constexpr double kNanosPerByteAt1MBs = 1e3;

}  // namespace

void Lab::set(const LabSettings& settings) {
  const std::lock_guard lock(mutex_);
  settings_ = settings;
  on_ = settings.on();
  ++generation_;
}

LabSettings Lab::get() const {
  const std::lock_guard lock(mutex_);
  return settings_;
}

void Schedule::apply(const LabSettings& settings) {
  settings_ = settings;
  random_.seed(settings.seed * 2 + stream_);
  normal_.reset();
  jitter_ = 0;
  line_free_ = 0;
}

Nanos Schedule::arrival(Nanos now, std::size_t bytes, bool idle) {
  if (idle) jitter_ = static_cast<Nanos>(normal_(random_) * settings_.jitter_ms * kNanosPerMilli);
  const double transfer = settings_.rate_mb_s > 0 ? static_cast<double>(bytes) *
                                                        kNanosPerByteAt1MBs / settings_.rate_mb_s
                                                  : 0;
  line_free_ = std::max(now, line_free_) + static_cast<Nanos>(transfer);
  const auto latency = static_cast<Nanos>(settings_.latency_ms * kNanosPerMilli);
  const Nanos delay = std::max<Nanos>(latency + jitter_, 0);
  last_arrival_ = std::max(last_arrival_, line_free_ + delay);
  return last_arrival_;
}

}  // namespace dllm
