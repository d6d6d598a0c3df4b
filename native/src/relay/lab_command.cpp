#include "lab_command.h"

#include <cstdlib>
#include <regex>
#include <string>

namespace dllm {

namespace {

// Beyond these a mistake is more likely than a wish.
constexpr double kLatencyMaxMs = 60'000;
constexpr double kRateMaxMBs = 1e6;
constexpr double kSeedMax = 1e15;

// The grammar is written without spaces; they are allowed between any two tokens.
std::regex spaced(const std::string& tokens) {
  return std::regex(std::regex_replace(tokens, std::regex(" "), R"(\s*)"));
}

const std::string kMember =
    R"re("(latency_ms|jitter_ms|rate_mb_s|seed)" : ([0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?))re";
const std::string kMembers = "(?:" + kMember + "(?: , " + kMember + ")*)?";

void apply(LabSettings& lab, const std::string& name, double value) {
  if (name == "latency_ms") lab.latency_ms = value;
  if (name == "jitter_ms") lab.jitter_ms = value;
  if (name == "rate_mb_s") lab.rate_mb_s = value;
  if (name == "seed") lab.seed = static_cast<std::uint64_t>(std::min(value, kSeedMax));
}

}  // namespace

std::optional<LabSettings> parse_lab_command(const std::string& line) {
  static const std::regex command = spaced(R"( \{ "lab" : (?:null|\{ )" + kMembers + R"( \}) \} )");
  static const std::regex member = spaced(kMember);
  if (!std::regex_match(line, command)) return std::nullopt;
  LabSettings lab;
  for (std::sregex_iterator found(line.begin(), line.end(), member), end; found != end; ++found) {
    // Not from_chars: libc++ has had it for floats only of late.
    apply(lab, (*found)[1], std::strtod((*found)[2].str().c_str(), nullptr));
  }
  const bool sane = lab.latency_ms <= kLatencyMaxMs && lab.jitter_ms <= kLatencyMaxMs &&
                    lab.rate_mb_s <= kRateMaxMBs;
  return sane ? std::optional(lab) : std::nullopt;
}

}  // namespace dllm
