#include "stats.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "json.h"
#include "link/sockets.h"
#include "netem/lab.h"

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
      .number("reconnects", pair.reconnects)
      .number("pause_ms", pair.pause / kNanosPerMilli)
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

namespace {

const int kNow = MSG_DONTWAIT | kNoSignal;

// The lab's delay is part of the way to the worker.
LinkEstimate with_lab(LinkEstimate estimate, const LabSettings& lab) {
  constexpr double kBytesPerMegabyte = 1e6;
  estimate.rtt += static_cast<Nanos>(2 * lab.latency_ms * double(kNanosPerMilli));
  if (lab.rate_mb_s > 0) estimate.bytes_per_s = lab.rate_mb_s * kBytesPerMegabyte;
  return estimate;
}

}  // namespace

Stats::Stats(Link& link, const std::string& path, const char* version)
    : link_(link), path_(path), hello_(hello_line(link.name, version)) {
  if (!path_.empty()) listener_ = listen_unix(path_);
}

void Stats::run(int stop) {
  for (bool ends = false; !ends;) {
    try {
      ends = !attend(stop);
      if (monotonic_now() >= next_tick_) {
        keep_listening();
        tick();
      }
      std::erase_if(readers_, [](const Reader& reader) { return reader.gone; });
    } catch (const std::exception& error) {
      // Readers come again; the link must not end for them.
      log(Level::kError, link_.name + ": " + error.what());
      readers_.clear();
    }
  }
  listener_.reset();
  remove_dead_socket(path_);
  write_log();
}

// Listens anew where our socket is gone: a session manager removes the runtime directory at the
// last logout, and the controller makes it again. What another has put there is left alone.
void Stats::keep_listening() {
  struct stat status{};
  if (path_.empty() || ::lstat(path_.c_str(), &status) == 0 || errno != ENOENT) return;
  try {
    listener_ = listen_unix(path_);
  } catch (const std::exception&) {
    // There is no directory yet.
  }
}

// Waits for a reader, a command, room in a socket, the next tick or the end, and does what is to be
// done for readers. False at the end.
bool Stats::attend(int stop) {
  std::vector<pollfd> waits{{stop, POLLIN, 0}, {listener_.get(), POLLIN, 0}};
  for (const Reader& reader : readers_) {
    const short events = reader.unread.empty() ? POLLIN : POLLIN | POLLOUT;
    waits.push_back({reader.fd.get(), events, 0});
  }
  const Nanos left = (next_tick_ - monotonic_now()) / kNanosPerMilli + 1;
  ::poll(waits.data(), static_cast<nfds_t>(waits.size()),
         static_cast<int>(std::max<Nanos>(left, 0)));
  std::size_t at = 2;
  for (Reader& reader : readers_) {
    const short happened = waits[at++].revents;
    if (happened & POLLOUT) flush(reader);
    if (happened & ~POLLOUT) listen_to(reader);
  }
  if (waits[1].revents) welcome();
  return waits[0].revents == 0;
}

void Stats::tick() {
  const Nanos now = monotonic_now();
  next_tick_ = now + kTick;
  const std::optional<News> news = gather(now);
  write_log();
  if (!news) return;
  for (std::span<const Pass> rest = news->passes; !rest.empty();) {
    const auto part = rest.first(std::min(kPassesPerLine, rest.size()));
    publish(passes_line(link_.name, part));
    rest = rest.subspan(part.size());
  }
  snapshot_ = snapshot_line(link_, *news, now);
  publish(snapshot_);
}

// None when nothing happened.
std::optional<News> Stats::gather(Nanos now) {
  const std::lock_guard lock(link_.mutex);
  look_at(link_.worker_fd, now);
  estimate_link();
  link_.passes.settle(now);
  link_.note_silence(now);
  link_.note_unanswered(now);
  std::vector<Pass> passes = link_.passes.collect();
  const bool moved = std::exchange(revision_, link_.revision) != link_.revision;
  if (!moved && passes.empty() && !snapshot_.empty()) return std::nullopt;
  return News{link_.tally, link_.passes.totals(), std::move(passes)};
}

// With the mutex held: of a Unix socket the kernel tells no rate, then bulks do.
void Stats::estimate_link() {
  if (link_.tally.pair.is_on) return estimate_pair();
  LinkEstimate estimate = measured_;
  const double best = best_.bytes_per_s();
  estimate.bytes_per_s = best > 0 ? best : link_.bulk.bytes_per_s();
  link_.tally.estimate = with_lab(estimate, link_.lab.get());
}

// Likewise of a link between relays, whose pings the lab has delayed already.
void Stats::estimate_pair() {
  const LabSettings lab = link_.lab.get();
  LinkEstimate estimate = with_lab({0, link_.bulk.bytes_per_s()}, lab);
  estimate.rtt = link_.tally.pair.rtt;
  link_.tally.estimate = estimate;
}

// With the mutex held: what the kernel knows of the connection, if there is one.
void Stats::look_at(int worker, Nanos now) {
  const std::uint64_t connection = link_.tally.connections;
  if (std::exchange(connection_, connection) != connection) {
    best_ = {};
    measured_.bytes_per_s = 0;
  }
  if (worker < 0) heard_ = {};
  if (worker < 0) return;
  const double before = measured_.bytes_per_s;
  measure(worker, measured_);
  if (measured_.bytes_per_s != before) best_.add(measured_.bytes_per_s);
  if (heard_.silence(acknowledged(worker), now) < link_.gone_after) return;
  heard_ = {};
  const std::string seconds = std::to_string(link_.gone_after / kNanosPerSecond);
  link_.tell("its machine has not been heard for " + seconds + " s; connection closed",
             Level::kError);
  ::shutdown(worker, SHUT_RDWR);
}

// Without the mutex: nobody waits for a log that takes nothing.
void Stats::write_log() {
  std::vector<std::string> lines;
  {
    const std::lock_guard lock(link_.mutex);
    lines = std::exchange(link_.told, {});
  }
  for (const std::string& line : lines) std::fputs(line.c_str(), stderr);
}

void Stats::welcome() {
  UniqueFd fd = accept_client(listener_.get());
  if (!fd || readers_.size() == kReadersMax) return;
  Reader& reader = readers_.emplace_back();
  reader.fd = std::move(fd);
  give(reader, hello_);
  give(reader, placement());
  give(reader, snapshot_);
}

// As it is at this moment; readers that come later are told anew.
std::string Stats::placement() {
  const std::lock_guard lock(link_.mutex);
  return placement_line(link_.name, link_.placement, !link_.tally.passthrough);
}

void Stats::publish(const std::string& line) {
  for (Reader& reader : readers_) give(reader, line);
}

void Stats::give(Reader& reader, const std::string& line) {
  if (reader.unread.size() + line.size() > kUnreadMaxBytes) {
    ++reader.dropped;
    return;
  }
  if (reader.dropped) {
    const std::uint64_t lines = std::exchange(reader.dropped, 0);
    reader.unread += json::Object().text("type", "dropped").number("lines", lines).line();
  }
  reader.unread += line;
  flush(reader);
}

void Stats::flush(Reader& reader) {
  if (reader.unread.empty()) return;
  const ssize_t sent = ::send(reader.fd.get(), reader.unread.data(), reader.unread.size(), kNow);
  if (sent > 0) reader.unread.erase(0, static_cast<std::size_t>(sent));
  if (sent < 0 && errno != EAGAIN && errno != EINTR) reader.gone = true;
}

void Stats::listen_to(Reader& reader) {
  char block[1024];
  const ssize_t count = ::recv(reader.fd.get(), block, sizeof block, kNow);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  reader.command.append(block, static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  for (std::size_t end = 0; (end = reader.command.find('\n')) != std::string::npos;) {
    obey(reader, reader.command.substr(0, end));
    reader.command.erase(0, end + 1);
  }
  reader.gone = reader.gone || count <= 0 || reader.command.size() > kCommandMaxBytes;
}

void Stats::obey(Reader& reader, const std::string& line) {
  const std::optional<LabSettings> lab = parse_lab_command(line);
  if (!lab) {
    give(reader, json::Object().text("type", "error").text("error", "no such command").line());
    return;
  }
  link_.lab.set(*lab);
  log(Level::kInfo, link_.name + ": lab " + line);
  const std::lock_guard lock(link_.mutex);
  ++link_.revision;
  next_tick_ = 0;
}

}  // namespace dllm
