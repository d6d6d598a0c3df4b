// What the commands that relay share: reading of values on the command line, and how they end.
#pragma once

#include <csignal>
#include <string>

#include "clock.h"
#include "endpoint.h"

namespace dllm {

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
void print_ports(int port, int pair_port = 0);

}  // namespace dllm
