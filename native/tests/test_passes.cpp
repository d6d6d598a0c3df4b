#include <random>

#include "check.h"
#include "passes.h"

using dllm::divide_time;
using dllm::LinkEstimate;
using dllm::Nanos;
using dllm::Pass;

namespace {

Nanos sum(const Pass& pass) {
  return pass.head + pass.up + pass.compute + pass.down + pass.wait;
}

Pass at(Nanos first_input, Nanos asked, Nanos first_reply, Nanos last_reply) {
  Pass pass;
  pass.first_input = first_input;
  pass.asked = asked;
  pass.first_reply = first_reply;
  pass.last_reply = last_reply;
  return pass;
}

}  // namespace

TEST(parts_add_up_whatever_the_link_is_said_to_be) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20'000; ++i) {
    Nanos moments[5] = {0};
    for (int j = 1; j < 5; ++j) moments[j] = moments[j - 1] + Nanos(random() % 1'000'000);
    Pass pass = at(moments[1], moments[2], moments[3], moments[4]);
    pass.bytes_up = random() % 1'000'000;
    const double rates[] = {0, 1, 1e3, 1e8, 1e12};
    divide_time(pass, moments[0], {Nanos(random() % 3'000'000) - 1000, rates[random() % 5]});
    CHECK(sum(pass) == moments[4] - moments[0]);
    const bool positive = pass.head >= 0 && pass.up >= 0 && pass.compute >= 0 && pass.down >= 0;
    CHECK(positive && pass.wait >= 0);
  }
}

TEST(sending_takes_its_time_before_the_worker_can_begin) {
  Pass pass = at(0, 1'000, 101'000, 102'000);
  pass.bytes_up = 20;
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

RUN_TESTS()
