#include "lab_command.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>

namespace dllm {

namespace {

// Beyond these a mistake is more likely than a wish.
constexpr double kLatencyMaxMs = 60'000;
constexpr double kRateMaxMBs = 1e6;
constexpr const char* kNumberCharacters = "+-.0123456789Ee";

// Reads the few forms a command can have.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  bool take(std::string_view expected) {
    skip_spaces();
    if (!text_.starts_with(expected)) return false;
    text_.remove_prefix(expected.size());
    return true;
  }
  std::optional<double> number() {
    skip_spaces();
    const std::string digits(text_.substr(0, text_.find_first_not_of(kNumberCharacters)));
    char* stop = nullptr;
    // Not from_chars: libc++ has had it for floats only of late.
    const double value = std::strtod(digits.c_str(), &stop);
    if (stop == digits.c_str() || !std::isfinite(value) || value < 0) return std::nullopt;
    text_.remove_prefix(static_cast<std::size_t>(stop - digits.c_str()));
    return value;
  }
  bool at_end() {
    skip_spaces();
    return text_.empty();
  }

 private:
  void skip_spaces() {
    text_.remove_prefix(std::min(text_.find_first_not_of(" \t\r\n"), text_.size()));
  }
  std::string_view text_;
};

bool read_member(Reader& reader, LabSettings& lab) {
  double seed = 1;
  double* target = reader.take("\"latency_ms\"")  ? &lab.latency_ms
                   : reader.take("\"jitter_ms\"") ? &lab.jitter_ms
                   : reader.take("\"rate_mb_s\"") ? &lab.rate_mb_s
                   : reader.take("\"seed\"")      ? &seed
                                                  : nullptr;
  if (!target || !reader.take(":")) return false;
  const std::optional<double> value = reader.number();
  if (!value) return false;
  *target = *value;
  if (target == &seed) lab.seed = static_cast<std::uint64_t>(std::min(seed, 1e15));
  return true;
}

bool read_members(Reader& reader, LabSettings& lab) {
  if (reader.take("}")) return true;
  do {
    if (!read_member(reader, lab)) return false;
  } while (reader.take(","));
  return reader.take("}");
}

}  // namespace

std::optional<LabSettings> parse_lab_command(std::string_view line) {
  Reader reader(line);
  LabSettings lab;
  if (!reader.take("{") || !reader.take("\"lab\"") || !reader.take(":")) return std::nullopt;
  const bool read = reader.take("null") || (reader.take("{") && read_members(reader, lab));
  if (!read || !reader.take("}") || !reader.at_end()) return std::nullopt;
  const bool sane = lab.latency_ms <= kLatencyMaxMs && lab.jitter_ms <= kLatencyMaxMs &&
                    lab.rate_mb_s <= kRateMaxMBs;
  return sane ? std::optional(lab) : std::nullopt;
}

}  // namespace dllm
