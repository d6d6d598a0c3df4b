// What one connection's bytes tell of time: passes, silence, questions without an answer.
#include "check.h"
#include "sessions.h"

using namespace transcript;
using namespace sessions;
using dllm::Link;
using dllm::Nanos;

namespace {

constexpr std::uint32_t kAddOp = 2;
const TensorSpec kHidden{0, {64, 1, 1, 1}, 0, 0x7f0000000000, 1, "RPC0#l_out-3#0"};
const TensorSpec kOutput{0, {64, 1, 1, 1}, kAddOp, 0x7f0000000000, 1, "l_out-6"};

}  // namespace

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
