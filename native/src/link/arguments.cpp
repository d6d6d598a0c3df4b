#include "arguments.h"

#include <unistd.h>

#include <charconv>
#include <cstdio>

#include "posix.h"
#include "protocol/json.h"

namespace dllm {

Endpoint endpoint_for(const std::string& option, const std::string& value) {
  const auto endpoint = parse_endpoint(value);
  if (endpoint) return *endpoint;
  throw UsageError(option + " needs ADDRESS:PORT or unix:PATH, not '" + value + "'");
}

Endpoint peer_for(const std::string& option, const std::string& value) {
  return resolved(endpoint_for(option, value));
}

Endpoint port_for(const std::string& option, const std::string& value) {
  const auto endpoint = parse_endpoint(value);
  if (endpoint && endpoint->path.empty()) return *endpoint;
  throw UsageError(option + " needs ADDRESS:PORT, not '" + value + "'");
}

Nanos seconds_for(const std::string& option, const std::string& value) {
  constexpr int kMost = 3600;
  int seconds = 0;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, seconds);
  if (error != std::errc{} || stop != end || seconds < 1 || seconds > kMost) {
    throw UsageError(option + " needs 1 to " + std::to_string(kMost) + " seconds");
  }
  return seconds * kNanosPerSecond;
}

sigset_t block_ending_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

void print_ports(int port, int pair_port) {
  json::Object object;
  object.number("port", port);
  if (pair_port) object.number("pair_port", pair_port);
  const std::string line = object.number("pid", ::getpid()).line();
  std::fputs(line.c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace dllm
