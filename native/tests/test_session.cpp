// What one connection's bytes mean: transparency, counters, passes, guard and answers, for every
// version and any split of the stream.
#include "check.h"
#include "relay/session.h"
#include "transcript.h"

using namespace transcript;
using dllm::Link;
using dllm::Nanos;
using dllm::Outgoing;
using dllm::Session;

namespace {

constexpr Version k7{7, 0, 0};
constexpr Version k8{8, 0, 0};

std::string text(const Outgoing& out) {
  return {out.worker.begin(), out.worker.end()};
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
  void greet(Version version) {
    up(hello(version));
    down(hello_reply(version));
  }
  const dllm::CommandTally& tally(std::uint8_t id) { return link.tally.commands[id]; }
};

std::string up_in_pieces(Bench& bench, Random& random, const std::string& bytes) {
  std::string out;
  for (const std::string& piece : split(random, bytes)) out += bench.up(piece);
  return out;
}

std::string down_in_pieces(Bench& bench, Random& random, const std::string& bytes) {
  std::string out;
  for (const std::string& piece : split(random, bytes)) out += bench.down(piece);
  return out;
}

// Sums what a conversation should have been counted as, and compares.
void check_counts(Bench& bench, const std::vector<Exchange>& all) {
  std::uint64_t count[dllm::kCommands]{}, up[dllm::kCommands]{}, down[dllm::kCommands]{};
  for (const Exchange& each : all) {
    ++count[each.id];
    up[each.id] += each.request.size();
    down[each.id] += each.reply.size();
  }
  for (std::uint8_t id = 0; id < dllm::kCommands; ++id) {
    CHECK(bench.tally(id).count == count[id]);
    CHECK(bench.tally(id).bytes_up == up[id]);
    CHECK(bench.tally(id).bytes_down == down[id]);
    CHECK(bench.tally(id).errors == 0);
  }
}

void replay(Version version, std::uint64_t seed) {
  Random random(seed);
  Bench bench(false);
  const auto all = conversation(random, version, 60);
  for (const Exchange& each : all) {
    CHECK(up_in_pieces(bench, random, each.request) == each.request);
    CHECK(down_in_pieces(bench, random, each.reply) == each.reply);
  }
  CHECK(!bench.refused);
  CHECK(bench.link.tally.plain_reason == "");
  CHECK(bench.link.tally.protocol == version.text());
  CHECK(bench.session->awaited() == 0);
  check_counts(bench, all);
}

std::string alloc_size_request(Version version, std::uint32_t device, const TensorSpec& spec,
                               std::uint64_t id) {
  std::string payload;
  put(payload, device);
  std::string made = tensor(spec);
  write(made, 0, id);
  payload += made;
  if (version >= Version{3, 6, 0}) payload += std::string(10 * dllm::kTensorBytes, '\0');
  return request(dllm::kGetAllocSize, payload);
}

std::string eight_bytes(std::uint64_t value) {
  std::string payload;
  put(payload, value);
  return reply(payload);
}

constexpr std::uint32_t kAddOp = 2;
const TensorSpec kHidden{0, {64, 1, 1, 1}, 0, 0x7f0000000000, 1, "RPC0#l_out-3#0"};
const TensorSpec kOutput{0, {64, 1, 1, 1}, kAddOp, 0x7f0000000000, 1, "l_out-6"};

}  // namespace

TEST(every_version_passes_unchanged_and_is_counted) {
  for (const Version version : kVersions) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) replay(version, seed);
  }
}

TEST(pipelined_requests_keep_their_replies) {
  for (const Version version : kVersions) {
    Random random(version.major);
    Bench bench(false);
    const auto all = conversation(random, version, 40);
    std::string requests, replies;
    for (std::size_t i = 1; i < all.size(); ++i) requests += all[i].request;
    for (std::size_t i = 1; i < all.size(); ++i) replies += all[i].reply;
    bench.greet(version);
    CHECK(up_in_pieces(bench, random, requests) == requests);
    CHECK(down_in_pieces(bench, random, replies) == replies);
    CHECK(bench.link.tally.plain_reason == "");
    check_counts(bench, all);
  }
}

TEST(rdma_capabilities_are_zeroed_both_ways_and_nothing_else) {
  for (const Version version : kVersions) {
    Random random(1);
    Bench bench;
    CHECK(up_in_pieces(bench, random, hello(version, true)) == hello(version, false));
    CHECK(down_in_pieces(bench, random, hello_reply(version, true)) == hello_reply(version, false));
    CHECK(bench.link.tally.protocol == version.text());
  }
}

TEST(a_minor_the_table_does_not_know_uses_its_major) {
  Bench bench;
  bench.greet({5, 3, 0});
  const std::string known = request(dllm::kFreeBuffer, std::string(8, '\0'));
  CHECK(bench.up(known) == known);
  CHECK(bench.down(reply("")) == reply(""));
  CHECK(bench.link.tally.plain_reason == "");
  CHECK(!bench.link.tally.ops_guarded);
}

TEST(a_major_the_table_does_not_know_is_passed_on_unread) {
  Bench bench;
  bench.up(hello(k8));
  bench.down(hello_reply({9, 0, 0}));
  CHECK(bench.link.tally.plain);
  CHECK(bench.link.tally.plain_reason == "protocol 9.0.0 is not in the table");
  Random random(3);
  const std::string noise = random_bytes(random, 5000);
  CHECK(bench.up(noise) == noise);
  CHECK(bench.down(noise) == noise);
}

TEST(a_first_byte_that_is_no_hello_is_passed_on_unread) {
  Bench bench;
  Random random(4);
  const std::string old = request(dllm::kGetAlignment, "") + random_bytes(random, 400);
  CHECK(up_in_pieces(bench, random, old) == old);
  CHECK(bench.down("anything at all") == "anything at all");
  CHECK(bench.link.tally.plain_reason == "no HELLO first");
  CHECK(bench.link.tally.plain_connections == 1);
}

TEST(what_is_not_understood_is_passed_on_and_named) {
  const auto reason = [](const std::string& requests, const std::string& replies) {
    Bench bench;
    bench.greet(k7);
    const std::string more = "and \x01 what follows";
    CHECK(bench.up(requests + more) == requests + more);
    CHECK(bench.down(replies + more) == replies + more);
    return bench.link.tally.plain_reason;
  };
  CHECK(reason(request(99, "abc"), "") == "unknown command");
  CHECK(reason(request(dllm::kFreeBuffer, "short"), "") == "FREE_BUFFER: impossible request size");
}

TEST(a_reply_nobody_asked_for_is_passed_on_and_named) {
  Bench bench;
  bench.greet(k7);
  CHECK(bench.down("a reply") == "a reply");
  CHECK(bench.link.tally.plain_reason == "a reply nobody asked for");
}

TEST(a_reply_of_the_wrong_size_is_passed_on_and_named) {
  Bench bench;
  bench.greet(k7);
  bench.up(request(dllm::kBufferGetBase, std::string(8, 'x')));
  const std::string wrong = reply("four") + "and more";
  CHECK(bench.down(wrong) == wrong);
  CHECK(bench.link.tally.plain_reason == "unexpected reply size to BUFFER_GET_BASE");
}

TEST(a_graph_whose_counts_disagree_with_its_size_is_passed_on) {
  for (const Version version : kVersions) {
    Bench bench;
    bench.greet(version);
    std::string bad = graph(version, {tensor({}), tensor({})});
    bad.resize(bad.size() - 8);
    write<std::uint64_t>(bad, 1, bad.size() - 9);
    CHECK(bench.up(bad) == bad);
    CHECK(bench.link.tally.plain_reason == "GRAPH_COMPUTE: graph shorter than its tensors");
  }
}

TEST(more_requests_than_anyone_means_are_passed_on_unread) {
  Bench bench(false);
  bench.greet(k7);
  const std::string ask = request(dllm::kBufferGetBase, std::string(8, 'x'));
  for (std::size_t i = 0; i < Session::kAwaitedMax + 10; ++i) CHECK(bench.up(ask) == ask);
  CHECK(bench.link.tally.plain_reason == "too many requests without a reply");
}

TEST(the_guard_refuses_what_would_kill_a_worker) {
  const auto refusal = [](Version version, const std::string& bad) {
    Random random(5);
    Bench bench;
    bench.greet(version);
    const std::string good = request(dllm::kBufferGetBase, std::string(8, 'x'));
    const std::string out = bench.up(good + bad);
    CHECK(out == good);
    CHECK(bench.refused);
    CHECK(bench.up(good).empty());
    Bench pieces;
    pieces.greet(version);
    const std::string sent = up_in_pieces(pieces, random, good + bad);
    CHECK(sent.size() < good.size() + bad.size());
    CHECK(pieces.refused);
    return bench.link.tally.refused_reason;
  };
  TensorSpec custom, beyond, wrapping, odd;
  custom.op = 95;
  beyond.op = 101;
  odd.type = 4000;
  wrapping.ne = {0xffffffff, 0xffffffff, 1, 1};
  wrapping.data = ~std::uint64_t{0} - 1000;
  for (const Version version : {k7, k8}) {
    const auto with = [&](const TensorSpec& spec) {
      return graph(version, {tensor({}), tensor(spec), tensor({})});
    };
    CHECK(check::contains(refusal(version, with(custom)), "custom op"));
    CHECK(check::contains(refusal(version, with(beyond)), "op that this version does not have"));
    CHECK(check::contains(refusal(version, with(odd)), "impossible type"));
    CHECK(check::contains(refusal(version, with(wrapping)), "wraps around"));
    CHECK(check::contains(refusal(version, set_tensor(version, wrapping, "data")), "wraps"));
    CHECK(check::contains(refusal(version, get_tensor({}, ~std::uint64_t{0}, 8)), "wraps"));
  }
  std::string aborting = request(dllm::kSetTensor, "payload");
  write<std::uint64_t>(aborting, 1, std::uint64_t{1} << 63);
  CHECK(check::contains(refusal(k7, aborting), "aborts a worker"));
  std::string senseless = request(dllm::kFreeBuffer, "payload");
  write<std::uint64_t>(senseless, 1, std::uint64_t{1} << 40);
  CHECK(check::contains(refusal(k7, senseless), "beyond any sense"));
}

TEST(custom_ops_have_the_numbers_of_their_version) {
  const auto refused = [](Version version, std::uint32_t op) {
    Bench bench;
    bench.greet(version);
    TensorSpec spec;
    spec.op = op;
    bench.up(graph(version, {tensor(spec)}));
    return bench.refused;
  };
  CHECK(refused({3, 6, 1}, 87) && refused({3, 6, 1}, 90) && !refused({3, 6, 1}, 91));
  CHECK(refused({4, 0, 1}, 88) && !refused({4, 0, 1}, 92));
  CHECK(refused(k8, 92) && refused(k8, 95) && !refused(k8, 91) && !refused(k8, 96));
  // Not known: not judged.
  CHECK(!refused({8, 0, 1}, 92) && !refused({2, 0, 0}, 92));
}

TEST(a_request_that_does_not_wait_for_the_version_is_refused) {
  Bench bench;
  CHECK(bench.up(hello(k7) + graph(k7, {tensor({})})) == hello(k7));
  CHECK(bench.refused);
}

TEST(without_guard_everything_passes) {
  Bench bench(true, false);
  bench.greet(k7);
  TensorSpec custom;
  custom.op = 95;
  const std::string bad = graph(k7, {tensor(custom)});
  CHECK(bench.up(bad) == bad);
  CHECK(!bench.refused);
}

TEST(what_cannot_change_is_answered_here) {
  for (const Version version : kVersions) {
    Random random(version.major);
    Bench bench;
    bench.greet(version);
    const std::string ask =
        request(dllm::kGetMaxSize, std::string(version.major < 3 ? 0 : 4, '\0'));
    CHECK(up_in_pieces(bench, random, ask) == ask);
    CHECK(bench.answers.empty());
    bench.down(eight_bytes(4711));
    CHECK(up_in_pieces(bench, random, ask).empty());
    CHECK(bench.answers == eight_bytes(4711));
    CHECK(bench.tally(dllm::kGetMaxSize).count == 2);
    CHECK(bench.tally(dllm::kGetMaxSize).answered == 1);
    CHECK(bench.tally(dllm::kGetMaxSize).bytes_up == ask.size());
  }
}

TEST(an_allocation_size_depends_on_shape_and_op_but_not_on_addresses) {
  for (const Version version : {Version{3, 0, 0}, Version{3, 6, 1}, k7, k8}) {
    Bench bench;
    bench.greet(version);
    TensorSpec spec;
    bench.up(alloc_size_request(version, 0, spec, 1));
    bench.down(eight_bytes(100));
    spec.data += 4096;
    spec.name = "another";
    CHECK(bench.up(alloc_size_request(version, 0, spec, 2)).empty());
    CHECK(bench.answers == eight_bytes(100));
    CHECK(!bench.up(alloc_size_request(version, 1, spec, 2)).empty());
    bench.down(eight_bytes(101));
    spec.ne[1] = 7;
    CHECK(!bench.up(alloc_size_request(version, 0, spec, 2)).empty());
    bench.down(eight_bytes(102));
    spec.op = 30;
    CHECK(!bench.up(alloc_size_request(version, 0, spec, 2)).empty());
  }
}

TEST(an_answer_never_overtakes_a_reply) {
  Bench bench;
  bench.greet(k7);
  const std::string known = request(dllm::kGetMaxSize, std::string(4, '\0'));
  const std::string other = request(dllm::kBufferGetBase, std::string(8, 'x'));
  bench.up(known);
  bench.down(eight_bytes(1));
  CHECK(bench.up(other + known) == other + known);
  CHECK(bench.answers.empty());
  bench.down(eight_bytes(2));
  bench.down(eight_bytes(1));
  CHECK(bench.up(known).empty());
}

TEST(answers_are_forgotten_with_another_version) {
  Bench bench;
  bench.greet(k7);
  const std::string ask = request(dllm::kDeviceCount, "");
  bench.up(ask);
  bench.down(reply(std::string(4, '\1')));
  bench.session.emplace(bench.link);
  bench.greet(k7);
  CHECK(bench.up(ask).empty());
  bench.session.emplace(bench.link);
  bench.greet(k8);
  CHECK(bench.up(ask) == ask);
}

TEST(what_was_held_back_is_let_go_at_the_end) {
  Bench bench;
  bench.greet(k7);
  CHECK(bench.up(std::string(1, dllm::kGetMaxSize)).empty());
  CHECK(text(bench.session->requests_end()) == std::string(1, dllm::kGetMaxSize));
}

TEST(a_pass_adds_up_to_its_wall_time) {
  Bench bench(false);
  bench.greet(k7);
  bench.link.tally.estimate = {1000, 0};
  const auto pass = [&](Nanos begin) {
    const std::string fed = set_tensor(k7, kHidden, std::string(256, 'h')) + recompute(k7);
    const std::string asked = get_tensor(kOutput, 0, 256);
    bench.now = begin;
    bench.up(fed);
    bench.now = begin + 500;
    bench.up(asked);
    bench.now = begin + 9500;
    bench.down(reply(std::string(256, 'r')).substr(0, 5));
    bench.now = begin + 10000;
    bench.down(reply(std::string(256, 'r')).substr(5));
    return fed.size() + asked.size();
  };
  pass(10'000);
  const std::uint64_t bytes_up = pass(50'000);
  bench.link.passes.settle(bench.now + dllm::PassMeter::kSettled + 1);
  const auto passes = bench.link.passes.collect();
  CHECK(passes.size() == 2);
  const dllm::Pass& second = passes.back();
  CHECK(second.head == 30'000);
  CHECK(second.up == 500);
  CHECK(second.compute == 9'500 - 1'000);
  CHECK(second.down == 500 + 500);
  CHECK(second.wait == 0);
  CHECK(second.head + second.up + second.compute + second.down + second.wait == 40'000);
  CHECK(second.tokens == 1 && second.trips == 1 && second.generated);
  CHECK(second.bytes_up == bytes_up);
  CHECK(second.bytes_down == 8 + 256);
  CHECK(!passes.front().generated);
}

TEST(tokens_of_a_pass_come_from_the_hidden_state) {
  Bench bench(false);
  bench.greet(k7);
  TensorSpec hidden = kHidden, mask = kHidden, positions = kHidden;
  hidden.ne[1] = 37;
  mask.ne = {256, 64, 1, 1};
  positions.type = 26;
  bench.up(set_tensor(k7, mask, "m") + set_tensor(k7, hidden, "h"));
  bench.up(set_tensor(k7, positions, "p") + graph(k7, {tensor({})}));
  bench.up(get_tensor(kOutput, 0, 4));
  bench.down(reply("abcd"));
  bench.link.passes.settle(2 * dllm::PassMeter::kSettled);
  const auto passes = bench.link.passes.collect();
  CHECK(passes.size() == 1 && passes[0].tokens == 37);
}

TEST(loading_and_saving_are_no_passes) {
  Bench bench(false);
  bench.greet(k7);
  bench.up(set_tensor(k7, kHidden, "weights"));
  bench.up(request(dllm::kBufferClear, std::string("\2\0\0\0\0\0\0\0\0", 9)));
  TensorSpec cache = kOutput;
  cache.buffer = 2;
  bench.now = 1000;
  bench.up(set_tensor(k7, kHidden, "h") + recompute(k7) + get_tensor(kOutput, 0, 4));
  bench.down(reply("abcd"));
  bench.up(get_tensor(cache, 0, 4));
  bench.down(reply("save"));
  const auto passes = bench.link.passes.collect();
  CHECK(passes.size() == 1 && passes[0].trips == 1 && passes[0].first_input == 1000);
  CHECK(passes[0].bytes_down == 12);
}

TEST(several_fetches_are_one_pass) {
  Bench bench(false);
  bench.greet(k7);
  bench.up(set_tensor(k7, kHidden, "h") + recompute(k7));
  for (int i = 0; i < 4; ++i) {
    bench.up(get_tensor(kOutput, 0, 4));
    bench.down(reply("abcd"));
  }
  bench.link.passes.settle(2 * dllm::PassMeter::kSettled);
  const auto passes = bench.link.passes.collect();
  CHECK(passes.size() == 1 && passes[0].trips == 4);
}

TEST(a_reply_that_never_comes_is_an_error_of_its_command) {
  Bench bench;
  bench.greet(k7);
  bench.up(request(dllm::kBufferGetBase, std::string(8, 'x')));
  bench.session.reset();
  CHECK(bench.tally(dllm::kBufferGetBase).errors == 1);
}

TEST(a_worker_that_does_not_answer_is_named_once_and_forgiven_when_it_does) {
  Bench bench;
  bench.now = 1000;
  bench.up(hello(k7));
  const auto silence = [&](Nanos now) {
    bench.link.note_silence(now);
    return bench.link.tally.silence;
  };
  CHECK(silence(1000 + Link::kSilenceMax - 1).empty());
  const std::string told = "w does not answer HELLO for 5 s: another client may hold it";
  CHECK(silence(1000 + Link::kSilenceMax) == told);
  const auto revision = bench.link.revision;
  CHECK(silence(1000 + 2 * Link::kSilenceMax) == told && bench.link.revision == revision);
  bench.down(hello_reply(k7));
  CHECK(silence(1000 + 3 * Link::kSilenceMax).empty());
}

RUN_TESTS()
