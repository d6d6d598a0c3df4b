#include "probe.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "arguments.h"
#include "json.h"
#include "sockets.h"

namespace dllm {

namespace {

constexpr const char* kTokenVariable = "DLLM_PROBE_TOKEN";
constexpr std::size_t kTokenBytesMin = 32, kTokenBytesMax = 128;
// Of the side that listens, from its start to its end; each read of either waits shorter.
constexpr Nanos kListenMax = 10 * kNanosPerSecond;
constexpr int kReadMs = 2000;
constexpr Nanos kConnectPatience = 3 * kNanosPerSecond / 2;
constexpr Nanos kRefusedPatience = kNanosPerSecond;
constexpr std::chrono::milliseconds kRefusedPause{50};
constexpr int kPings = 8;
constexpr int kRateMsMax = 2000;
constexpr std::size_t kBlock = 64 * 1024;
// More would be on its way for seconds where the link is slow.
constexpr int kSendBuffer = 256 * 1024;
constexpr std::uint8_t kPing = 'p', kData = 'd';

std::string token() {
  const char* found = std::getenv(kTokenVariable);
  const std::string value = found ? found : "";
  if (value.size() < kTokenBytesMin || value.size() > kTokenBytesMax) {
    throw UsageError(std::string("probe needs 32 to 128 characters in ") + kTokenVariable);
  }
  return value;
}

bool read_exactly(int fd, Bytes into) {
  while (!into.empty()) {
    if (!wait_readable(fd, kReadMs)) return false;
    const ssize_t count = receive(fd, into);
    if (count <= 0) return false;
    into = into.subspan(static_cast<std::size_t>(count));
  }
  return true;
}

bool send_text(int fd, const std::string& text) {
  return send_all(fd, {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
}

bool same(const std::string& one, const std::string& other) {
  unsigned different = one.size() == other.size() ? 0 : 1;
  for (std::size_t at = 0; at < std::min(one.size(), other.size()); ++at) {
    different |= static_cast<unsigned char>(one[at]) ^ static_cast<unsigned char>(other[at]);
  }
  return different == 0;
}

// Reads what comes until its end, and tells how fast that was.
void take_data(int fd) {
  std::vector<std::uint8_t> block(kBlock);
  const Nanos began = monotonic_now();
  std::uint64_t bytes = 0;
  while (wait_readable(fd, kReadMs)) {
    const ssize_t count = receive(fd, block);
    if (count <= 0) break;
    bytes += static_cast<std::uint64_t>(count);
    if (monotonic_now() - began > kListenMax) break;
  }
  const double passed_s = static_cast<double>(monotonic_now() - began) / kNanosPerSecond;
  const double bytes_per_s = static_cast<double>(bytes) / std::max(passed_s, 1e-6);
  send_text(fd, std::to_string(static_cast<std::uint64_t>(bytes_per_s)) + "\n");
}

void serve(int fd) {
  std::array<std::uint8_t, 1> word{};
  while (read_exactly(fd, word)) {
    if (word[0] == kData) return take_data(fd);
    if (word[0] != kPing || !send_all(fd, word)) return;
  }
}

// Serves the first one who knows the token.
int listen_for(const Endpoint& endpoint, const std::string& secret) {
  const UniqueFd listener = listen_tcp(endpoint);
  const Nanos end = monotonic_now() + kListenMax;
  std::string said(secret.size(), '\0');
  while (monotonic_now() < end) {
    const int left_ms = static_cast<int>((end - monotonic_now()) / kNanosPerMilli);
    if (!wait_readable(listener.get(), left_ms)) break;
    const UniqueFd client = accept_client(listener.get());
    if (!client) continue;
    tune(client.get());
    auto* data = reinterpret_cast<std::uint8_t*>(said.data());
    if (!read_exactly(client.get(), {data, said.size()}) || !same(said, secret)) continue;
    serve(client.get());
    return kExitOk;
  }
  throw std::runtime_error("nobody came to " + text(endpoint));
}

// The other side may not listen yet: it is tried again while it refuses.
UniqueFd reached(const Endpoint& endpoint) {
  const Nanos end = monotonic_now() + kRefusedPatience;
  while (true) {
    try {
      return connect_to(endpoint, kConnectPatience);
    } catch (const std::system_error& error) {
      if (error.code() != std::errc::connection_refused || monotonic_now() > end) throw;
    }
    std::this_thread::sleep_for(kRefusedPause);
  }
}

Nanos round_trip(int fd) {
  std::array<std::uint8_t, 1> word{kPing};
  const Nanos began = monotonic_now();
  if (!send_all(fd, word) || !read_exactly(fd, word)) {
    throw std::runtime_error("it was reached, and did not answer");
  }
  return monotonic_now() - began;
}

std::uint64_t bytes_per_s(int fd, int rate_ms) {
  // Noise: a way that compresses is not to look faster than it is.
  std::vector<std::uint8_t> block(kBlock);
  std::uint32_t state = 2463534242;
  for (std::uint8_t& byte : block) {
    state ^= state << 13, state ^= state >> 17, state ^= state << 5;
    byte = static_cast<std::uint8_t>(state);
  }
  ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kSendBuffer, sizeof kSendBuffer);
  const Nanos end = monotonic_now() + rate_ms * kNanosPerMilli;
  const std::array<std::uint8_t, 1> word{kData};
  bool taken = send_all(fd, word);
  while (taken && monotonic_now() < end) {
    wait_writable(fd, kReadMs);
    taken = send_some(fd, block) >= 0;
  }
  ::shutdown(fd, SHUT_WR);
  std::string told;
  std::array<std::uint8_t, 1> next{};
  while (read_exactly(fd, next) && next[0] != '\n') told.push_back(static_cast<char>(next[0]));
  return std::strtoull(told.c_str(), nullptr, 10);
}

int ask(const Endpoint& endpoint, const std::string& secret, int rate_ms) {
  const UniqueFd fd = reached(endpoint);
  if (!send_text(fd.get(), secret)) throw std::runtime_error("it closed the connection");
  Nanos best = round_trip(fd.get());
  for (int at = 1; at < kPings; ++at) best = std::min(best, round_trip(fd.get()));
  json::Object object;
  object.number("rtt_us", best / kNanosPerMicro);
  if (rate_ms > 0) object.number("bytes_per_s", bytes_per_s(fd.get(), rate_ms));
  const std::string line = object.line();
  std::fputs(line.c_str(), stdout);
  return std::fflush(stdout) == 0 ? kExitOk : kExitFailed;
}

int milliseconds_for(const std::string& option, const std::string& value) {
  int found = -1;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, found);
  if (error == std::errc{} && stop == end && found >= 0 && found <= kRateMsMax) return found;
  throw UsageError(option + " needs 0 to " + std::to_string(kRateMsMax) + " milliseconds");
}

}  // namespace

const char* const kProbeHelp =
    R"(usage: dllm-relay probe --listen ADDRESS:PORT
       dllm-relay probe --connect ADDRESS:PORT [--rate-ms N]

Run on two machines it measures the way between them. The side that listens serves one caller, and
ends after 10 seconds at the latest. Both need the same DLLM_PROBE_TOKEN in their environments.

options:
  --listen ADDRESS:PORT    wait for the other side here
  --connect ADDRESS:PORT   reach the other side, and print {"rtt_us": …, "bytes_per_s": …}
  --rate-ms N              send for so long to measure the rate, 0 to 2000; 0, the default: not
)";

int probe(std::span<char* const> args) {
  std::optional<Endpoint> listen, connect;
  int rate_ms = 0;
  const std::vector<Option> options = {
      {"--listen", [&](const std::string& value) { listen = port_for("--listen", value); }},
      {"--connect", [&](const std::string& value) { connect = port_for("--connect", value); }},
      {"--rate-ms",
       [&](const std::string& value) { rate_ms = milliseconds_for("--rate-ms", value); }},
  };
  parse_arguments(std::span<const char* const>(args.data(), args.size()), options);
  if (listen.has_value() == connect.has_value()) {
    throw UsageError("probe needs --listen ADDRESS:PORT or --connect ADDRESS:PORT");
  }
  return listen ? listen_for(*listen, token()) : ask(*connect, token(), rate_ms);
}

}  // namespace dllm
