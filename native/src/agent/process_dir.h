// A started process as a directory:
//
//   process.json  who it is: pid and start first, then argv, environment, supervisor
//   log           its output;  log.1  older output moved away;  log.old  of the process before it
//   exit.json     how it ended; missing while it runs
//   private       what only it is to know; deleted when it ends
//   lock          held (flock) by the spawning program, then by the supervisor until it ends
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "posix.h"

namespace dllm {

// Linux: "<boot id>:<start time in clock ticks since boot>"; macOS: start time in µs since 1970.
// Empty when there is no such process, or only its zombie.
std::string start_id(pid_t pid);

inline constexpr const char* kProcessFile = "process.json";
inline constexpr const char* kExitFile = "exit.json";
inline constexpr const char* kLogFile = "log";
inline constexpr const char* kPrivateFile = "private";
inline constexpr const char* kLockFile = "lock";
// There from the moment on that somebody asked for the end of what runs.
inline constexpr const char* kStoppingFile = "stopping";

inline constexpr std::size_t kProcessFileMax = 4U << 20;

// Deletes our files in a directory.
void remove_process_files(int directory) noexcept;

// The directory cannot be had: it is in use or holds what is not ours.
class Refused : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class ProcessDir {
 public:
  // Creates the directory (mode 0700, parents too) or takes over that of an ended process.
  // Throws Refused, or std::system_error when the system says no.
  static ProcessDir claim(const std::string& path);

  // Absolute and without symbolic links.
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

  [[nodiscard]] int fd() const noexcept { return dir_.get(); }

  // The log, for appending; created empty.
  [[nodiscard]] UniqueFd open_log() const;

  // Writes one of the files in one step.
  void write(const char* name, std::string_view text) const;

  // Deletes one of the files; fine when there is none.
  void discard(const char* name) const noexcept;

  // Deletes our files and the directory.
  void remove() const noexcept;

 private:
  // None when somebody else holds or just deleted it.
  static std::optional<ProcessDir> try_claim(const std::string& path);

  ProcessDir(std::string path, UniqueFd dir, UniqueFd lock)
      : path_(std::move(path)), dir_(std::move(dir)), lock_(std::move(lock)) {}

  std::string path_;
  UniqueFd dir_;
  UniqueFd lock_;
};

// When the log is over the limit: copies its newest `limit` bytes (and up to as many that are
// written meanwhile) to log.1 and empties it. The writer goes on where it is, because it appends.
// What it writes between the last byte copied and the emptying (microseconds) is lost. Never
// throws: on a full disk the log is emptied uncopied, which is the one thing that helps. Returns
// whether it emptied the log.
bool enforce_log_limit(int directory, std::uint64_t limit) noexcept;

}  // namespace dllm
