#include "hashes.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace dllm::agent {

namespace {

constexpr std::size_t kLengthBytes = 8;

constexpr std::array<std::uint32_t, 64> kRounds = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t word_at(const unsigned char* bytes) {
  return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 |
         std::uint32_t{bytes[2]} << 8 | bytes[3];
}

std::array<std::uint32_t, 64> schedule(const unsigned char* block) {
  std::array<std::uint32_t, 64> words{};
  for (std::size_t i = 0; i < 16; ++i) words[i] = word_at(block + 4 * i);
  for (std::size_t i = 16; i < words.size(); ++i) {
    const std::uint32_t a = words[i - 15], b = words[i - 2];
    const std::uint32_t small0 = std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3;
    const std::uint32_t small1 = std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10;
    words[i] = words[i - 16] + small0 + words[i - 7] + small1;
  }
  return words;
}

}  // namespace

void Sha256::take_block(const unsigned char* block) {
  const std::array<std::uint32_t, 64> words = schedule(block);
  auto [a, b, c, d, e, f, g, h] = state_;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::uint32_t big1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const std::uint32_t one = h + big1 + ((e & f) ^ (~e & g)) + kRounds[i] + words[i];
    const std::uint32_t big0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const std::uint32_t two = big0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + one;
    d = c, c = b, b = a, a = one + two;
  }
  const std::array<std::uint32_t, 8> mixed = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < state_.size(); ++i) state_[i] += mixed[i];
}

void Sha256::add(std::string_view data) {
  size_bytes_ += data.size();
  while (!data.empty()) {
    const std::size_t taken = std::min(data.size(), block_.size() - held_);
    std::memcpy(block_.data() + held_, data.data(), taken);
    held_ += taken;
    data.remove_prefix(taken);
    if (held_ == block_.size()) {
      take_block(block_.data());
      held_ = 0;
    }
  }
}

std::string Sha256::hex() {
  const std::uint64_t bits = size_bytes_ * 8;
  add(std::string_view("\x80", 1));
  while (held_ != block_.size() - kLengthBytes) add(std::string_view("\0", 1));
  std::string length;
  for (int shift = 56; shift >= 0; shift -= 8) length += static_cast<char>(bits >> shift);
  add(length);
  std::string out;
  constexpr const char* kDigits = "0123456789abcdef";
  for (const std::uint32_t word : state_) {
    for (int shift = 28; shift >= 0; shift -= 4) out += kDigits[word >> shift & 15];
  }
  return out;
}

}  // namespace dllm::agent

namespace dllm::weights {

Blake3Hash chunk_hash(Bytes bytes, std::uint64_t size_bytes, std::uint64_t chunk) {
  return size_bytes <= kChunkBytes ? blake3(bytes) : blake3_node(bytes, chunk * kChunkBytes);
}

Blake3Hash TensorSums::blake3() const {
  if (chunks.empty()) return weights::blake3({});
  return chunks.size() == 1 ? chunks[0] : blake3_of(chunks);
}

TableBuilder::TableBuilder(const ModelFiles& files, TableSoFar so_far)
    : files_(files),
      so_far_(std::move(so_far)),
      done_bytes_(so_far_.half.chunks.size() * kChunkBytes) {
  for (std::size_t i = 0; i < so_far_.whole.size(); ++i) {
    done_bytes_ += files_.tensors()[i].key.size_bytes;
  }
}

bool TableBuilder::step() {
  if (done()) return false;
  const TensorPlace& place = files_.tensors()[so_far_.whole.size()];
  TensorSums& half = so_far_.half;
  const std::uint64_t chunk = half.chunks.size(), at = chunk * kChunkBytes;
  const std::uint64_t left = place.key.size_bytes - at;
  const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(left, kChunkBytes));
  block_.resize(std::max(block_.size(), bytes));
  const std::span wanted(block_.data(), bytes);
  Source& source = files_.source(place);
  if (source.read(place.offset + at, wanted) < wanted.size()) {
    throw ModelError("the file of " + place.key.name + " ends inside it");
  }
  source.forget(place.offset + at, wanted.size());
  Fnv1a64 fnv1a(half.fnv1a);
  fnv1a.add(wanted);
  half.fnv1a = fnv1a.value();
  if (!wanted.empty()) half.chunks.push_back(chunk_hash(wanted, place.key.size_bytes, chunk));
  done_bytes_ += wanted.size();
  if (wanted.size() == left) so_far_.whole.push_back(std::exchange(half, {}));
  return !done();
}

}  // namespace dllm::weights
