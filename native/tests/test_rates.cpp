#include "check.h"
#include "relay/kernel.h"
#include "relay/rates.h"

using dllm::BestRate;
using dllm::BulkRate;
using dllm::kNanosPerMilli;

namespace {

constexpr std::uint64_t kMegabyte = 1'000'000;

// 2 MB that take so many milliseconds.
void carry(BulkRate& rate, int took_ms, bool computes = false, bool slowed = false) {
  rate.sent(kMegabyte, 1000);
  rate.sent(kMegabyte, 1000 + took_ms * kNanosPerMilli / 2);
  if (computes) rate.computes();
  rate.arrived(1000 + took_ms * kNanosPerMilli, slowed);
}

}  // namespace

TEST(a_bulk_and_the_reply_behind_it_tell_the_rate) {
  BulkRate rate;
  CHECK(rate.bytes_per_s() == 0);
  carry(rate, 20);
  CHECK(rate.bytes_per_s() == 100e6);
}

TEST(little_computing_and_the_lab_tell_nothing) {
  BulkRate rate;
  rate.sent(BulkRate::kBulkBytes - 1, 0);
  rate.arrived(1000, false);
  carry(rate, 20, true);
  carry(rate, 20, false, true);
  CHECK(rate.bytes_per_s() == 0);
  carry(rate, 20);
  CHECK(rate.bytes_per_s() == 100e6);
}

TEST(a_way_that_gets_slower_is_believed) {
  BulkRate rate;
  carry(rate, 20);
  carry(rate, 200);
  CHECK(rate.bytes_per_s() == 100e6);
  for (std::size_t i = 0; i < BestRate::kLatest; ++i) carry(rate, 200);
  CHECK(rate.bytes_per_s() == 10e6);
}

TEST(what_is_under_way_stands_still_until_some_of_it_was_taken) {
  dllm::Standstill standstill;
  CHECK(standstill.lasts(0, 0, 10) == 0);
  CHECK(standstill.lasts(100, 100, 20) == 10);
  // More is sent, and nothing taken.
  CHECK(standstill.lasts(300, 300, 50) == 40);
  CHECK(standstill.lasts(300, 299, 60) == 0);
  CHECK(standstill.lasts(400, 399, 90) == 30);
  CHECK(standstill.lasts(400, 0, 100) == 0);
  CHECK(standstill.lasts(400, 0, 200) == 0);
}

RUN_TESTS()
