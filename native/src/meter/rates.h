// How fast the way to a worker carries bytes, from what crosses it anyway.
#pragma once

#include <array>
#include <cstdint>

#include "clock.h"

namespace dllm {

// The best of the latest measurements. None is ever too high, for whoever sends may have had
// nothing more to send; and when the way gets slower, the good ones drop out.
class BestRate {
 public:
  static constexpr std::size_t kLatest = 16;

  void add(double bytes_per_s) { latest_[next_++ % kLatest] = bytes_per_s; }
  // 0 while nothing is known.
  [[nodiscard]] double bytes_per_s() const;

 private:
  std::array<double, kLatest> latest_{};
  std::size_t next_ = 0;
};

// The rate of the whole way to the worker, whatever it leads through. The kernel knows that of its
// own connection only, and of a Unix socket, where a tunnel begins, nothing. But a reply tells that
// all that was sent before it has arrived: so a bulk of weights is timed.
class BulkRate {
 public:
  static constexpr std::uint64_t kBulkBytes = 1 << 20;

  void sent(std::uint64_t bytes, Nanos now);
  // The worker computes: the time up to the next reply is not that of the way alone.
  void computes() { computes_ = true; }
  // A reply came, and no other is due. `slowed`: by the lab, so this is no measurement.
  void arrived(Nanos now, bool slowed);
  [[nodiscard]] double bytes_per_s() const { return rate_.bytes_per_s(); }

 private:
  BestRate rate_;
  std::uint64_t bytes_ = 0;  // since the reply before
  Nanos begun_ = 0;          // when the first of them was sent
  bool computes_ = false;
};

}  // namespace dllm
