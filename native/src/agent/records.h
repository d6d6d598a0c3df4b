// The process directories below one run directory, read into records.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace dllm::agent {

// Whether a text is NAME or CLUSTER/NAME, so that it cannot lead out of the run directory.
bool is_process_name(std::string_view text);

struct Record {
  std::string name;
  std::string directory;
  pid_t pid = 0;  // 0: process.json cannot be understood
  std::string start_id;
  pid_t supervisor_pid = 0;
  std::string supervisor_start_id;
  double started_at = 0;  // seconds since 1970
  std::vector<std::string> argv;
  std::string meta;
  bool alive = false;
  bool stopping = false;    // its end was asked for
  bool supervised = false;  // somebody is there to write how it ends
  bool end_known = false;
  std::optional<int> code;
  std::optional<int> signal;

  // How it ended is about to be written.
  [[nodiscard]] bool awaits_end() const { return !alive && !end_known && supervised; }
};

class RunDir {
 public:
  // An absolute path; links in it are followed, as processes carry it in their environment.
  explicit RunDir(const std::string& path);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string directory(const std::string& name) const { return path_ + "/" + name; }

  // Makes it, for this user alone. Throws std::runtime_error with a sentence.
  void make() const;

  // Directories that may hold processes: each cluster, and below this each process; sorted. Throws
  // std::runtime_error when the run directory is there and cannot be read.
  [[nodiscard]] std::vector<std::string> clusters() const;
  [[nodiscard]] std::vector<std::string> names() const;

  // What a directory tells; none when it describes no process.
  [[nodiscard]] std::optional<Record> read(const std::string& name) const;

  // The same, once it is known how a process that ended just now did. Its supervisor writes that
  // within milliseconds, on a busy machine within seconds.
  [[nodiscard]] std::optional<Record> read_settled(
      const std::string& name,
      std::chrono::milliseconds patience = std::chrono::milliseconds(250)) const;

 private:
  std::string path_;
};

// A record as JSON, with what it uses of the machine where `with_use` and it lives.
std::string to_json(const Record& record, bool with_use = false);

}  // namespace dllm::agent
