// What this machine's processors, memory, network, disks and GPUs do now.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "gpus.h"
#include "posix.h"

namespace dllm::agent {

// Reads the figures; loads and rates are means since the reading before, of which the first has
// none.
class Usage {
 public:
  // By the files below `root` ("" on a real system), and NVIDIA's by this library.
  explicit Usage(std::string root = "", const std::string& nvml = kNvml);

  // One reading as a JSON object. `agent` is the process to tell of beside the machine.
  std::string read(pid_t agent);

 private:
  struct Ticks {
    std::uint64_t busy = 0, all = 0;
  };
  struct Counters {
    std::int64_t at_us = 0;
    std::vector<Ticks> cores;
    std::optional<std::uint64_t> received, sent, bytes_read, bytes_written;
  };

  [[nodiscard]] Counters counters() const;
  [[nodiscard]] std::vector<Ticks> cores() const;
  void count_network(Counters& counters) const;
  void count_disks(Counters& counters) const;

  std::string root_;
  Nvml nvml_;
  SysfsGpus others_;
  std::optional<Counters> before_;
};

// Reads in a process of its own, which lives as long as it is asked: a driver that hangs holds up
// nothing else, and what a driver's library opened once stays open.
class UsageProcess {
 public:
  UsageProcess() = default;
  UsageProcess(const UsageProcess&) = delete;
  UsageProcess& operator=(const UsageProcess&) = delete;
  ~UsageProcess() { end(); }

  // Answers are in the order of requests. Refuses when too many wait.
  void ask(const std::string& id);

  // What to wait for.
  void add_to(std::vector<pollfd>& waited) const;

  // Reads where something came; the answers that are complete.
  std::vector<std::string> take(const std::vector<pollfd>& waited);

 private:
  void begin();
  void end() noexcept;
  std::vector<std::string> lost();

  UniqueFd channel_;
  pid_t pid_ = -1;
  std::string text_;
  std::deque<std::string> asked_;
};

}  // namespace dllm::agent
