// Both decoders and the session: nothing is lost or changed but the capabilities of a HELLO, and
// how the stream is cut into pieces changes nothing of what is counted.
#include <cstdlib>

#include "input.h"
#include "relay/session.h"

namespace {

using dllm::Link;
using dllm::Session;

void demand(bool holds) {
  if (!holds) std::abort();
}

dllm::Bytes bytes_of(std::string& text) {
  return {reinterpret_cast<std::uint8_t*>(text.data()), text.size()};
}

std::string text_of(const dllm::Outgoing& out) {
  return {out.worker.begin(), out.worker.end()};
}

void same_but_zeroed(const std::string& in, const std::string& out) {
  demand(in.size() == out.size());
  for (std::size_t i = 0; i < in.size(); ++i) demand(in[i] == out[i] || out[i] == '\0');
}

struct Run {
  explicit Run(bool answers, bool guard) : link("fuzz", answers, guard), session(link) {}
  Link link;
  Session session;
  std::string sent;

  void feed(const fuzz::Piece& piece) {
    std::string bytes = piece.bytes;
    if (piece.up) {
      const dllm::Outgoing out = session.requests(bytes_of(bytes), 1);
      sent += text_of(out);
      return;
    }
    session.replies(bytes_of(bytes), 1);
    same_but_zeroed(piece.bytes, bytes);
  }
};

void run_whole(Run& run, const std::vector<fuzz::Piece>& pieces) {
  for (const fuzz::Piece& piece : pieces) run.feed(piece);
  run.sent += text_of(run.session.requests_end());
}

void run_split(Run& run, const std::vector<fuzz::Piece>& pieces, std::uint64_t seed) {
  transcript::Random random(seed);
  for (const fuzz::Piece& piece : pieces) {
    for (const std::string& part : transcript::split(random, piece.bytes)) {
      run.feed({piece.up, part});
    }
  }
  run.sent += text_of(run.session.requests_end());
}

void compare(const dllm::Tally& one, const dllm::Tally& other) {
  demand(one.bytes_up == other.bytes_up && one.bytes_down == other.bytes_down);
  demand(one.plain_reason == other.plain_reason && one.refused_reason == other.refused_reason);
  for (std::size_t id = 0; id < dllm::kCommands; ++id) {
    demand(one.commands[id].count == other.commands[id].count);
    demand(one.commands[id].bytes_down == other.commands[id].bytes_down);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto pieces = fuzz::parse({data, size});
  std::string all_up;
  for (const fuzz::Piece& piece : pieces) all_up += piece.up ? piece.bytes : "";

  Run metering(false, false), cut(false, false), guarding(true, true);
  run_whole(metering, pieces);
  same_but_zeroed(all_up, metering.sent);
  run_split(cut, pieces, size);
  same_but_zeroed(all_up, cut.sent);
  compare(metering.link.tally, cut.link.tally);
  run_split(guarding, pieces, size + 1);
  demand(guarding.sent.size() <= all_up.size());
  return 0;
}
