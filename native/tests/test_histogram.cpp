#include "check.h"
#include "meter/rates.h"

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
