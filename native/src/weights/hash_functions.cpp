#include "hash_functions.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace dllm::weights {

namespace {

constexpr std::uint64_t kPrime1 = 0x9e3779b185ebca87;
constexpr std::uint64_t kPrime2 = 0xc2b2ae3d27d4eb4f;
constexpr std::uint64_t kPrime3 = 0x165667b19e3779f9;
constexpr std::uint64_t kPrime4 = 0x85ebca77c2b2ae63;
constexpr std::uint64_t kPrime5 = 0x27d4eb2f165667c5;

static_assert(std::endian::native == std::endian::little, "numbers are read as they lie");

template <typename Number>
std::uint64_t number_at(const std::uint8_t* at) {
  Number number;
  std::memcpy(&number, at, sizeof number);
  return number;
}

std::uint64_t round(std::uint64_t lane, std::uint64_t input) {
  return std::rotl(lane + input * kPrime2, 31) * kPrime1;
}

// What is left after the last whole stripe.
std::uint64_t add_rest(std::uint64_t hash, Bytes rest) {
  for (; rest.size() >= 8; rest = rest.subspan(8)) {
    const std::uint64_t lane = round(0, number_at<std::uint64_t>(rest.data()));
    hash = std::rotl(hash ^ lane, 27) * kPrime1 + kPrime4;
  }
  if (rest.size() >= 4) {
    hash ^= number_at<std::uint32_t>(rest.data()) * kPrime1;
    hash = std::rotl(hash, 23) * kPrime2 + kPrime3;
    rest = rest.subspan(4);
  }
  for (const std::uint8_t byte : rest) hash = std::rotl(hash ^ byte * kPrime5, 11) * kPrime1;
  return hash;
}

std::uint64_t avalanche(std::uint64_t hash) {
  hash = (hash ^ hash >> 33) * kPrime2;
  hash = (hash ^ hash >> 29) * kPrime3;
  return hash ^ hash >> 32;
}

}  // namespace

void Xxh64::take_stripe(const std::uint8_t* stripe) {
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    lanes_[i] = round(lanes_[i], number_at<std::uint64_t>(stripe + 8 * i));
  }
}

void Xxh64::add(Bytes bytes) {
  size_bytes_ += bytes.size();
  if (held_bytes_ > 0) {
    const std::size_t taken = std::min(bytes.size(), kStripeBytes - held_bytes_);
    std::memcpy(held_.data() + held_bytes_, bytes.data(), taken);
    held_bytes_ += taken;
    bytes = bytes.subspan(taken);
    if (held_bytes_ < kStripeBytes) return;
    take_stripe(held_.data());
  }
  for (; bytes.size() >= kStripeBytes; bytes = bytes.subspan(kStripeBytes)) {
    take_stripe(bytes.data());
  }
  std::copy(bytes.begin(), bytes.end(), held_.begin());
  held_bytes_ = bytes.size();
}

std::uint64_t Xxh64::merged() const {
  if (size_bytes_ < kStripeBytes) return kPrime5;
  std::uint64_t hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) +
                       std::rotl(lanes_[2], 12) + std::rotl(lanes_[3], 18);
  for (const std::uint64_t lane : lanes_) hash = (hash ^ round(0, lane)) * kPrime1 + kPrime4;
  return hash;
}

std::uint64_t Xxh64::value() const {
  return avalanche(add_rest(merged() + size_bytes_, {held_.data(), held_bytes_}));
}

std::uint64_t xxh64(Bytes bytes) {
  Xxh64 hash;
  hash.add(bytes);
  return hash.value();
}

}  // namespace dllm::weights
