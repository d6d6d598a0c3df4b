#include <random>
#include <vector>

#include "check.h"
#include "meter/passes.h"
#include "transcript.h"

using dllm::Cost;
using dllm::divide_time;
using dllm::kNanosPerSecond;
using dllm::Leg;
using dllm::LinkEstimate;
using dllm::Nanos;
using dllm::Pass;
using dllm::PassMeter;
using dllm::Tensor;
using transcript::TensorSpec;

namespace {

constexpr LinkEstimate kLink{10'000, 0};  // one way takes 5'000
constexpr std::uint32_t kEmbd = 64, kVocab = 1000, kI32 = 26;

Nanos sum(const Cost& cost) {
  return cost.head + cost.up + cost.compute + cost.down + cost.wait;
}

Leg leg(Nanos first_input, Nanos graph_sent, Nanos first_reply, Nanos last_reply,
        std::uint64_t bytes_fed = 0) {
  return {first_input, graph_sent, first_reply, last_reply, bytes_fed, bytes_fed};
}

// What llama-server sends for its passes, at a time that passes with every request.
struct Head {
  PassMeter meter;
  Nanos now = 0;
  int copy = 0;

  void set(const std::string& name, std::uint32_t type, std::vector<std::uint32_t> ne,
           std::uint64_t offset = 0, std::uint64_t bytes = 100) {
    const std::string full = "RPC0[w:1]#" + name + '#' + std::to_string(copy);
    const std::string made = transcript::tensor({type, std::move(ne), 0, 0, 1, full});
    meter.set(++now, Tensor(reinterpret_cast<const std::uint8_t*>(made.data())), offset, bytes);
  }
  void state(const std::string& name, std::uint32_t tokens) { set(name, 0, {kEmbd, tokens, 1, 1}); }
  void ids(std::uint32_t rows) { set("out_ids", kI32, {rows, 1, 1, 1}); }
  void graph() { meter.graph(++now); }
  void fetch(const std::string& name, std::uint32_t columns, std::uint32_t rows) {
    const std::string made = transcript::tensor({0, {columns, rows, 1, 1}, 2, 0, 1, name});
    meter.ask(Tensor(reinterpret_cast<const std::uint8_t*>(made.data())),
              std::uint64_t{4} * columns * rows);
    meter.add_trip();
    meter.reply_begun(++now);
    meter.reply_ended(++now, {});
  }
  void logits(std::uint32_t rows) { fetch("result_output", kVocab, rows); }

  // A pass through the last stage.
  void last_stage(std::uint32_t tokens, std::uint32_t rows) {
    copy = (copy + 1) % 4;
    state("l_out-6", tokens);
    set("inp_pos", kI32, {tokens, 1, 1, 1});
    if (rows) ids(rows);
    graph();
    if (rows) logits(rows);
  }
  // A pass through a stage of which three layers' FFN are on the head.
  void torn_stage(std::uint32_t tokens) {
    state("embd", tokens);
    set("inp_pos", kI32, {tokens, 1, 1, 1});
    graph();
    fetch("norm-2", kEmbd, tokens);
    state("ffn_out-2", tokens);
    graph();
    fetch("norm-4", kEmbd, tokens);
    state("ffn_out-4", tokens);
    graph();
    fetch("norm-6", kEmbd, tokens);
    fetch("ffn_inp-6", kEmbd, tokens);
  }
  std::vector<Pass> passes() {
    meter.discard();
    return meter.collect();
  }
};

// The moments of one pass as a connection brings them.
struct Moments {
  Nanos input, graph, reply_begun, reply_ended;
};

const std::string kSomeTensor = transcript::tensor({0, {4, 1, 1, 1}, 2, 0, 1, "l_out-6"});

void feed(PassMeter& meter, const Moments& moments) {
  meter.prepare(moments.input);
  meter.graph(moments.graph);
  meter.ask(Tensor(reinterpret_cast<const std::uint8_t*>(kSomeTensor.data())), 16);
  meter.reply_begun(moments.reply_begun);
  meter.reply_ended(moments.reply_ended, kLink);
}

Pass only_pass(PassMeter& meter) {
  meter.discard();
  const auto passes = meter.collect();
  CHECK(passes.size() == 1);
  return passes.empty() ? Pass{} : passes.front();
}

}  // namespace

TEST(parts_add_up_whatever_the_link_is_said_to_be) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20'000; ++i) {
    Nanos moments[5] = {0};
    for (int j = 1; j < 5; ++j) moments[j] = moments[j - 1] + Nanos(random() % 1'000'000);
    Leg one =
        leg(moments[1], moments[2], moments[3], moments[4], std::uint64_t{random() % 1'000'000});
    if (random() % 2) one.computed = Nanos(random() % 2'000'000) - 1000;
    const double rates[] = {0, 1, 1e3, 1e8, 1e12};
    const Cost cost =
        divide_time(one, moments[0], {Nanos(random() % 3'000'000) - 1000, rates[random() % 5]});
    CHECK(sum(cost) == moments[4] - moments[0]);
    const bool positive = cost.head >= 0 && cost.up >= 0 && cost.compute >= 0 && cost.down >= 0;
    CHECK(positive && cost.wait >= 0);
  }
}

TEST(sending_takes_its_time_before_the_worker_can_begin) {
  // 20 bytes take 20 µs.
  const Cost cost = divide_time(leg(0, 1'000, 101'000, 102'000, 20), 0, {10'000, 1e6});
  CHECK(cost.up == 1'000 + 19'000 + 5'000);
  CHECK(cost.down == 5'000 + 1'000);
  CHECK(cost.compute == 100'000 - 24'000 - 5'000);
  CHECK(cost.wait == 0);
}

TEST(what_the_workers_end_timed_is_the_computation_and_the_rest_the_way) {
  Leg timed = leg(0, 1'000, 101'000, 102'000);
  timed.computed = 60'000;
  const Cost cost = divide_time(timed, 0, kLink);
  CHECK(cost.compute == 60'000);
  // 30'000 more than the round trip said, on the way there and back alike.
  CHECK(cost.up == 5'000 + 15'000 && cost.down == 5'000 + 15'000 + 1'000);
  timed.computed = 200'000;
  CHECK(divide_time(timed, 0, kLink).compute == 100'000);
}

TEST(a_time_from_the_workers_end_belongs_to_the_reply_behind_it) {
  PassMeter meter;
  meter.feed(1'000);
  meter.computed(1);  // of what was asked before
  meter.graph(2'000);
  meter.computed(4'000);
  const std::string made = transcript::tensor({0, {kEmbd, 1, 1, 1}, 2, 0, 1, "l_out-6"});
  meter.ask(Tensor(reinterpret_cast<const std::uint8_t*>(made.data())), 4);
  meter.reply_begun(12'000);
  meter.computed(2);  // of a later one
  meter.reply_ended(13'000, {});
  CHECK(only_pass(meter).compute == 4'000);
}

TEST(a_round_trip_longer_than_the_reply_took_leaves_no_compute) {
  const Cost cost = divide_time(leg(0, 0, 1'000, 1'000), 0, {1'000'000, 0});
  CHECK(cost.up == 1'000 && cost.compute == 0 && cost.down == 0);
}

TEST(inputs_prepared_slowly_are_a_wait) {
  PassMeter meter;
  feed(meter, {1'000, 51'000, 91'000, 91'000});
  const Pass pass = only_pass(meter);
  CHECK(pass.wait == 50'000 && pass.up == 5'000 && pass.compute == 30'000);
}

TEST(the_worker_computes_from_the_first_of_several_graphs_on) {
  PassMeter meter;
  meter.feed(1'000);
  meter.add_up(70);
  meter.graph(2'000);
  meter.add_up(90);
  meter.feed(3'000);
  meter.graph(40'000);
  meter.ask(Tensor(reinterpret_cast<const std::uint8_t*>(kSomeTensor.data())), 16);
  meter.reply_begun(92'000);
  meter.reply_ended(92'000, kLink);
  const Pass pass = only_pass(meter);
  CHECK(pass.graphs == 2 && pass.bytes_up == 160);
  CHECK(pass.wait == 1'000 && pass.compute == 80'000);
}

TEST(what_is_fetched_before_a_graph_is_of_no_pass) {
  PassMeter meter;
  meter.feed(1'000);
  meter.ask(Tensor(reinterpret_cast<const std::uint8_t*>(kSomeTensor.data())), 16);
  meter.reply_begun(3'000);
  meter.reply_ended(3'000, kLink);
  meter.graph(50'000);
  meter.settle(60'000 + 2 * PassMeter::kSettled);
  CHECK(meter.collect().empty());
}

TEST(the_time_between_passes_is_the_head_s) {
  PassMeter meter;
  feed(meter, {1'000, 2'000, 42'000, 42'000});
  feed(meter, {50'000, 51'000, 91'000, 91'000});
  meter.discard();
  const auto passes = meter.collect();
  CHECK(passes.size() == 2 && passes.back().head == 8'000);
  CHECK(sum(passes.back()) == 91'000 - 42'000);
}

TEST(a_pass_in_several_legs_is_one_with_all_their_trips) {
  Head head;
  for (int i = 0; i < 5; ++i) head.torn_stage(1);
  const auto passes = head.passes();
  CHECK(passes.size() == 5);
  for (const Pass& pass : passes) CHECK(pass.trips == 4 && pass.graphs == 3 && pass.batch == 1);
  for (std::size_t i = 1; i < passes.size(); ++i) {
    CHECK(sum(passes[i]) == passes[i].last_reply - passes[i - 1].last_reply);
  }
}

TEST(what_the_head_computes_between_two_legs_is_the_head_s) {
  Head head;
  head.torn_stage(1);
  head.state("embd", 1);
  head.graph();
  head.fetch("norm-2", kEmbd, 1);
  head.now += 1'000'000;
  head.state("ffn_out-2", 1);
  head.graph();
  head.fetch("norm-4", kEmbd, 1);
  const Pass pass = head.passes().back();
  CHECK(pass.trips == 2 && pass.head >= 1'000'000 && pass.down < 100 && pass.compute < 100);
}

TEST(a_head_that_computes_for_long_between_two_legs_ends_no_pass) {
  Head head;
  head.torn_stage(1);
  head.torn_stage(1);
  head.state("embd", 1);
  head.graph();
  head.fetch("norm-2", kEmbd, 1);
  head.meter.settle(head.now + 2 * PassMeter::kSettled);
  CHECK(head.meter.collect().size() == 2);
  head.meter.settle(head.now + 2 * PassMeter::kAbandoned);
  CHECK(head.meter.collect().size() == 1);
}

TEST(a_prompt_s_remainder_is_no_generated_pass) {
  Head head;
  head.last_stage(512, 0);
  head.last_stage(8, 1);
  for (int i = 0; i < 3; ++i) head.last_stage(1, 1);
  const auto passes = head.passes();
  CHECK(passes.size() == 5);
  CHECK(passes[0].batch == 512 && !passes[0].generated);
  CHECK(passes[1].batch == 8 && !passes[1].generated && passes[1].rows == 1U);
  CHECK(passes[2].generated && passes[3].generated && passes[4].generated);
  CHECK(head.meter.totals().rows == 4U);
  CHECK(head.meter.totals().generated.tokens == 3 && head.meter.totals().generated.trips == 3);
}

TEST(slots_share_a_pass_and_its_trips) {
  for (const std::uint32_t slots : {4U, 16U, 40U}) {
    Head head;
    head.last_stage(6 * slots, slots);
    for (int i = 0; i < 10; ++i) head.last_stage(slots, slots);
    head.passes();
    const dllm::Generated& made = head.meter.totals().generated;
    CHECK(made.passes == 10 && made.trips == 10 && made.tokens == 10 * slots);
    CHECK(head.meter.totals().rows == 11 * slots);
  }
}

TEST(a_batch_that_grows_with_speculation_is_generated) {
  Head head;
  head.last_stage(7, 1);
  for (const std::uint32_t tokens : {1U, 4U, 2U, 9U, 1U}) head.last_stage(tokens, tokens);
  const auto passes = head.passes();
  CHECK(passes.size() == 6);
  for (std::size_t i = 1; i < passes.size(); ++i) CHECK(passes[i].generated);
}

TEST(a_slot_s_prompt_beside_another_s_token_is_no_generated_pass) {
  Head head;
  head.last_stage(1, 1);
  head.last_stage(101, 2);
  head.last_stage(2, 2);
  const auto passes = head.passes();
  CHECK(passes.size() == 3 && !passes[1].generated && passes[2].generated);
  CHECK(head.meter.totals().rows == 5U);
}

TEST(two_contexts_on_one_worker_take_turns) {
  Head head;
  for (int i = 0; i < 3; ++i) {
    head.copy = 0;
    head.last_stage(4, 4);
    head.copy = 2;
    head.last_stage(1, 1);
  }
  CHECK(head.passes().size() == 6);
}

TEST(a_tensor_set_part_by_part_begins_no_pass) {
  Head head;
  for (int i = 0; i < 2; ++i) {
    head.state("embd", 1);
    for (std::uint64_t part = 0; part < 3; ++part) {
      head.set("ffn_up_exps", 1, {kEmbd, 8, 4, 1}, part * 100, 100);
    }
    head.graph();
    head.fetch("l_out-6", kEmbd, 1);
  }
  CHECK(head.passes().size() == 2);
}

TEST(rows_asked_for_count_where_the_logits_are_made_elsewhere) {
  Head head;
  head.state("l_out-6", 7);
  head.ids(1);
  head.graph();
  head.fetch("result_norm", kEmbd, 1);
  const auto passes = head.passes();
  CHECK(passes.size() == 1 && passes[0].rows == 1U && !passes[0].generated);
}

TEST(a_stage_without_the_last_layer_knows_no_rows) {
  Head head;
  head.torn_stage(7);
  head.torn_stage(1);
  const auto passes = head.passes();
  CHECK(passes.size() == 2 && !passes[1].rows && !passes[0].generated && passes[1].generated);
  CHECK(!head.meter.totals().rows);
}

TEST(a_head_that_is_held_up_between_two_fetches_ends_no_pass) {
  Head head;
  const auto compute = [&head] {
    head.state("embd", 1);
    head.graph();
    head.fetch("norm-6", kEmbd, 1);
  };
  compute();
  head.fetch("ffn_inp-6", kEmbd, 1);
  compute();
  head.meter.settle(head.now + 2 * PassMeter::kSettled);
  head.fetch("ffn_inp-6", kEmbd, 1);
  const auto passes = head.passes();
  CHECK(passes.size() == 2 && passes[1].trips == 2);
}

TEST(a_first_pass_is_given_time_for_another_leg) {
  Head head;
  head.state("embd", 2);
  head.graph();
  head.fetch("norm-2", kEmbd, 2);
  head.meter.settle(head.now + 2 * PassMeter::kSettled);
  head.state("ffn_out-2", 2);
  head.graph();
  head.fetch("l_out-6", kEmbd, 2);
  head.meter.forget();
  head.state("embd", 1);
  head.graph();
  head.fetch("norm-2", kEmbd, 1);
  head.meter.settle(head.now + 2 * PassMeter::kSettled);
  CHECK(head.meter.collect().empty());
}

TEST(a_pass_to_warm_up_is_none) {
  Head head;
  head.last_stage(2, 2);
  head.meter.forget();
  CHECK(head.passes().empty());
  CHECK(head.meter.totals().rows == 0U && head.meter.totals().passes == 0);
}

RUN_TESTS()
