// A started process as a directory:
//
//   process.json  who it is: pid and start first, then argv, environment, supervisor
//   log           its output;  log.1  older output moved away;  log.old  of the process before it
//   exit.json     how it ended; missing while it runs
//   private       what only it is to know; deleted when it ends
//   lock          held (flock) by the spawning program, then by the supervisor until it ends
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "posix.h"

namespace dllm {

inline constexpr const char* kProcessFile = "process.json";
inline constexpr const char* kExitFile = "exit.json";
inline constexpr const char* kLogFile = "log";
inline constexpr const char* kRotatedLogFile = "log.1";
inline constexpr const char* kPreviousLogFile = "log.old";
inline constexpr const char* kPrivateFile = "private";
inline constexpr const char* kLockFile = "lock";
// There from the moment on that somebody asked for the end of what runs.
inline constexpr const char* kStoppingFile = "stopping";

inline constexpr std::size_t kProcessFileMax = 4U << 20;

// Whether a file of that name in a process directory is one we write.
bool is_process_file(std::string_view name);

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

}  // namespace dllm
