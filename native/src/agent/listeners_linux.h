// Who listens on a TCP port of this machine, on Linux.
#pragma once

#ifdef __linux__

#include <set>
#include <string>

namespace dllm::agent {

// Inodes of the sockets that listen on a port and are reached at 127.0.0.1.
std::set<std::string> listeners(int port);

// The same by its table of every connection, for a kernel that answers no questions.
std::set<std::string> listeners_by_table(int port);

}  // namespace dllm::agent

#endif
