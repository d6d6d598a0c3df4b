// The lines a client reads: answers, and why there is none.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace dllm::agent {

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

// What `work` returns as an answer, or what it throws as a refusal.
template <typename Work>
std::string answer_of(std::string_view id, Work&& work);

// The refusal that stands for an exception being handled.
std::string refusal_of_current(std::string_view id);

template <typename Work>
std::string answer_of(std::string_view id, Work&& work) {
  try {
    return answer(id, work());
  } catch (...) {
    return refusal_of_current(id);
  }
}

}  // namespace dllm::agent
