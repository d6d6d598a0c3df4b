#include "arguments.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "json.h"
#include "posix.h"

namespace dllm {

Option kept(std::string_view name, std::string& where) {
  return {name, [&where](const std::string& value) { where = value; }};
}

Option flag(std::string_view name, bool& where, bool value) {
  return {name, [&where, value](const std::string&) { where = value; }, true};
}

void parse_arguments(std::span<const char* const> args, const std::vector<Option>& options) {
  for (std::size_t at = 0; at < args.size(); ++at) {
    const std::string name = args[at];
    const auto option = std::ranges::find(options, name, &Option::name);
    const bool is_flag = option != options.end() && option->is_flag;
    if (!is_flag && at + 1 == args.size()) {
      throw UsageError("'" + name + "' is unknown or needs a value");
    }
    if (option == options.end()) throw UsageError("unknown option '" + name + "'");
    option->take(is_flag ? "" : args[++at]);
  }
}

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

void print_port(int port) {
  const std::string line = json::Object().number("port", port).number("pid", ::getpid()).line();
  std::fputs(line.c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace dllm
