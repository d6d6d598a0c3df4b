// What one connection's bytes mean: transparency, counters, passes, guard and answers, for every
// version and any split of the stream.
#include "check.h"
#include "sessions.h"

using namespace transcript;
using namespace sessions;

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
  CHECK(bench.link.tally.passthrough_reason == "");
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
    CHECK(bench.link.tally.passthrough_reason == "");
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

TEST(a_reply_in_the_middle_of_a_hello_does_not_let_its_capabilities_through) {
  for (const Version version : kVersions) {
    const std::string asked = hello(version, true);
    for (std::size_t cut = 0; cut < asked.size(); ++cut) {
      for (const bool guards : {false, true}) {
        Bench bench(guards, guards);
        const std::string begun = bench.up(asked.substr(0, cut));
        bench.down(reply("unasked"));
        CHECK(begun + bench.up(asked.substr(cut)) == hello(version));
        CHECK(bench.up(asked) == asked);
      }
    }
  }
}

TEST(too_many_hellos_are_passed_on_unread) {
  Bench bench(false, false);
  const std::string asked = hello(k8, true);
  while (!bench.link.tally.passthrough) CHECK(bench.up(asked) == hello(k8));
  CHECK(bench.up(asked) == asked);
}

TEST(a_minor_the_table_does_not_know_uses_its_major) {
  Bench bench;
  bench.greet({5, 3, 0});
  const std::string known = request(dllm::kFreeBuffer, std::string(8, '\0'));
  CHECK(bench.up(known) == known);
  CHECK(bench.down(reply("")) == reply(""));
  CHECK(bench.link.tally.passthrough_reason == "");
  CHECK(!bench.link.tally.ops_guarded);
}

TEST(a_major_the_table_does_not_know_is_passed_on_unread) {
  Bench bench;
  bench.up(hello(k8));
  bench.down(hello_reply({9, 0, 0}));
  CHECK(bench.link.tally.passthrough);
  CHECK(bench.link.tally.passthrough_reason == "protocol 9.0.0 is not in the table");
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
  CHECK(bench.link.tally.passthrough_reason == "no HELLO first: RPC from before 1.0, or none");
  CHECK(bench.link.tally.passthrough_connections == 1);
}

TEST(without_guard_what_is_not_understood_is_passed_on_and_named) {
  const auto reason = [](const std::string& requests, const std::string& replies) {
    Bench bench(false, false);
    bench.greet(k7);
    const std::string more = "and \x01 what follows";
    CHECK(bench.up(requests + more) == requests + more);
    CHECK(bench.down(replies + more) == replies + more);
    return bench.link.tally.passthrough_reason;
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
  CHECK(bench.link.tally.passthrough);
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
  CHECK(bench.link.tally.passthrough_reason == "a reply nobody asked for");
}

TEST(a_reply_of_the_wrong_size_is_passed_on_and_named) {
  Bench bench;
  bench.greet(k7);
  bench.up(request(dllm::kBufferGetBase, std::string(8, 'x')));
  const std::string wrong = reply("four") + "and more";
  CHECK(bench.down(wrong) == wrong);
  CHECK(bench.link.tally.passthrough_reason == "unexpected reply size to BUFFER_GET_BASE");
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

RUN_TESTS()
