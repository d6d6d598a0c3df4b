// Times in logarithmic buckets, eight to the octave: a percentile is right within 9 %.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace dllm {

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

}  // namespace dllm
