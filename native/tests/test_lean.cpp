// Whole requests through both ends of the lean encodings: those of real sessions, those with
// something changed, and what is no message at all.
#include <map>

#include "lean_pair.h"
#include "recordings.h"
#include "transcript.h"

using dllm::Version;
using lean_pair::Crossing;
using lean_pair::Pair;
using recordings::Message;
using transcript::Random;
namespace lean = dllm::lean;

namespace {

constexpr std::size_t kTypeAt = dllm::kRequestHeaderBytes + dllm::Tensor::kTypeAt;

void each_session(void (*act)(Version, const std::vector<Message>&)) {
  for (const recordings::Session& session : recordings::with_version()) {
    for (const auto& conversation : session.conversations) {
      act(*session.version, recordings::messages(conversation, true));
    }
  }
}

// One forward pass of the last stage, as it crosses.
struct Pass {
  std::size_t tokens = 0;
  std::size_t cells = 0;         // of its mask
  std::size_t hidden_bytes = 0;  // of the state that comes in
  std::size_t other_bytes = 0;   // all else
  bool has_graph = false;
};

bool is_named(const Message& request, std::string_view part) {
  if (request.id != dllm::kSetTensor) return false;
  const auto* at = reinterpret_cast<const std::uint8_t*>(request.payload.data());
  return dllm::Tensor(at).name().find(part) != std::string_view::npos;
}

std::uint32_t shape(const Message& request, int dimension) {
  const auto* at = reinterpret_cast<const std::uint8_t*>(request.payload.data());
  return dllm::Tensor(at).ne(dimension);
}

std::vector<Pass> take_passes(const recordings::Session& session) {
  Pair pair(*session.version);
  std::vector<Pass> all;
  for (const Message& request : recordings::messages(session.conversations.front(), true)) {
    const Crossing crossing = pair.pass(request.bytes);
    const bool is_hidden = is_named(request, "#l_out");
    if (is_hidden) all.push_back({shape(request, 1), 0, crossing.as_is.size(), 0, false});
    if (all.empty()) continue;
    Pass& pass = all.back();
    if (is_named(request, "kq_mask")) pass.cells = shape(request, 0);
    pass.has_graph |= request.id == dllm::kGraphCompute;
    pass.other_bytes += crossing.bytes() - (is_hidden ? crossing.as_is.size() : 0);
  }
  return all;
}

const std::vector<Pass>& passes(const recordings::Session& session) {
  static std::map<std::string, std::vector<Pass>> known;
  const auto [found, is_new] = known.try_emplace(session.name);
  if (is_new) found->second = take_passes(session);
  return found->second;
}

void put_edge(Random& random, std::string& request, std::size_t at) {
  const std::uint64_t edges[] = {0, 1, 255, 1ULL << 31, 1ULL << 32, 1ULL << 63, ~0ULL};
  const std::uint64_t value = edges[random() % std::size(edges)];
  const std::size_t bytes = random() % 2 ? 8 : 4;
  if (at + bytes <= request.size()) std::memcpy(&request[at], &value, bytes);
}

// Something of a request changed; its size stays true.
std::string damage(Random& random, std::string request) {
  constexpr std::size_t header = dllm::kRequestHeaderBytes;
  for (std::uint64_t left = random() % 4; left > 0 && request.size() > header; --left) {
    const std::size_t at = header + random() % (request.size() - header);
    switch (random() % 6) {
      case 0:
        request.resize(at);
        break;
      case 1:
        request.insert(at, transcript::random_bytes(random, random() % 600));
        break;
      case 2:
        put_edge(random, request, at);
        break;
      case 3:
        if (request.size() > kTypeAt) request[kTypeAt] = static_cast<char>(random() % 40);
        break;
      default:
        request[at] = static_cast<char>(random());
    }
  }
  if (random() % 50 == 0) request[0] = static_cast<char>(random());
  transcript::write<std::uint64_t>(request, 1, request.size() - header);
  return request;
}

void damage_session(Version version, const std::vector<Message>& requests) {
  static Random random(5);
  Pair pair(version);
  for (const Message& request : requests) {
    if (random() % 8 == 0 || request.bytes.size() > 200000) continue;
    pair.pass(damage(random, request.bytes));
    if (random() % 8 == 0) pair.pass(request.bytes);
  }
}

// Given something else than what was written; whatever is made of it, it stays small.
void garble(Version version, const std::vector<Message>& requests) {
  static Random random(6);
  lean::Encoder encoder(version);
  lean::Decoder decoder(version);
  for (const Message& request : requests) {
    if (request.bytes.size() > 200000) continue;
    Crossing crossing = lean_pair::encode(encoder, request.bytes);
    for (lean::Buffer& message : crossing.messages) {
      if (random() % 20 == 0) message.resize(random() % (message.size() + 1));
      if (random() % 10 == 0 && !message.empty())
        message[random() % message.size()] ^= 1 << random() % 8;
      lean::Buffer out;
      const lean::Decoded decoded = decoder.decode(message, out);
      CHECK(out.size() <= lean::kGraphRequestBytes);
      CHECK(decoded.taken <= message.size());
      CHECK((decoded.taken == 0) == decoder.is_lost());
    }
    if (decoder.is_lost()) return;
  }
}

void cut_short(Version version, const std::vector<Message>& requests) {
  static Random random(8);
  for (const Message& request : requests) {
    if (request.bytes.size() > 20000 || random() % 8 != 0) continue;
    lean::Encoder encoder(version);
    const lean::Buffer message = lean_pair::encode(encoder, request.bytes).messages.front();
    for (std::size_t bytes = random() % 4; bytes < message.size(); bytes += 1 + random() % 50) {
      lean::Decoder decoder(version);
      lean::Buffer out;
      CHECK(decoder.decode(dllm::View(message).first(bytes), out).taken == 0);
      CHECK(out.empty() && decoder.is_lost());
    }
  }
}

}  // namespace

TEST(every_request_of_real_sessions_comes_out_as_it_went_in) {
  static std::size_t graphs = 0;
  each_session([](Version version, const std::vector<Message>& requests) {
    Pair pair(version);
    for (const Message& request : requests) {
      const Crossing crossing = pair.pass(request.bytes);
      CHECK(crossing.bytes() <= request.bytes.size() + 1);
      CHECK(crossing.begun.is_plain == (request.id == dllm::kHello));
      graphs += request.id == dllm::kGraphCompute;
    }
  });
  CHECK(graphs > 150);
}

TEST(a_token_costs_the_same_few_bytes_at_1_k_and_at_8_k) {
  for (const recordings::Session& session : recordings::depth()) {
    std::size_t bytes[2]{}, tokens[2]{}, graphs = 0;
    for (const Pass& pass : passes(session)) {
      if (pass.tokens != 1 || pass.cells < 1000) continue;
      const bool is_deep = pass.cells > 8000;
      bytes[is_deep] += pass.other_bytes;
      ++tokens[is_deep];
      graphs += pass.has_graph;
      CHECK(pass.has_graph || pass.other_bytes < 200);
    }
    if (session.name.ends_with("slots")) continue;
    CHECK(tokens[0] > 50 && tokens[1] > 50 && graphs > 1);
    CHECK(bytes[0] < 100 * tokens[0] && bytes[1] < 100 * tokens[1]);
  }
}

TEST(a_batch_of_a_prompt_costs_little_beside_its_hidden_states) {
  std::size_t batches = 0;
  for (const recordings::Session& session : recordings::depth()) {
    for (const Pass& pass : passes(session)) {
      if (pass.tokens != 512 || pass.cells < 2000) continue;
      ++batches;
      // They come in and, as large, go out.
      CHECK(pass.other_bytes * 100 < pass.hidden_bytes * 2 * 3);
    }
  }
  CHECK(batches > 3);
}

TEST(requests_with_something_changed_come_out_as_they_went_in) {
  each_session(damage_session);
}

TEST(what_was_garbled_is_refused_or_stays_small) {
  each_session(garble);
}

TEST(what_was_cut_short_is_refused) {
  each_session(cut_short);
}

TEST(what_goes_plain_leaves_nothing_behind) {
  const Version version{8, 0, 0};
  Pair with(version), without(version);
  const std::string known = transcript::get_tensor({}, 0, 16);
  const std::string unknown[] = {transcript::request(99, std::string(400, 'x')),
                                 transcript::request(dllm::kSetTensor, std::string(40, 'x')),
                                 transcript::request(dllm::kGetTensor, std::string(400, 'x')),
                                 transcript::request(dllm::kGraphCompute, std::string(400, 'x')),
                                 transcript::request(255, ""),
                                 transcript::hello(version)};
  with.pass(known);
  for (const std::string& each : unknown) {
    const Crossing crossing = with.pass(each);
    CHECK(crossing.begun.is_plain && crossing.bytes() == each.size() + 1);
  }
  without.pass(known);
  CHECK(with.pass(known).messages == without.pass(known).messages);
}

TEST(of_a_version_nobody_knows_everything_goes_plain) {
  Pair pair({9, 0, 0});
  CHECK(pair.pass(transcript::get_tensor({}, 0, 16)).begun.is_plain);
  CHECK(pair.pass(transcript::request(0, "")).begun.is_plain);
}

TEST(more_heads_than_are_kept_come_out_too) {
  Pair pair({7, 0, 0});
  for (std::uint64_t i = 0; i < 1000; ++i) {
    std::string request = transcript::get_tensor({}, 0, i);
    transcript::write<std::uint64_t>(request, dllm::kRequestHeaderBytes, i * i % 97);
    CHECK(pair.pass(request).bytes() < 40 || i == 0);
  }
}

TEST(graphs_of_any_size_come_out) {
  const Version version{8, 0, 0};
  Random random(7);
  for (const std::size_t tensors : {0u, 1u, 400u, 2000u, 3400u, 3600u}) {
    Pair pair(version);
    std::vector<std::string> made(tensors);
    for (std::string& each : made) {
      transcript::TensorSpec spec = transcript::random_tensor(random);
      spec.op = std::max(spec.op, 1u);
      each = transcript::tensor(spec);
    }
    const std::string request = transcript::graph(version, made);
    const Crossing first = pair.pass(request), again = pair.pass(request);
    const bool is_large = request.size() > lean::kGraphRequestBytes;
    CHECK(first.begun.is_plain == is_large && again.begun.is_plain == is_large);
    CHECK(tensors > 1000 || again.bytes() < 64);
  }
}

TEST(a_message_that_uses_what_is_not_there_is_refused) {
  const lean::Buffer messages[] = {{},
                                   {lean::kSameHead | 5},
                                   {lean::kChangedHead | 5, 0},
                                   {lean::kNewHead | 5, 7, 0},
                                   {lean::kNewHead | 5, lean::kNoBase, 200, 0},
                                   {lean::kGraph, 3, 0, 0, 0, 1, 1},
                                   {lean::kGraph, lean::kNoBase, 99, 0, 0, 1, 1},
                                   {lean::kBlock, 0x40, 0},
                                   {0xc3},
                                   {0xff}};
  for (const lean::Buffer& message : messages) {
    lean::Decoder decoder({8, 0, 0});
    lean::Buffer out;
    CHECK(decoder.decode(message, out).taken == 0 && decoder.is_lost() && out.empty());
  }
}

RUN_TESTS()
