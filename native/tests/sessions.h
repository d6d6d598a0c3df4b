// A session of the relay to be fed with strings, at a time the test sets.
#pragma once

#include <optional>
#include <string>

#include "link/session.h"
#include "transcript.h"

namespace sessions {

using dllm::Link;
using dllm::Nanos;
using dllm::Outgoing;
using dllm::Session;
using transcript::Exchange;
using transcript::Random;
using transcript::Version;

inline constexpr Version k7{7, 0, 0};
inline constexpr Version k8{8, 0, 0};

inline std::string text(const Outgoing& out) {
  return std::string(text_of(out.worker));
}

// A link and a session on it, fed with strings at a time the test sets.
struct Bench {
  explicit Bench(bool answers = true, bool guard = true) : link("w", answers, guard) {
    session.emplace(link);
  }
  Link link;
  std::optional<Session> session;
  Nanos now = 1;
  std::string answers;
  bool refused = false;

  std::string up(std::string bytes) {
    const Outgoing out =
        session->requests({reinterpret_cast<std::uint8_t*>(bytes.data()), bytes.size()}, now);
    answers += out.answers;
    refused = refused || out.refused;
    return text(out);
  }
  std::string down(std::string bytes) {
    session->replies({reinterpret_cast<std::uint8_t*>(bytes.data()), bytes.size()}, now);
    return bytes;
  }
  // HELLO, and the buffer all tensors lie in.
  void greet(Version version) {
    up(transcript::hello(version));
    down(transcript::hello_reply(version));
    for (const Exchange& each : transcript::allocation(version)) {
      up(each.request);
      down(each.reply);
    }
  }
  const dllm::CommandTally& tally(std::uint8_t id) { return link.tally.commands[id]; }
};

inline std::string up_in_pieces(Bench& bench, Random& random, const std::string& bytes) {
  std::string out;
  for (const std::string& piece : transcript::split(random, bytes)) out += bench.up(piece);
  return out;
}

inline std::string down_in_pieces(Bench& bench, Random& random, const std::string& bytes) {
  std::string out;
  for (const std::string& piece : transcript::split(random, bytes)) out += bench.down(piece);
  return out;
}

}  // namespace sessions
