#include "requests.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <exception>

#include "json.h"

namespace dllm::agent {

std::optional<std::optional<std::string>> Lines::next() {
  while (true) {
    const std::size_t end = text_.find('\n');
    const bool too_long =
        end == std::string::npos ? text_.size() > kLineBytesMax : end > kLineBytesMax;
    if (end == std::string::npos && !skipping_ && !too_long) return std::nullopt;
    std::string line = text_.substr(0, end);
    text_.erase(0, end == std::string::npos ? end : end + 1);
    const bool is_rest = skipping_;
    skipping_ = end == std::string::npos;
    if (too_long && !is_rest) return std::optional<std::string>();
    if (!is_rest) return line;
    if (skipping_) return std::nullopt;
  }
}

std::string answer(std::string_view id, std::string_view result) {
  return json::Object().raw("id", id).raw("ok", result).line();
}

std::string refusal(std::string_view id, const Refusal& refusal) {
  std::vector<std::string> pids;
  for (const pid_t pid : refusal.pids()) pids.push_back(std::to_string(pid));
  json::Object error;
  error.text("kind", refusal.kind()).text("message", refusal.what()).raw("pids", json::list(pids));
  return json::Object().raw("id", id).raw("error", error.str()).line();
}

std::string refusal_of_current(std::string_view id) {
  try {
    throw;
  } catch (const Refusal& error) {
    return refusal(id, error);
  } catch (const json::TypeError& error) {
    return refusal(id, Refusal(kBadRequest, error.what()));
  } catch (const std::exception& error) {
    return refusal(id, Refusal(kFailed, error.what()));
  }
}

namespace {

constexpr std::size_t kForkedJobsMax = 64;
constexpr std::size_t kBlock = 64 * 1024;
constexpr int kAboveOurs = 16;

// Gives two descriptors their numbers and closes all others: a pipe of the parent that stays open
// in a child, or in what it starts, would never end.
void keep_only(int answer, int lifeline) {
  const UniqueFd null = open_at(AT_FDCWD, "/dev/null", O_RDWR);
  replace_standard_fds(null.get(), null.get(), null.get());
  const int high_answer = check(::fcntl(answer, F_DUPFD, kAboveOurs), "fcntl");
  const int high_lifeline = check(::fcntl(lifeline, F_DUPFD, kAboveOurs), "fcntl");
  check(::dup2(high_answer, kAnswerFd), "dup2");
  check(::dup2(high_lifeline, kLifelineFd), "dup2");
  for (const int fd : {kAnswerFd, kLifelineFd}) check(::fcntl(fd, F_SETFD, FD_CLOEXEC), "fcntl");
}

[[noreturn]] void run_child(int answer, int lifeline, const std::function<std::string()>& work) {
  int status = 0;
  try {
    keep_only(answer, lifeline);
    close_from(kLifelineFd + 1);
    write_all(kAnswerFd, work(), "answer");
  } catch (const std::exception&) {
    // Nobody is there to hear it.
    status = 1;
  }
  ::_exit(status);
}

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status)) return "signal " + std::to_string(WTERMSIG(status));
  return "status " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

ForkedJobs::ForkedJobs() : lifeline_(make_pipe()) {}

void ForkedJobs::start(const std::string& id, const std::function<std::string()>& work) {
  if (jobs_.size() == kForkedJobsMax) {
    throw Refusal(kBusy, "too many requests at once; repeat this one later");
  }
  Pipe answer = make_pipe();
  const pid_t pid = check(::fork(), "cannot start another process");
  if (pid == 0) run_child(answer.writer.get(), lifeline_.reader.get(), work);
  jobs_.push_back({id, pid, std::move(answer.reader), ""});
}

void ForkedJobs::add_to(std::vector<pollfd>& waited) const {
  for (const Job& job : jobs_) waited.push_back({job.reader.get(), POLLIN, 0});
}

std::vector<std::string> ForkedJobs::take(const std::vector<pollfd>& waited) {
  std::vector<std::string> answers;
  std::array<char, kBlock> block;
  for (const pollfd& ready : waited) {
    if (ready.revents == 0) continue;
    const auto job = std::find_if(jobs_.begin(), jobs_.end(),
                                  [&](const Job& one) { return one.reader.get() == ready.fd; });
    if (job == jobs_.end()) continue;
    const ssize_t count = retry([&] { return ::read(ready.fd, block.data(), block.size()); });
    if (count > 0) job->text.append(block.data(), static_cast<std::size_t>(count));
    if (count > 0 && job->text.size() <= kAnswerBytesMax) continue;
    answers.push_back(finish(*job));
    jobs_.erase(job);
  }
  return answers;
}

std::string ForkedJobs::finish(Job& job) {
  // A child that still writes ends of it.
  job.reader.reset();
  int status = 0;
  retry([&] { return ::waitpid(job.pid, &status, 0); });
  if (job.text.size() > kAnswerBytesMax) {
    return refusal(job.id, Refusal(kFailed, "the answer is too long"));
  }
  if (!job.text.empty() && job.text.back() == '\n') return std::move(job.text);
  const std::string how = how_it_ended(status);
  return refusal(job.id, Refusal(kFailed, "the work ended without an answer (" + how + ")"));
}

}  // namespace dllm::agent
