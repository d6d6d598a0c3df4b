#include "report.h"

#include <unistd.h>

#include "protocol/json.h"

namespace dllm {

namespace {

constexpr int kFormat = 2;  // of these lines; grows when a member changes its meaning

std::string ratio(std::uint64_t sum, std::uint64_t count) {
  return count ? json::decimal(double(sum) / double(count)) : "null";
}

std::string number_or_null(std::optional<std::uint64_t> number) {
  return number ? std::to_string(*number) : "null";
}

// The buckets that are not empty: [[up to µs, count], …].
std::string buckets(const Histogram& histogram) {
  std::vector<std::string> pairs;
  for (unsigned i = 0; i < Histogram::kBuckets; ++i) {
    if (histogram.at(i) == 0) continue;
    const double micros = double(Histogram::upper_edge(i)) / double(kNanosPerMicro);
    pairs.push_back(json::list({json::decimal(micros), std::to_string(histogram.at(i))}));
  }
  return json::list(pairs);
}

std::string command_object(const CommandTally& tally, bool is_paired) {
  json::Object object;
  object.number("count", tally.count)
      .number("bytes_up", tally.bytes_up)
      .number("bytes_down", tally.bytes_down)
      .number("answered", tally.answered)
      .number("errors", tally.errors);
  if (is_paired) {
    object.number("wire_bytes_up", tally.wire_bytes_up)
        .number("wire_bytes_down", tally.wire_bytes_down);
  }
  if (tally.round_trip.count() == 0) return object.str();
  return object.number("p50_us", tally.round_trip.percentile(0.5) / std::uint64_t{kNanosPerMicro})
      .number("p99_us", tally.round_trip.percentile(0.99) / std::uint64_t{kNanosPerMicro})
      .number("max_us", tally.round_trip.max() / std::uint64_t{kNanosPerMicro})
      .raw("histogram_us", buckets(tally.round_trip))
      .str();
}

std::string commands_object(const Tally& tally) {
  const bool is_paired = tally.pair.overhead_bytes_up.has_value();
  json::Object object;
  for (std::uint8_t id = 0; id < kCommands; ++id) {
    const CommandTally& command = tally.commands[id];
    const bool crossed = command.wire_bytes_up || command.wire_bytes_down;
    if (!command.count && !command.errors && !crossed) continue;
    object.raw(command_name(id), command_object(command, is_paired));
  }
  return object.str();
}

void add_cost(json::Object& object, const Cost& cost) {
  object.number("batch", cost.batch)
      .number("tokens", cost.tokens)
      .number("round_trips", cost.trips)
      .number("bytes_up", cost.bytes_up)
      .number("bytes_down", cost.bytes_down)
      .number("head_ns", cost.head)
      .number("up_ns", cost.up)
      .number("compute_ns", cost.compute)
      .number("down_ns", cost.down)
      .number("wait_ns", cost.wait);
}

std::string generated_object(const Generated& sums) {
  json::Object object;
  add_cost(object, sums);
  return object.number("passes", sums.passes)
      .raw("round_trips_per_pass", ratio(sums.trips, sums.passes))
      .raw("round_trips_per_token", ratio(sums.trips, sums.tokens))
      .raw("tokens_per_pass", ratio(sums.tokens, sums.passes))
      .raw("bytes_up_per_token", ratio(sums.bytes_up, sums.tokens))
      .raw("bytes_down_per_token", ratio(sums.bytes_down, sums.tokens))
      .str();
}

std::string pass_object(const Pass& pass) {
  json::Object object;
  add_cost(object, pass);
  return object.flag("generated", pass.generated)
      .raw("rows", number_or_null(pass.rows))
      .number("graphs", pass.graphs)
      .number("first_input_ns", pass.first_input)
      .number("last_reply_ns", pass.last_reply)
      .str();
}

std::string lab_object(const LabSettings& lab) {
  if (!lab.on()) return "null";
  return json::Object()
      .raw("latency_ms", json::decimal(lab.latency_ms))
      .raw("jitter_ms", json::decimal(lab.jitter_ms))
      .raw("rate_mb_s", json::decimal(lab.rate_mb_s))
      .number("seed", lab.seed)
      .str();
}

std::string millis_or_null(Nanos nanos) {
  return nanos == 0 ? "null" : std::to_string(nanos / kNanosPerMilli);
}

std::string text_or_null(const std::string& text) {
  return text.empty() ? "null" : json::quote(text);
}

std::string pair_object(const PairTally& pair) {
  if (!pair.is_on) return "null";
  return json::Object()
      .flag("up", pair.is_up)
      .flag("sealed", pair.is_sealed)
      .raw("reason", text_or_null(pair.reason))
      .raw("place", text_or_null(pair.place))
      .raw("detour", text_or_null(pair.detour))
      .raw("unheard_ms", millis_or_null(pair.unheard))
      .number("wire_bytes_up", pair.wire_bytes_up)
      .number("wire_bytes_down", pair.wire_bytes_down)
      .raw("overhead_bytes_up", number_or_null(pair.overhead_bytes_up))
      .raw("overhead_bytes_down", number_or_null(pair.overhead_bytes_down))
      .number("weight_bytes_home", pair.weight_bytes_home)
      .number("weight_bytes_sent", pair.weight_bytes_sent)
      .number("tensors", pair.tensors)
      .number("tensors_differ", pair.tensors_differ)
      .number("tensors_missing", pair.tensors_missing)
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

std::string snapshot_line(const Link& link, const News& news, Nanos now) {
  const Tally& tally = news.tally;
  // "checked": sizes, places and shapes of tensors; never the numbers in them. "sizes": where the
  // ops are not known, not the shapes. A connection that is passed on unread is not judged.
  const char* guard = !link.guarding || tally.passthrough ? "off"
                      : tally.ops_guarded                 ? "checked"
                                                          : "sizes";
  const std::string& reason = tally.silence.empty() ? tally.passthrough_reason : tally.silence;
  return json::Object()
      .text("type", "snapshot")
      .text("worker", link.name)
      .number("at_ns", now)
      .text("mode", tally.passthrough ? "plain" : "metered")
      .raw("protocol", text_or_null(tally.protocol))
      .flag("connected", tally.connected)
      .raw("unanswered_ms", millis_or_null(tally.unanswered))
      .raw("waiting", json::array(tally.waiting))
      .number("connections", tally.connections)
      .number("plain_connections", tally.passthrough_connections)
      .raw("plain_reason", text_or_null(reason))
      .text("guard", guard)
      .number("refused", tally.refused)
      .raw("refused_reason", text_or_null(tally.refused_reason))
      .flag("answers", link.answering)
      .number("bytes_up", tally.bytes_up)
      .number("bytes_down", tally.bytes_down)
      .number("rtt_us", tally.estimate.rtt / kNanosPerMicro)
      .number("rate_bytes_per_s", static_cast<std::uint64_t>(tally.estimate.bytes_per_s))
      .raw("pair", pair_object(tally.pair))
      .raw("lab", lab_object(link.lab.get()))
      .number("passes", news.totals.passes)
      .raw("rows", number_or_null(news.totals.rows))
      .number("passes_dropped", news.totals.dropped)
      .raw("generated", generated_object(news.totals.generated))
      .raw("commands", commands_object(tally))
      .line();
}

std::string passes_line(const std::string& name, std::span<const Pass> passes) {
  std::vector<std::string> objects;
  for (const Pass& pass : passes) objects.push_back(pass_object(pass));
  return json::Object()
      .text("type", "passes")
      .text("worker", name)
      .raw("passes", json::list(objects))
      .line();
}

}  // namespace dllm
