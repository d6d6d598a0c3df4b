#include "lab.h"

#include <algorithm>

#include "json.h"

namespace dllm {

namespace {

constexpr double kNanosPerByteAt1MBs = 1e3;

Nanos nanos_of(double milliseconds) {
  return static_cast<Nanos>(milliseconds * double(kNanosPerMilli));
}

}  // namespace

void Schedule::apply(const LabSettings& settings) {
  settings_ = settings;
  random_.seed(settings.seed * 2 + stream_);
  normal_.reset();
  jitter_ = 0;
  line_free_ = 0;
  last_arrival_ = 0;
}

Nanos Schedule::arrival(Nanos now, std::size_t bytes, bool idle) {
  if (idle) jitter_ = nanos_of(normal_(random_) * settings_.jitter_ms);
  line_free_ = std::max(now, line_free_);
  if (settings_.rate_mb_s > 0) {
    line_free_ += static_cast<Nanos>(double(bytes) * kNanosPerByteAt1MBs / settings_.rate_mb_s);
  }
  const Nanos delay = std::max<Nanos>(nanos_of(settings_.latency_ms) + jitter_, 0);
  last_arrival_ = std::max(last_arrival_, line_free_ + delay);
  return last_arrival_;
}

namespace {

// Beyond these a mistake is more likely than a wish.
constexpr double kLatencyMaxMs = 60'000;
constexpr double kRateMaxMBs = 1e6;
constexpr double kSeedMax = 1e15;

// Whether there is such a member.
bool apply(LabSettings& lab, const std::string& name, double value) {
  if (name == "latency_ms")
    lab.latency_ms = value;
  else if (name == "jitter_ms")
    lab.jitter_ms = value;
  else if (name == "rate_mb_s")
    lab.rate_mb_s = value;
  else if (name == "seed")
    lab.seed = static_cast<std::uint64_t>(std::min(value, kSeedMax));
  else
    return false;
  return value >= 0;
}

LabSettings lab_in(const json::Value& command) {
  const json::Value::Members& members = command.members("a command");
  if (members.size() != 1 || members[0].first != "lab") throw json::TypeError("no 'lab'");
  LabSettings lab;
  if (members[0].second.is_null()) return lab;
  for (const auto& [name, value] : members[0].second.members("lab")) {
    if (!apply(lab, name, value.number(name))) throw json::TypeError("no such wish");
  }
  return lab;
}

}  // namespace

std::optional<LabSettings> parse_lab_command(const std::string& line) {
  try {
    const LabSettings lab = lab_in(json::parse(line));
    const bool sane = lab.latency_ms <= kLatencyMaxMs && lab.jitter_ms <= kLatencyMaxMs &&
                      lab.rate_mb_s <= kRateMaxMBs;
    return sane ? std::optional(lab) : std::nullopt;
  } catch (const json::ParseError&) {
  } catch (const json::TypeError&) {
  }
  return std::nullopt;
}

}  // namespace dllm
