#include "weight_report.h"

#include <utility>

namespace dllm::link {

void note(const weights::WeightCounts& counts, PairTally& tally) {
  tally.weight_bytes_home = counts.home_bytes;
  tally.weight_bytes_sent = counts.needed_bytes;
  tally.tensors = counts.tensors;
  tally.tensors_differ = counts.tensors_differ;
  tally.tensors_missing = counts.tensors_missing;
}

std::optional<std::string> WeightReport::news(const weights::WeightCounts& counts, Nanos now) {
  if (std::exchange(latest_, counts) != counts) changed_ = now;
  if (counts == told_ || now - changed_ < kQuiet) return std::nullopt;
  const weights::WeightCounts before = std::exchange(told_, counts);
  const std::uint64_t differ = counts.tensors_differ - before.tensors_differ;
  const std::uint64_t missing = counts.tensors_missing - before.tensors_missing;
  const std::string of = " of " + std::to_string(counts.tensors - before.tensors) + " tensors ";
  if (differ > 0) return std::to_string(differ) + of + "differ: another file?";
  if (missing > 0) return std::to_string(missing) + of + "are in no file of the worker's machine";
  return std::nullopt;
}

}  // namespace dllm::link
