// What one connection's bytes mean: transparency, counters, passes, guard and answers, for every
// version and any split of the stream.
#include "check.h"
#include "sessions.h"

using namespace transcript;
using namespace sessions;
using dllm::Link;
using dllm::Nanos;

namespace {

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
    const std::size_t first = 1 + allocation(version).size();
    for (std::size_t i = first; i < all.size(); ++i) requests += all[i].request;
    for (std::size_t i = first; i < all.size(); ++i) replies += all[i].reply;
    bench.greet(version);
    CHECK(up_in_pieces(bench, random, requests) == requests);
    CHECK(down_in_pieces(bench, random, replies) == replies);
    CHECK(bench.link.tally.plain_reason == "");
    check_counts(bench, all);
  }
}

TEST(rdma_capabilities_are_zeroed_both_ways_at_every_cut_and_nothing_else) {
  for (const Version version : kVersions) {
    const std::string asked = hello(version, true), told = hello_reply(version, true);
    for (std::size_t cut = 0; cut <= asked.size(); ++cut) {
      Bench bench;
      const std::string begun = bench.up(asked.substr(0, cut));
      CHECK(begun + bench.up(asked.substr(cut)) == hello(version));
      for (std::size_t at = 0; at < told.size(); ++at) {
        CHECK(bench.down(told.substr(at, 1)) == hello_reply(version).substr(at, 1));
      }
      CHECK(bench.link.tally.protocol == version.text());
    }
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
  CHECK(bench.link.tally.plain_reason == "no HELLO first: RPC from before 1.0, or none");
  CHECK(bench.link.tally.plain_connections == 1);
}

TEST(without_guard_what_is_not_understood_is_passed_on_and_named) {
  const auto reason = [](const std::string& requests, const std::string& replies) {
    Bench bench(false, false);
    bench.greet(k7);
    const std::string more = "and \x01 what follows";
    CHECK(bench.up(requests + more) == requests + more);
    CHECK(bench.down(replies + more) == replies + more);
    return bench.link.tally.plain_reason;
  };
  CHECK(reason(request(99, "abc"), "") == "unknown command");
  CHECK(reason(request(dllm::kFreeBuffer, "short"), "") == "FREE_BUFFER: impossible request size");
  const std::string asking(8 * (dllm::Guard::kAwaitedMax + 1), 'x');
  std::string many;
  for (std::size_t i = 0; i <= dllm::Guard::kAwaitedMax; ++i) {
    many += request(dllm::kBufferGetBase, asking.substr(8 * i, 8));
  }
  CHECK(reason(many, "") == "too many requests without a reply");
}

TEST(what_passes_unread_belongs_to_no_command) {
  Bench bench(false, false);
  bench.greet(k7);
  const std::string bad = request(dllm::kFreeBuffer, "short");
  for (int i = 0; i < 3; ++i) bench.up(bad);
  CHECK(bench.link.tally.plain);
  CHECK(bench.tally(dllm::kFreeBuffer).bytes_up == dllm::kRequestHeaderBytes);
  // Likewise when the worker is what cannot be followed, in the middle of a request.
  Bench other(false, false);
  other.greet(k7);
  const std::string data = set_tensor(k7, row_of(4000), std::string(4000, 'd'));
  other.up(data.substr(0, 1000));
  other.down("a reply nobody asked for");
  other.up(data.substr(1000));
  CHECK(other.tally(dllm::kSetTensor).bytes_up == 1000);
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
  bench.link.passes.settle(2 * dllm::PassMeter::kAbandoned);
  const auto passes = bench.link.passes.collect();
  CHECK(passes.size() == 1 && passes[0].batch == 37 && !passes[0].generated);
}

TEST(loading_and_saving_are_no_passes) {
  Bench bench(false, false);
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
  bench.link.passes.settle(2 * dllm::PassMeter::kAbandoned);
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

TEST(the_oldest_request_without_an_answer_has_an_age) {
  Bench bench;
  bench.greet(k7);
  const std::string ask = request(dllm::kGetDeviceMemory, std::string(4, '\0'));
  const auto unanswered = [&](Nanos now) {
    bench.link.note_unanswered(now);
    return bench.link.tally.unanswered;
  };
  bench.now = 1000;
  bench.up(ask);
  bench.now = 2000;
  bench.up(ask);
  CHECK(unanswered(1000 + Link::kUnansweredMin - 1) == 0);
  const auto revision = bench.link.revision;
  CHECK(unanswered(1000 + Link::kUnansweredMin) == Link::kUnansweredMin);
  CHECK(bench.link.revision == revision + 1);
  bench.now = 5000;
  bench.down(reply(std::string(16, 'm')));
  CHECK(unanswered(5000 + 2 * Link::kUnansweredMin) == 2 * Link::kUnansweredMin);
  bench.down(reply(std::string(16, 'm')));
  CHECK(unanswered(5000 + 9 * Link::kUnansweredMin) == 0);
  // A lab's delay is nobody's silence.
  bench.link.lab.set({.latency_ms = 1000, .jitter_ms = 100});
  bench.up(ask);
  const Nanos delay = 2600 * dllm::kNanosPerMilli;
  CHECK(unanswered(5000 + delay + Link::kUnansweredMin - 1) == 0);
  CHECK(unanswered(5000 + delay + Link::kUnansweredMin) == Link::kUnansweredMin);
  bench.down(reply(std::string(16, 'm')));
  bench.link.lab.set({});
  // What the worker does not take has an age as well.
  bench.link.sending_since = 6000;
  CHECK(unanswered(6000 + Link::kUnansweredMin) == Link::kUnansweredMin);
}

TEST(times_no_clock_tells_are_passed_over) {
  Bench bench(false);
  bench.session->timed({INT64_MIN, INT64_MAX});
  bench.session->timed({INT64_MAX, INT64_MIN});
}

RUN_TESTS()
