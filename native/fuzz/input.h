// How a fuzzer's bytes become a conversation: one byte chooses the greeting, then follow pieces of
// either direction, each with a direction byte and a length of two bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "transcript.h"

namespace fuzz {

struct Piece {
  bool up = false;
  std::string bytes;
  bool is_greeting = false;
};

inline std::vector<Piece> parse(std::span<const std::uint8_t> input) {
  std::vector<Piece> pieces;
  if (input.empty()) return pieces;
  const std::size_t choice = input[0] % (transcript::kVersions.size() + 1);
  input = input.subspan(1);
  if (choice < transcript::kVersions.size()) {
    const dllm::Version version = transcript::kVersions[choice];
    pieces.push_back({true, transcript::hello(version, true), true});
    pieces.push_back({false, transcript::hello_reply(version, true), true});
  }
  while (input.size() > 3) {
    const bool up = input[0] & 1;
    const std::size_t announced = input[1] | std::size_t{input[2]} << 8;
    const std::size_t length = std::min(announced, input.size() - 3);
    const auto bytes = input.subspan(3, length);
    pieces.push_back({up, std::string(text_of(bytes))});
    input = input.subspan(3 + length);
  }
  return pieces;
}

inline void append(std::string& input, bool up, const std::string& bytes) {
  for (std::size_t at = 0; at < bytes.size(); at += 0xffff) {
    const std::string part = bytes.substr(at, 0xffff);
    input += static_cast<char>(up);
    input += static_cast<char>(part.size() & 0xff);
    input += static_cast<char>(part.size() >> 8);
    input += part;
  }
}

// Cuts `bytes` anywhere: mostly in two, now and then in two dozen pieces; of more a fuzzer learns
// nothing that it does not learn of other inputs.
inline std::vector<std::span<std::uint8_t>> cut(transcript::Random& random, std::string& bytes) {
  std::span left(reinterpret_cast<std::uint8_t*>(bytes.data()), bytes.size());
  std::vector<std::span<std::uint8_t>> pieces;
  const std::size_t most = random() % 8 == 0 ? 24 : 2;
  const std::size_t longest = most > 2 ? std::size_t{1} << (random() % 10) : left.size();
  while (!left.empty() && pieces.size() + 1 < most) {
    pieces.push_back(left.first(1 + random() % std::min(longest, left.size())));
    left = left.subspan(pieces.back().size());
  }
  if (!left.empty()) pieces.push_back(left);
  return pieces;
}

// What has no business on the wire, made rightly otherwise; or another buffer.
inline std::string abuse(transcript::Random& random, dllm::Version version) {
  transcript::TensorSpec spec;
  switch (random() % 5) {
    case 0:
      return transcript::request(dllm::kCommInit, std::string(80, '\1'));
    case 1:
      return transcript::request(dllm::kCommAllreduce,
                                 std::string(4, '\0') + transcript::tensor(spec));
    case 2:
      return transcript::allocation(version)[0].request;
    case 3:
      spec.op = 87 + static_cast<std::uint32_t>(random() % 9);
      break;
    default:
      spec.data += transcript::kBufferBytes - random() % 32;
  }
  return transcript::graph(version, {transcript::tensor({}), transcript::tensor(spec)});
}

// A well-formed conversation as fuzzer input, now and then with an abuse.
inline std::string seed_input(std::uint64_t seed) {
  transcript::Random random(seed);
  const std::size_t choice = seed % transcript::kVersions.size();
  std::string input(1, static_cast<char>(choice));
  const auto all = transcript::conversation(random, transcript::kVersions[choice], random() % 12);
  for (std::size_t i = 1; i < all.size(); ++i) {
    if (random() % 16 == 0) append(input, true, abuse(random, transcript::kVersions[choice]));
    append(input, true, all[i].request);
    append(input, false, all[i].reply);
  }
  return input;
}

}  // namespace fuzz
