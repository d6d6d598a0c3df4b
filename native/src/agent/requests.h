// What is asked of the agent and answered, a line each; work that takes a while has a child process
// of its own, so that no request waits for another and a fork happens only when one is asked for.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "posix.h"

namespace dllm::agent {

inline constexpr std::size_t kLineBytesMax = 1U << 20;

// Cuts a stream into lines, and never holds more than one line may have.
class Lines {
 public:
  // Adds what was read.
  void add(std::string_view data) { text_.append(data); }

  // The next whole line without its end; none until more is added. One that is too long is told
  // once, as nullopt inside.
  std::optional<std::optional<std::string>> next();

 private:
  std::string text_;
  bool skipping_ = false;  // until the end of a line that is too long
};

inline constexpr const char* kBadRequest = "bad_request";
inline constexpr const char* kBadName = "bad_name";
inline constexpr const char* kUnknown = "unknown";
inline constexpr const char* kNotStarted = "not_started";
inline constexpr const char* kStillRuns = "still_runs";
inline constexpr const char* kOutlived = "outlived";
inline constexpr const char* kBusy = "busy";
inline constexpr const char* kFailed = "failed";

inline constexpr std::size_t kAnswerBytesMax = 24U << 20;

// What was asked for cannot be done: one of the kinds above, and which processes are in the way.
class Refusal : public std::runtime_error {
 public:
  Refusal(const char* kind, const std::string& message, std::vector<pid_t> pids = {})
      : std::runtime_error(message), kind_(kind), pids_(std::move(pids)) {}

  [[nodiscard]] const char* kind() const { return kind_; }
  [[nodiscard]] const std::vector<pid_t>& pids() const { return pids_; }

 private:
  const char* kind_;
  std::vector<pid_t> pids_;
};

// `id` and `result` are JSON already.
std::string answer(std::string_view id, std::string_view result);
std::string refusal(std::string_view id, const Refusal& refusal);

// The refusal that stands for an exception being handled.
std::string refusal_of_current(std::string_view id);

// What `work` returns as an answer, or what it throws as a refusal.
template <typename Work>
std::string answer_of(std::string_view id, Work&& work) {
  try {
    return answer(id, work());
  } catch (...) {
    return refusal_of_current(id);
  }
}

// Descriptors a child has beyond the standard ones, which lead nowhere.
inline constexpr int kAnswerFd = 3;
inline constexpr int kLifelineFd = 4;  // reads as ended once the parent is gone

class ForkedJobs {
 public:
  ForkedJobs();

  // Runs `work`, which returns a whole answer line, in a child. Refuses when too many run.
  void start(const std::string& id, const std::function<std::string()>& work);

  // What to wait for.
  void add_to(std::vector<pollfd>& waited) const;

  // Reads where something came; the answers that are complete.
  std::vector<std::string> take(const std::vector<pollfd>& waited);

 private:
  struct Job {
    std::string id;
    pid_t pid = -1;
    UniqueFd reader;
    std::string text;
  };

  static std::string finish(Job& job);

  Pipe lifeline_;
  std::vector<Job> jobs_;
};

}  // namespace dllm::agent
