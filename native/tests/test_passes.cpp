#include <random>
#include <vector>

#include "check.h"
#include "relay/passes.h"

using dllm::divide_time;
using dllm::LinkEstimate;
using dllm::Nanos;
using dllm::Pass;
using dllm::PassMeter;
using dllm::Tensor;

namespace {

constexpr LinkEstimate kLink{10'000, 0};  // one way takes 5'000
const std::vector<std::uint8_t> kTensorBytes(dllm::kTensorBytes);

Nanos sum(const Pass& pass) {
  return pass.head + pass.up + pass.compute + pass.down + pass.wait;
}

Pass at(Nanos first_input, Nanos graph_sent, Nanos first_reply, Nanos last_reply) {
  Pass pass;
  pass.first_input = first_input;
  pass.graph_sent = graph_sent;
  pass.first_reply = first_reply;
  pass.last_reply = last_reply;
  return pass;
}

// The moments of one pass as a connection brings them.
struct Moments {
  Nanos input, graph, asked, reply_begun, reply_ended;
};

void feed(PassMeter& meter, const Moments& moments) {
  meter.open(moments.input);
  meter.graph(moments.graph);
  meter.ask(moments.asked, Tensor(kTensorBytes.data()));
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
    Pass pass = at(moments[1], moments[2], moments[3], moments[4]);
    pass.bytes_fed = random() % 1'000'000;
    const double rates[] = {0, 1, 1e3, 1e8, 1e12};
    divide_time(pass, moments[0], {Nanos(random() % 3'000'000) - 1000, rates[random() % 5]});
    CHECK(sum(pass) == moments[4] - moments[0]);
    const bool positive = pass.head >= 0 && pass.up >= 0 && pass.compute >= 0 && pass.down >= 0;
    CHECK(positive && pass.wait >= 0);
  }
}

TEST(sending_takes_its_time_before_the_worker_can_begin) {
  Pass pass = at(0, 1'000, 101'000, 102'000);
  pass.bytes_fed = 20;
  divide_time(pass, 0, {10'000, 1e6});  // 20 bytes take 20 µs
  CHECK(pass.up == 1'000 + 19'000 + 5'000);
  CHECK(pass.down == 5'000 + 1'000);
  CHECK(pass.compute == 100'000 - 24'000 - 5'000);
  CHECK(pass.wait == 0);
}

TEST(a_round_trip_longer_than_the_reply_took_leaves_no_compute) {
  Pass pass = at(0, 0, 1'000, 1'000);
  divide_time(pass, 0, {1'000'000, 0});
  CHECK(pass.up == 1'000 && pass.compute == 0 && pass.down == 0);
}

TEST(a_late_question_does_not_make_compute_a_wait) {
  for (const Nanos asked : {1'000, 30'000, 80'000}) {
    PassMeter meter;
    feed(meter, {400, 1'000, asked, 91'000, 92'000});
    const Pass pass = only_pass(meter);
    CHECK(pass.wait == 600);
    CHECK(pass.up == 5'000 && pass.compute == 80'000 && pass.down == 5'000 + 1'000);
    CHECK(sum(pass) == 92'000 - 400);
  }
}

TEST(inputs_prepared_slowly_are_a_wait) {
  PassMeter meter;
  feed(meter, {1'000, 51'000, 51'000, 91'000, 91'000});
  const Pass pass = only_pass(meter);
  CHECK(pass.wait == 50'000 && pass.up == 5'000 && pass.compute == 30'000);
}

TEST(the_worker_computes_from_the_first_of_several_graphs_on) {
  PassMeter meter;
  meter.open(1'000);
  meter.add_up(70);
  meter.graph(2'000);
  meter.add_up(90);
  feed(meter, {3'000, 40'000, 40'000, 92'000, 92'000});
  const Pass pass = only_pass(meter);
  CHECK(pass.graph_sent == 2'000 && pass.bytes_fed == 70 && pass.bytes_up == 160);
  CHECK(pass.wait == 1'000 && pass.compute == 80'000);
}

TEST(what_is_fetched_before_a_graph_is_of_no_pass) {
  PassMeter meter;
  meter.open(1'000);
  meter.ask(2'000, Tensor(kTensorBytes.data()));
  meter.reply_begun(3'000);
  meter.reply_ended(3'000, kLink);
  meter.graph(50'000);
  meter.settle(60'000 + 2 * PassMeter::kSettled);
  CHECK(meter.collect().empty());
}

TEST(the_time_between_passes_is_the_head_s) {
  PassMeter meter;
  feed(meter, {1'000, 2'000, 2'000, 42'000, 42'000});
  feed(meter, {50'000, 51'000, 51'000, 91'000, 91'000});
  meter.discard();
  const auto passes = meter.collect();
  CHECK(passes.size() == 2 && passes.back().head == 8'000);
  CHECK(sum(passes.back()) == 91'000 - 42'000);
}

RUN_TESTS()
