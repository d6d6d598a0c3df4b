#include "check.h"
#include "meter/rates.h"

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

using dllm::Histogram;

TEST(every_value_lies_under_its_bucket_s_edge_and_near_it) {
  for (std::uint64_t value = 0; value < 5'000'000; value = value * 9 / 8 + 1) {
    const unsigned bucket = Histogram::bucket(value);
    CHECK(value <= Histogram::upper_edge(bucket));
    CHECK(bucket == 0 || value > Histogram::upper_edge(bucket - 1));
    CHECK(Histogram::upper_edge(bucket) <= value + value / 8);
  }
  CHECK(Histogram::bucket(~std::uint64_t{0}) == Histogram::kBuckets - 1);
}

TEST(percentiles) {
  Histogram histogram;
  CHECK(histogram.percentile(0.5) == 0);
  for (std::uint64_t i = 1; i <= 1000; ++i) histogram.add(i * 1000);
  const auto near = [](std::uint64_t value, double wanted) {
    return double(value) >= wanted * 0.99 && double(value) <= wanted * 1.13;
  };
  CHECK(near(histogram.percentile(0.5), 500'000));
  CHECK(near(histogram.percentile(0.99), 990'000));
  CHECK(histogram.max() == 1'000'000);
  CHECK(histogram.percentile(1) == 1'000'000);
}

RUN_TESTS()
