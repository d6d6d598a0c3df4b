// What the commands share: reading of a command line, and how those end that serve.
#pragma once

#include <csignal>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "clock.h"
#include "link/endpoint.h"

namespace dllm {

struct Option {
  std::string_view name;
  std::function<void(const std::string& value)> take;  // throws UsageError
  bool is_flag = false;                                // it has no value
};

// Keeps a value as it is; notes a flag.
Option kept(std::string_view name, std::string& where);
Option flag(std::string_view name, bool& where, bool value = true);

// Takes what comes, in order. Throws UsageError.
void parse_arguments(std::span<const char* const> args, const std::vector<Option>& options);

// All throw UsageError, which names the option.
Endpoint endpoint_for(const std::string& option, const std::string& value);
// Where to connect: a host name is looked up. Throws std::runtime_error where it has no address.
Endpoint peer_for(const std::string& option, const std::string& value);
// With a port, not a path.
Endpoint port_for(const std::string& option, const std::string& value);
// 1 s to an hour.
Nanos seconds_for(const std::string& option, const std::string& value);

// Those that end a command, to be waited for. Before the first thread: all inherit it.
sigset_t block_ending_signals();

// What a command that listens says once it does: {"port": …, "pid": …} on standard output.
void print_port(int port);

}  // namespace dllm
