// Tells of weights that were not where they should be.
#pragma once

#include <optional>
#include <string>

#include "home/counts.h"
#include "relay/clock.h"
#include "relay/link.h"

namespace dllm::pair {

// What a snapshot shows of them.
void note(const home::HomeCounts& counts, PairTally& tally);

class HomeReport {
 public:
  // A load is over when no tensor has come for so long.
  static constexpr Nanos kQuiet = 2 * kNanosPerSecond;

  // To be asked now and then: a sentence about each load of which tensors differ or are missing.
  std::optional<std::string> news(const home::HomeCounts& counts, Nanos now);

 private:
  home::HomeCounts told_;    // up to there
  home::HomeCounts latest_;  // seen
  Nanos changed_ = 0;
};

}  // namespace dllm::pair
