#include "lab.h"

#include <algorithm>

namespace dllm {

namespace {

constexpr double kNanosPerByteAt1MBs = 1e3;

Nanos nanos_of(double milliseconds) {
  return static_cast<Nanos>(milliseconds * double(kNanosPerMilli));
}

}  // namespace

void Schedule::apply(const LabSettings& settings) {
  settings_ = settings;
  random_.seed(settings.seed * 2 + stream_);
  normal_.reset();
  jitter_ = 0;
  line_free_ = 0;
  last_arrival_ = 0;
}

Nanos Schedule::arrival(Nanos now, std::size_t bytes, bool idle) {
  if (idle) jitter_ = nanos_of(normal_(random_) * settings_.jitter_ms);
  line_free_ = std::max(now, line_free_);
  if (settings_.rate_mb_s > 0) {
    line_free_ += static_cast<Nanos>(double(bytes) * kNanosPerByteAt1MBs / settings_.rate_mb_s);
  }
  const Nanos delay = std::max<Nanos>(nanos_of(settings_.latency_ms) + jitter_, 0);
  last_arrival_ = std::max(last_arrival_, line_free_ + delay);
  return last_arrival_;
}

}  // namespace dllm
