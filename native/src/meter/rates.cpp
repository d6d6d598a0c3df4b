#include "rates.h"

#include <algorithm>

namespace dllm {

double BestRate::bytes_per_s() const {
  return *std::ranges::max_element(latest_);
}

void BulkRate::sent(std::uint64_t bytes, Nanos now) {
  if (bytes_ == 0) begun_ = now;
  bytes_ += bytes;
}

void BulkRate::arrived(Nanos now, bool slowed) {
  if (bytes_ >= kBulkBytes && !computes_ && !slowed && now > begun_) {
    rate_.add(double(bytes_) * double(kNanosPerSecond) / double(now - begun_));
  }
  bytes_ = 0;
  computes_ = false;
}

}  // namespace dllm
