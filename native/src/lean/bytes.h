// Numbers as the encodings write them. A reader at its end gives zeros and says so afterwards, so
// that what is read can be judged in one place.
#pragma once

#include <cstdint>
#include <vector>

#include "relay/decoder.h"

namespace dllm::lean {

using Buffer = std::vector<std::uint8_t>;

// A difference of either sign as a number that is small when the difference is.
inline std::uint64_t fold(std::uint64_t difference) {
  return (difference << 1) ^ (0 - (difference >> 63));
}

inline std::uint64_t unfold(std::uint64_t folded) {
  return (folded >> 1) ^ (0 - (folded & 1));
}

// Bytes that Writer::number takes.
inline std::size_t number_bytes(std::uint64_t value) {
  return (static_cast<std::size_t>(std::bit_width(value | 1)) + 6) / 7;
}

class Writer {
 public:
  explicit Writer(Buffer& out) : out_(out) {}
  void byte(std::uint8_t value) { out_.push_back(value); }
  void bytes(View bytes) { out_.insert(out_.end(), bytes.begin(), bytes.end()); }
  // Seven bits a byte, the lowest first; the eighth bit: more follow.
  void number(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) byte(static_cast<std::uint8_t>(value | 0x80));
    byte(static_cast<std::uint8_t>(value));
  }
  void difference(std::uint64_t value) { number(fold(value)); }

 private:
  Buffer& out_;
};

class Reader {
 public:
  explicit Reader(View bytes) : left_(bytes), all_(bytes.size()) {}
  [[nodiscard]] bool failed() const { return failed_; }
  [[nodiscard]] std::size_t taken() const { return all_ - left_.size(); }

  // Nothing when there are not so many.
  View bytes(std::uint64_t count) {
    if (count > left_.size()) failed_ = true;
    if (failed_) return {};
    const View taken = left_.first(count);
    left_ = left_.subspan(count);
    return taken;
  }
  std::uint8_t byte() {
    const View one = bytes(1);
    return one.empty() ? std::uint8_t{0} : one[0];
  }
  std::uint64_t number() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const std::uint8_t next = byte();
      value |= std::uint64_t{next & 0x7fU} << shift;
      if (next < 0x80) return value;
    }
    failed_ = true;
    return 0;
  }
  std::uint64_t difference() { return unfold(number()); }

 private:
  View left_;
  std::size_t all_;
  bool failed_ = false;
};

}  // namespace dllm::lean
