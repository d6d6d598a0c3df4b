// Both decoders and the session: without guard nothing is lost or changed but the capabilities of a
// HELLO; how the stream is cut into pieces changes nothing of what passes, is refused or is
// counted; and whatever a client does, only its worker can make the relay stop reading.
#include "input.h"
#include "link/session.h"
#include "model_worker.h"

namespace {

using dllm::Link;
using dllm::Session;
using fuzz::demand;

dllm::Bytes bytes_of(std::string& text) {
  return {reinterpret_cast<std::uint8_t*>(text.data()), text.size()};
}

struct Run {
  explicit Run(bool answers, bool guard) : link("fuzz", answers, guard), session(link) {}
  Link link;
  Session session;
  std::string sent, answered, received;

  void take(const dllm::Outgoing& out) {
    sent += text_of(out.worker);
    answered += out.answers;
  }
  void feed(bool up, dllm::Bytes bytes) {
    if (up) return take(session.requests(bytes, 1));
    session.replies(bytes, 1);
    received += text_of(bytes);
  }
  void feed(bool up, std::string bytes) { feed(up, bytes_of(bytes)); }
};

void run_whole(Run& run, const std::vector<fuzz::Piece>& pieces) {
  for (const fuzz::Piece& piece : pieces) run.feed(piece.up, piece.bytes);
  run.take(run.session.requests_end());
}

void run_split(Run& run, const std::vector<fuzz::Piece>& pieces, std::uint64_t seed) {
  transcript::Random random(static_cast<std::uint32_t>(seed));
  for (const fuzz::Piece& piece : pieces) {
    std::string bytes = piece.bytes;
    for (const dllm::Bytes part : fuzz::cut(random, bytes)) run.feed(piece.up, part);
  }
  run.take(run.session.requests_end());
}

// Whether the stream begins with a HELLO of this size, as one that carries capabilities has.
bool greets(const std::string& stream, std::size_t header, std::uint64_t size) {
  const bool is_hello = header == dllm::kReplyHeaderBytes || stream.starts_with(char{dllm::kHello});
  return is_hello && stream.size() >= header &&
         fuzz::take<std::uint64_t>(stream, header - 8) == size;
}

// The stream as it must come out: as it went in, the first HELLO's capabilities zero. Later HELLOs
// are no protocol, but would be zeroed all the same.
void same_but_zeroed(std::string stream, const std::string& out, std::size_t header,
                     std::uint64_t size, std::size_t caps) {
  demand(stream.size() == out.size());
  std::size_t exact = std::min(stream.size(), header);
  if (greets(stream, header, size)) {
    const std::size_t first = std::min(stream.size(), header + caps);
    exact = std::min<std::size_t>(stream.size(), header + size);
    std::fill(stream.begin() + static_cast<std::ptrdiff_t>(first),
              stream.begin() + static_cast<std::ptrdiff_t>(exact), '\0');
  }
  demand(stream.compare(0, exact, out, 0, exact) == 0);
  for (std::size_t i = 0; i < out.size(); ++i) demand(stream[i] == out[i] || out[i] == '\0');
}

void compare(const Run& one, const Run& other) {
  const dllm::Tally &a = one.link.tally, &b = other.link.tally;
  demand(one.sent == other.sent && one.answered == other.answered);
  demand(one.received == other.received);
  demand(a.bytes_up == b.bytes_up && a.bytes_down == b.bytes_down);
  demand(a.passthrough_reason == b.passthrough_reason && a.refused_reason == b.refused_reason);
  for (std::size_t id = 0; id < dllm::kCommands; ++id) {
    demand(a.commands[id].count == b.commands[id].count);
    demand(a.commands[id].bytes_up == b.commands[id].bytes_up);
    demand(a.commands[id].bytes_down == b.commands[id].bytes_down);
    demand(a.commands[id].errors == b.commands[id].errors);
  }
}

std::uint64_t booked(const Run& run) {
  std::uint64_t bytes = 0;
  for (const dllm::CommandTally& command : run.link.tally.commands) bytes += command.bytes_up;
  return bytes;
}

// Bytes belong to one command at most.
void adds_up(const Run& run) {
  const dllm::Tally& tally = run.link.tally;
  std::uint64_t down = 0;
  for (const dllm::CommandTally& command : tally.commands) down += command.bytes_down;
  demand(booked(run) <= tally.bytes_up && down <= tally.bytes_down);
}

// What passes unread belongs to no command.
void books_nothing_unread(Run& run) {
  if (!run.link.tally.passthrough) return;
  const std::uint64_t before = booked(run);
  run.feed(true, std::string(100, 'x'));
  demand(booked(run) == before);
}

// A client without HELLO is taken by no worker that knows it.
bool worker_s_doing(const std::string& reason) {
  return reason == "no HELLO first: RPC from before 1.0, or none" ||
         reason.starts_with("a reply nobody asked for") ||
         reason.starts_with("unexpected reply size") || reason.starts_with("protocol ");
}

void check_guarded(const Run& run) {
  demand(!run.link.tally.passthrough || worker_s_doing(run.link.tally.passthrough_reason));
  adds_up(run);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto pieces = fuzz::parse({data, size});
  std::string up, down;
  for (const fuzz::Piece& piece : pieces) (piece.up ? up : down) += piece.bytes;

  Run metering(false, false), cut(false, false), guarding(true, true), guarding_cut(true, true);
  run_whole(metering, pieces);
  run_split(cut, pieces, size);
  compare(metering, cut);
  adds_up(metering);
  same_but_zeroed(up, metering.sent, dllm::kRequestHeaderBytes, dllm::kHelloCapsBytes, 0);
  if (metering.link.tally.protocol.empty()) {
    demand(down.size() == metering.received.size());
  } else {
    same_but_zeroed(down, metering.received, dllm::kReplyHeaderBytes, dllm::kLongHelloReply,
                    dllm::kHelloReplyCaps);
  }

  books_nothing_unread(metering);

  run_whole(guarding, pieces);
  run_split(guarding_cut, pieces, size + 1);
  compare(guarding, guarding_cut);
  check_guarded(guarding);
  demand(guarding.sent.size() <= up.size());
  return 0;
}
