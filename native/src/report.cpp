#include "report.h"

#include <unistd.h>

#include <cstdio>

#include "json.h"

namespace dllm {

namespace {

constexpr int kFormat = 1;  // of these lines; grows when a member changes its meaning
constexpr std::uint64_t kNanosPerMicro = 1000;

std::string decimal(double value) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%.3f", value);
  return digits;
}

std::string boolean(bool value) {
  return value ? "true" : "false";
}

std::string per_token(std::uint64_t sum, const Generated& generated) {
  if (generated.tokens == 0) return "null";
  return decimal(static_cast<double>(sum) / static_cast<double>(generated.tokens));
}

// The buckets that are not empty: [[up to µs, count], …].
std::string buckets(const Histogram& histogram) {
  std::string out = "[";
  for (unsigned i = 0; i < Histogram::kBuckets; ++i) {
    if (histogram.at(i) == 0) continue;
    if (out.size() > 1) out += ',';
    const double micros = static_cast<double>(Histogram::upper_edge(i)) / double(kNanosPerMicro);
    out += '[';
    out += decimal(micros);
    out += ',';
    out += std::to_string(histogram.at(i));
    out += ']';
  }
  return out + "]";
}

std::string command_object(const CommandTally& tally) {
  json::Object object;
  object.number("count", tally.count)
      .number("bytes_up", tally.bytes_up)
      .number("bytes_down", tally.bytes_down)
      .number("answered", tally.answered)
      .number("errors", tally.errors);
  if (tally.round_trip.count() == 0) return object.str();
  return object.number("p50_us", tally.round_trip.percentile(0.5) / kNanosPerMicro)
      .number("p99_us", tally.round_trip.percentile(0.99) / kNanosPerMicro)
      .number("max_us", tally.round_trip.max() / kNanosPerMicro)
      .raw("histogram_us", buckets(tally.round_trip))
      .str();
}

std::string commands_object(const Tally& tally) {
  json::Object object;
  for (std::uint8_t id = 0; id < kCommands; ++id) {
    const CommandTally& command = tally.commands[id];
    if (command.count || command.errors) object.raw(command_name(id), command_object(command));
  }
  return object.str();
}

std::string generated_object(const Generated& sums) {
  return json::Object()
      .number("passes", sums.passes)
      .number("tokens", sums.tokens)
      .number("round_trips", sums.trips)
      .number("bytes_up", sums.bytes_up)
      .number("bytes_down", sums.bytes_down)
      .number("head_ns", sums.head)
      .number("up_ns", sums.up)
      .number("compute_ns", sums.compute)
      .number("down_ns", sums.down)
      .number("wait_ns", sums.wait)
      .raw("round_trips_per_token", per_token(sums.trips, sums))
      .raw("bytes_up_per_token", per_token(sums.bytes_up, sums))
      .raw("bytes_down_per_token", per_token(sums.bytes_down, sums))
      .str();
}

std::string lab_object(const LabSettings& lab) {
  if (!lab.on()) return "null";
  return json::Object()
      .raw("latency_ms", decimal(lab.latency_ms))
      .raw("jitter_ms", decimal(lab.jitter_ms))
      .raw("rate_mb_s", decimal(lab.rate_mb_s))
      .number("seed", lab.seed)
      .str();
}

std::string text_or_null(const std::string& text) {
  return text.empty() ? "null" : json::quote(text);
}

std::string pass_object(const Pass& pass) {
  return json::Object()
      .number("tokens", pass.tokens)
      .raw("generated", boolean(pass.generated))
      .number("round_trips", pass.trips)
      .number("bytes_up", pass.bytes_up)
      .number("bytes_down", pass.bytes_down)
      .number("first_input_ns", pass.first_input)
      .number("graph_sent_ns", pass.graph_sent)
      .number("asked_ns", pass.asked)
      .number("first_reply_ns", pass.first_reply)
      .number("last_reply_ns", pass.last_reply)
      .number("head_ns", pass.head)
      .number("up_ns", pass.up)
      .number("compute_ns", pass.compute)
      .number("down_ns", pass.down)
      .number("wait_ns", pass.wait)
      .str();
}

}  // namespace

std::string hello_line(const std::string& name, const char* version) {
  return json::Object()
      .text("type", "hello")
      .number("format", kFormat)
      .text("worker", name)
      .text("version", version)
      .number("pid", ::getpid())
      .line();
}

std::string snapshot_line(const Link& link, const Tally& tally,
                          const std::vector<std::string>& waiting, Nanos now) {
  return json::Object()
      .text("type", "snapshot")
      .text("worker", link.name)
      .number("at_ns", now)
      .text("mode", tally.plain ? "plain" : "metered")
      .raw("protocol", text_or_null(tally.protocol))
      .raw("connected", boolean(tally.connected))
      .raw("waiting", json::array(waiting))
      .number("connections", tally.connections)
      .number("plain_connections", tally.plain_connections)
      .raw("plain_reason", text_or_null(tally.plain_reason))
      .raw("guard", !link.guarding      ? "\"off\""
                    : tally.ops_guarded ? "\"full\""
                                        : "\"sizes\"")
      .number("refused", tally.refused)
      .raw("refused_reason", text_or_null(tally.refused_reason))
      .raw("answers", boolean(link.answering))
      .number("bytes_up", tally.bytes_up)
      .number("bytes_down", tally.bytes_down)
      .number("rtt_us", tally.estimate.rtt / Nanos(kNanosPerMicro))
      .number("rate_bytes_per_s", static_cast<std::uint64_t>(tally.estimate.bytes_per_s))
      .raw("lab", lab_object(link.lab.get()))
      .number("passes", tally.passes)
      .number("passes_dropped", tally.passes_dropped)
      .raw("generated", generated_object(tally.generated))
      .raw("commands", commands_object(tally))
      .line();
}

std::string passes_line(const std::string& name, const Pass* passes, std::size_t count) {
  std::string list = "[";
  for (std::size_t i = 0; i < count; ++i) {
    if (i) list += ',';
    list += pass_object(passes[i]);
  }
  return json::Object()
      .text("type", "passes")
      .text("worker", name)
      .raw("passes", list.append("]"))
      .line();
}

}  // namespace dllm
