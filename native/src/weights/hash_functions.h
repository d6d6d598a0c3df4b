// Two hashes of tensors: FNV-1a, by which llama.cpp asks a worker's cache, and XXH64, which is as
// quick as memory and by which two relays compare bytes. Neither withstands an attacker.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace dllm::weights {

using Bytes = std::span<const std::uint8_t>;

// FNV-1a with 64 bits; bytes may come in pieces.
class Fnv1a64 {
 public:
  Fnv1a64() = default;
  // Goes on where another stopped.
  explicit Fnv1a64(std::uint64_t value) : value_(value) {}

  void add(Bytes bytes) {
    std::uint64_t value = value_;
    for (const std::uint8_t byte : bytes) value = (value ^ byte) * kPrime;
    value_ = value;
  }
  [[nodiscard]] std::uint64_t value() const { return value_; }

 private:
  static constexpr std::uint64_t kPrime = 0x100000001b3;
  std::uint64_t value_ = 0xcbf29ce484222325;
};

// XXH64 with seed 0; bytes may come in pieces.
class Xxh64 {
 public:
  static constexpr std::size_t kStripeBytes = 32;
  using Lanes = std::array<std::uint64_t, 4>;

  Xxh64() = default;
  // Goes on where another stopped, after a number of bytes that is a multiple of a stripe.
  Xxh64(const Lanes& lanes, std::uint64_t size_bytes) : lanes_(lanes), size_bytes_(size_bytes) {}

  void add(Bytes bytes);
  [[nodiscard]] std::uint64_t value() const;
  [[nodiscard]] const Lanes& lanes() const { return lanes_; }

 private:
  void take_stripe(const std::uint8_t* stripe);
  [[nodiscard]] std::uint64_t merged() const;

  Lanes lanes_ = {0x60ea27eeadc0b5d6, 0xc2b2ae3d27d4eb4f, 0, 0x61c8864e7a143579};
  std::array<std::uint8_t, kStripeBytes> held_{};
  std::size_t held_bytes_ = 0;
  std::uint64_t size_bytes_ = 0;
};

// Of bytes in one piece.
std::uint64_t xxh64(Bytes bytes);

}  // namespace dllm::weights
