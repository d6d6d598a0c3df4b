// Pretends that a link is slow: what delay every byte gets.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <random>
#include <string>

#include "clock.h"

namespace dllm {

// All for one direction; both directions get the same.
struct LabSettings {
  double latency_ms = 0;
  double jitter_ms = 0;  // standard deviation
  double rate_mb_s = 0;  // 0: no limit
  std::uint64_t seed = 1;
  [[nodiscard]] bool on() const { return latency_ms > 0 || jitter_ms > 0 || rate_mb_s > 0; }
};

// The settings of a link, changed while bytes flow.
class Lab {
 public:
  void set(const LabSettings& settings) {
    const std::lock_guard lock(mutex_);
    settings_ = settings;
    on_ = settings.on();
    ++generation_;
  }
  [[nodiscard]] LabSettings get() const {
    const std::lock_guard lock(mutex_);
    return settings_;
  }
  // Lock-free, for the path without lab.
  [[nodiscard]] bool on() const { return on_.load(std::memory_order_relaxed); }
  // Grows with every change, be it to the same settings.
  [[nodiscard]] std::uint64_t generation() const { return generation_; }

 private:
  mutable std::mutex mutex_;
  LabSettings settings_;
  std::atomic<bool> on_ = false;
  std::atomic<std::uint64_t> generation_ = 0;
};

// When bytes arrive that leave now. Order is kept; what leaves together is delayed together.
class Schedule {
 public:
  explicit Schedule(std::uint64_t stream) : stream_(stream) {}
  // Forgets what came before: what is still under way is to be scheduled anew.
  void apply(const LabSettings& settings);
  // `idle`: nothing is under way, so a new burst begins and draws its jitter.
  Nanos arrival(Nanos now, std::size_t bytes, bool idle);

 private:
  std::uint64_t stream_;  // makes the directions differ under one seed
  LabSettings settings_;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  Nanos jitter_ = 0;
  Nanos line_free_ = 0;
  Nanos last_arrival_ = 0;
};

// {"lab": {"latency_ms": 20, "jitter_ms": 2, "rate_mb_s": 30, "seed": 1}}, each member optional;
// {"lab": null} switches it off. None when the line is anything else.
std::optional<LabSettings> parse_lab_command(const std::string& line);

}  // namespace dllm
