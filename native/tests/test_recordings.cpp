// What real clients and workers of many protocol versions said, through the session: nothing is
// changed or refused, all is understood, and the table has the sizes that are really sent.
#include <map>
#include <set>

#include "check.h"
#include "link/session.h"
#include "recordings.h"
#include "transcript.h"

using namespace recordings;
using dllm::Bytes;
using dllm::Link;
using dllm::Protocol;
using dllm::Rule;
using dllm::Tensor;
using dllm::Version;
using transcript::Random;

namespace {

constexpr std::size_t kHeader = dllm::kRequestHeaderBytes;
// GGML_OP_COUNT and GGML_TYPE_COUNT of 8.0.0; both only grew.
constexpr std::uint32_t kOps = 101, kTypes = 43;

// Rules of the table that no recording vouches for, by the version they are from. MEMSET_TENSOR is
// only sent for one architecture, the others by versions of which there is no build.
const std::set<std::string> kNeverRecorded = {
    "MEMSET_TENSOR 5.0.0",
    "MEMSET_TENSOR 6.0.0",
    "SET_TENSOR 1.0.0",
};

Bytes view(std::string& bytes) {
  return {reinterpret_cast<std::uint8_t*>(bytes.data()), bytes.size()};
}

using Pieces = std::vector<std::string>;

Pieces whole(Random&, const std::string& bytes) {
  return {bytes};
}

Pieces at_random(Random& random, const std::string& bytes) {
  Pieces pieces;
  for (std::size_t at = 0; at < bytes.size(); at += pieces.back().size()) {
    pieces.push_back(bytes.substr(at, 1 + random() % 1500));
  }
  return pieces;
}

// Cut after every byte of the header and the fields of what a side begins with.
Pieces slowly_at_first(Random&, const std::string& bytes) {
  constexpr std::size_t slow = 320;
  Pieces pieces;
  for (const char each : bytes.substr(0, slow)) pieces.emplace_back(1, each);
  if (bytes.size() > slow) pieces.push_back(bytes.substr(slow));
  return pieces;
}

// One connection of a link; what came out of it.
struct Replay {
  explicit Replay(Link& link) : session(link) {}
  dllm::Session session;
  std::string to_worker;
  std::string answers;  // of the latest turn
  bool refused = false;

  void up(std::string bytes) {
    const dllm::Outgoing out = session.requests(view(bytes), 1);
    to_worker += text_of(out.worker);
    answers = out.answers;
    refused = refused || out.refused;
  }
  std::string down(std::string bytes) {
    session.replies(view(bytes), 1);
    return bytes;
  }
};

template <typename Cut>
void play(Link& link, const Conversation& conversation, Random& random, Cut cut) {
  Replay replay(link);
  std::string to_client;
  for (const Turn& turn : conversation) {
    for (const std::string& piece : cut(random, turn.bytes)) {
      turn.up ? replay.up(piece) : void(to_client += replay.down(piece));
    }
  }
  const dllm::Outgoing rest = replay.session.requests_end();
  replay.to_worker += text_of(rest.worker);
  CHECK(replay.to_worker == stream(conversation, true));
  CHECK(to_client == stream(conversation, false));
  CHECK(!replay.refused);
  CHECK(replay.session.awaited() == 0);
}

// Requests and their bytes by command, as the framing alone tells them.
void check_counts(const Link& link, const Session& session) {
  std::uint64_t count[dllm::kCommands]{}, up[dllm::kCommands]{};
  for (const Conversation& each : session.conversations) {
    for (const Message& request : messages(each, true)) {
      ++count[request.id];
      up[request.id] += request.bytes.size();
    }
  }
  for (std::uint8_t id = 0; id < dllm::kCommands; ++id) {
    CHECK(link.tally.commands[id].count == count[id]);
    CHECK(link.tally.commands[id].bytes_up == up[id]);
    CHECK(link.tally.commands[id].errors == 0);
  }
}

// A guard answers the question for a way past it itself.
bool asks_for_link(const Session& session) {
  return std::ranges::any_of(session.conversations, [](const Conversation& each) {
    return std::ranges::any_of(
        messages(each, true), [](const Message& request) { return request.id == dllm::kCommInit; });
  });
}

template <typename Cut>
void check_understood(const Session& session, Random& random, Cut cut) {
  for (const bool guard : {true, false}) {
    if (guard && asks_for_link(session)) continue;
    Link link("w", false, guard);
    for (const Conversation& each : session.conversations) play(link, each, random, cut);
    CHECK(link.tally.passthrough_reason == "");
    CHECK(link.tally.refused_reason == "");
    CHECK(link.tally.protocol == session.version->text());
    CHECK(session.name.starts_with(link.tally.protocol));
    check_counts(link, session);
  }
}

// What a worker really gave: base and size by handle.
struct Buffers {
  std::map<std::uint64_t, std::uint64_t> sizes;
  std::map<std::uint64_t, std::uint64_t> bases;

  void note(const Message& request, const std::string& reply) {
    const auto handle = read<std::uint64_t>(request.payload, 0);
    if (request.id == dllm::kAllocBuffer) note_allocation(request, reply);
    if (request.id == dllm::kBufferGetBase) bases[handle] = read<std::uint64_t>(reply, 0);
    if (request.id == dllm::kFreeBuffer) CHECK(sizes.erase(handle) == 1);
  }
  void note_allocation(const Message& request, const std::string& reply) {
    const auto asked = read<std::uint64_t>(request.payload, request.payload.size() - 8);
    const auto given = read<std::uint64_t>(reply, 8);
    CHECK(asked > 0 && given >= asked && given < asked + 4096);
    sizes[read<std::uint64_t>(reply, 0)] = given;
  }
  void check_inside(const Tensor& tensor) {
    if (tensor.buffer() == 0 || tensor.data() == 0) return;
    CHECK(sizes.contains(tensor.buffer()));
    const std::uint64_t base = bases[tensor.buffer()];
    CHECK(tensor.data() >= base && tensor.data() <= base + sizes[tensor.buffer()]);
  }
};

const std::uint8_t* at(const Message& request, std::size_t offset) {
  return reinterpret_cast<const std::uint8_t*>(request.payload.data()) + offset;
}

std::string name_of(const Message& request) {
  return request.payload.substr(228, 64).c_str();
}

// Nodes and tensors fill the payload behind the fixed fields; each tensor makes sense.
void check_graph(const Rule& rule, const Message& request, Buffers& buffers) {
  const auto nodes = read<std::uint32_t>(request.payload, rule.fields - 4);
  const std::size_t tensors_at = rule.fields + dllm::kGraphNodeBytes * nodes + 4;
  const auto tensors = read<std::uint32_t>(request.payload, tensors_at - 4);
  CHECK(nodes > 0 && tensors >= nodes);
  CHECK(request.payload.size() == tensors_at + dllm::kTensorBytes * tensors);
  std::set<std::uint64_t> ids;
  for (std::uint32_t i = 0; i < tensors; ++i) {
    const std::size_t offset = tensors_at + i * dllm::kTensorBytes;
    const Tensor tensor(at(request, offset));
    CHECK(tensor.op() < kOps && tensor.type() < kTypes);
    buffers.check_inside(tensor);
    ids.insert(read<std::uint64_t>(request.payload, offset));
  }
  for (std::uint32_t i = 0; i < nodes; ++i) {
    CHECK(ids.contains(read<std::uint64_t>(request.payload, rule.fields + 8 * i)));
  }
}

bool sets_norm(const Message& request) {
  return request.id == dllm::kSetTensor && name_of(request).ends_with("attn_norm.weight");
}

// The data of a norm are ones, exactly where the table says that data begin.
void check_norm(const Rule& rule, const Message& request) {
  const std::size_t length = Tensor(at(request, 0)).ne(0);
  CHECK(request.payload.size() == rule.fields + length * sizeof(float));
  CHECK(read<std::uint64_t>(request.payload, rule.fields - 8) == 0);
  for (std::size_t i = 0; i < length; ++i) {
    CHECK(read<float>(request.payload, rule.fields + i * sizeof(float)) == 1.0F);
  }
}

// Goes through a session message by message, with the table beside it.
struct Reader {
  explicit Reader(const Session& session) : protocol(*session.version), recorded(session) {}
  Protocol protocol;
  const Session& recorded;
  std::set<const Rule*> rules;
  std::size_t norms = 0;
  std::size_t graphs = 0;

  void read_all() {
    for (const Conversation& each : recorded.conversations) {
      Buffers buffers;
      const auto replies = messages(each, false);
      auto reply = replies.begin();
      for (const Message& request : messages(each, true)) {
        const Rule* rule = protocol.rule(request.id);
        CHECK(rule != nullptr);
        if (!rule) return;
        const bool replied = rule->reply_kind != dllm::Reply::kNone;
        CHECK(!replied || reply != replies.end());
        const std::string payload = replied ? (reply++)->payload : "";
        read_one(*rule, request, payload, buffers);
      }
      CHECK(reply == replies.end());
    }
  }

  void read_one(const Rule& rule, const Message& request, const std::string& reply,
                Buffers& buffers) {
    rules.insert(&rule);
    CHECK(dllm::size_fits(rule, request.payload.size()));
    const dllm::View fields(at(request, 0), rule.fields);
    if (rule.id != dllm::kHello) CHECK(reply.size() == dllm::reply_bytes(rule, fields));
    buffers.note(request, reply);
    if (dllm::is_one_of(rule.id, {dllm::kSetTensor, dllm::kGetTensor, dllm::kSetTensorHash})) {
      buffers.check_inside(Tensor(at(request, 0)));
    }
    if (sets_norm(request)) check_norm(rule, request);
    norms += sets_norm(request);
    if (rule.id == dllm::kGraphCompute) check_graph(rule, request, buffers);
    graphs += dllm::is_one_of(rule.id, {dllm::kGraphCompute, dllm::kGraphRecompute});
  }
};

std::string title(const Rule& rule) {
  std::string text = rule.name;
  return text.append(1, ' ').append(rule.from.text());
}

}  // namespace

TEST(every_session_passes_unchanged_and_is_counted_in_any_pieces) {
  for (const Session& session : with_version()) {
    Random random(std::random_device{}());
    check_understood(session, random, whole);
    check_understood(session, random, slowly_at_first);
    check_understood(session, random, at_random);
  }
}

TEST(the_table_has_the_sizes_that_are_really_sent) {
  for (const Session& session : with_version()) {
    Reader reader(session);
    reader.read_all();
    CHECK(reader.norms >= 2);
    CHECK(reader.graphs > 4);
  }
}

// A recording that shows one of these makes this fail: then take it off the list.
TEST(every_rule_of_the_table_was_seen_on_the_wire_or_is_named_here) {
  std::set<const Rule*> seen;
  for (const Session& session : with_version()) {
    Reader reader(session);
    reader.read_all();
    seen.merge(reader.rules);
  }
  std::set<std::string> missing;
  for (const Version version : transcript::kVersions) {
    for (std::uint8_t id = 0; id < dllm::kCommands; ++id) {
      const Rule* rule = Protocol(version).rule(id);
      if (rule && !seen.contains(rule)) missing.insert(title(*rule));
    }
  }
  CHECK(missing == kNeverRecorded);
}

TEST(an_answer_given_here_is_what_the_worker_said) {
  std::uint64_t answered = 0;
  for (const Session& session : with_version()) {
    Link link("w", true, !asks_for_link(session));
    for (const Conversation& each : session.conversations) {
      Replay replay(link);
      const auto replies = messages(each, false);
      auto reply = replies.begin();
      for (const Message& request : messages(each, true)) {
        replay.up(request.bytes);
        if (!replay.answers.empty()) {
          CHECK(replay.answers == (reply++)->bytes);
        } else if (replay.session.awaited()) {
          replay.down((reply++)->bytes);
        }
      }
      CHECK(reply == replies.end());
      CHECK(!replay.refused);
    }
    answered += link.tally.commands[dllm::kGetAllocSize].answered;
  }
  CHECK(answered > 0);
}

TEST(a_protocol_without_a_version_is_passed_on_and_named) {
  std::size_t seen = 0;
  for (const Session& session : all()) {
    if (session.version) continue;
    ++seen;
    Random random(1);
    Link link("w", true, true);
    for (const Conversation& each : session.conversations) {
      play(link, each, random, at_random);
    }
    CHECK(link.tally.protocol == "");
    CHECK(link.tally.passthrough_reason == "no HELLO first: RPC from before 1.0, or none");
    CHECK(link.tally.passthrough_connections == session.conversations.size());
    CHECK(link.tally.refused == 0);
  }
  CHECK(seen > 0);
}

TEST(messages_made_up_for_other_tests_have_the_shape_of_recorded_ones) {
  for (const Session& session : with_version()) {
    const Version version = *session.version;
    const Conversation& first = session.conversations.front();
    CHECK(transcript::hello(version) == messages(first, true).front().bytes);
    CHECK(transcript::hello_reply(version) == messages(first, false).front().bytes);
    const std::size_t graph = transcript::graph(version, {}).size() - kHeader - 4;
    CHECK(graph == Protocol(version).rule(dllm::kGraphCompute)->fields);
    for (const Conversation& each : session.conversations) {
      for (const Message& request : messages(each, true)) {
        if (request.id == dllm::kGraphRecompute) {
          CHECK(transcript::recompute(version).size() == request.bytes.size());
        }
        if (!sets_norm(request)) continue;
        const std::string norm(Tensor(at(request, 0)).ne(0) * sizeof(float), '\0');
        CHECK(transcript::set_tensor(version, {}, norm).size() == request.bytes.size());
      }
    }
  }
}

RUN_TESTS()
