// What the kernel tells of the processes of this machine, alike on Linux and macOS.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dllm::agent {

// The variable by which a process tells which directory describes it.
inline constexpr const char* kMarkerVariable = "DLLM_PROCESS_DIR";

// Numbers of all processes there are.
std::vector<pid_t> all_pids();

// A variable in the environment a process was started with; empty when it has none, or is another
// user's.
std::string variable_of(pid_t pid, const std::string& name);

// Command line and name of a process; empty when it is gone.
std::vector<std::string> argv_of(pid_t pid);
std::string name_of(pid_t pid);

// Main memory in use; none when it is gone.
std::optional<std::uint64_t> rss_bytes(pid_t pid);

// Processor time used since its start, all threads together, in milliseconds; none when it is gone.
std::optional<std::uint64_t> cpu_ms(pid_t pid);

// Whether a signal or a debugger holds a process: it does nothing until it is let go on.
bool is_stopped(pid_t pid);

// Whether a process listens on a TCP port that is reachable at 127.0.0.1.
bool listens(pid_t pid, int port);

// The process with the lowest number that listens there, as far as we may see; none if nobody.
std::optional<pid_t> listener_on(int port);

}  // namespace dllm::agent
