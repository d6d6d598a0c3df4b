// Tells of weights that were not where they should be.
#pragma once

#include <optional>
#include <string>

#include "clock.h"
#include "link.h"
#include "weights/chunk_reader.h"

namespace dllm::link {

// What a snapshot shows of them.
void note(const weights::WeightCounts& counts, PairTally& tally);

class WeightReport {
 public:
  // A load is over when no tensor has come for so long.
  static constexpr Nanos kQuiet = 2 * kNanosPerSecond;

  // To be asked now and then: a sentence about each load of which tensors differ or are missing.
  std::optional<std::string> news(const weights::WeightCounts& counts, Nanos now);

 private:
  weights::WeightCounts told_;    // up to there
  weights::WeightCounts latest_;  // seen
  Nanos changed_ = 0;
};

}  // namespace dllm::link
