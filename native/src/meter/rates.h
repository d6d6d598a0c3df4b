// Figures of a link from what crosses it anyway: how long, how fast, and for which command.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

#include "clock.h"
#include "protocol/commands.h"

namespace dllm {

// How often what was measured, an eighth of an octave to a bucket.
class Histogram {
 public:
  static constexpr unsigned kPerOctave = 8;
  static constexpr unsigned kOctaves = 37;  // 2^40 ns are 18 minutes
  static constexpr unsigned kBuckets = kPerOctave * (kOctaves + 1);

  void add(std::uint64_t value) {
    ++counts_[bucket(value)];
    ++count_;
    max_ = std::max(max_, value);
  }
  [[nodiscard]] std::uint64_t count() const { return count_; }
  [[nodiscard]] std::uint64_t max() const { return max_; }
  [[nodiscard]] std::uint32_t at(unsigned index) const { return counts_[index]; }

  // A value that `share` of all values do not exceed, up to a bucket's width.
  [[nodiscard]] std::uint64_t percentile(double share) const {
    const auto rank = static_cast<std::uint64_t>(share * static_cast<double>(count_));
    std::uint64_t seen = 0;
    for (unsigned i = 0; i < kBuckets; ++i) {
      seen += counts_[i];
      if (seen > rank) return std::min(upper_edge(i), max_);
    }
    return max_;
  }

  // Values below 8 have a bucket each; above, the three bits behind the leading one count.
  static unsigned bucket(std::uint64_t value) {
    if (value < kPerOctave) return static_cast<unsigned>(value);
    const unsigned octave = static_cast<unsigned>(std::bit_width(value)) - 4;
    const unsigned within = static_cast<unsigned>(value >> octave) - kPerOctave;
    return std::min(kPerOctave * (octave + 1) + within, kBuckets - 1);
  }
  static std::uint64_t upper_edge(unsigned bucket) {
    if (bucket < kPerOctave) return bucket;
    const unsigned octave = bucket / kPerOctave - 1;
    return ((std::uint64_t{bucket % kPerOctave + kPerOctave} + 1) << octave) - 1;
  }

 private:
  std::array<std::uint32_t, kBuckets> counts_{};
  std::uint64_t count_ = 0;
  std::uint64_t max_ = 0;
};

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

// Bytes of each command.
using Shares = std::array<std::uint64_t, kCommands>;

inline Shares& operator+=(Shares& sums, const Shares& more) {
  for (std::size_t id = 0; id < kCommands; ++id) sums[id] += more[id];
  return sums;
}

// A stream as runs of bytes of one command each, first in, first out.
class Runs {
 public:
  // An id that is no command's: they belong to none.
  void append(std::uint8_t id, std::uint64_t bytes) {
    if (bytes == 0) return;
    if (runs_.empty() || runs_.back().first != id) runs_.emplace_back(id, 0);
    runs_.back().second += bytes;
  }
  // So many leave at the front, and are counted.
  void take(std::uint64_t bytes, Shares& shares) {
    while (bytes > 0 && !runs_.empty()) {
      auto& [id, left] = runs_.front();
      const std::uint64_t part = std::min(bytes, left);
      if (id < kCommands) shares[id] += part;
      bytes -= part;
      left -= part;
      if (left == 0) runs_.pop_front();
    }
  }

 private:
  std::deque<std::pair<std::uint8_t, std::uint64_t>> runs_;
};

}  // namespace dllm
