#include "process_watch.h"

#include <algorithm>
#include <stdexcept>

#include "json.h"
#include "process_dir.h"

namespace dllm::agent {

namespace {

constexpr auto kLookInterval = std::chrono::milliseconds(250);
constexpr auto kEndPatience = std::chrono::milliseconds(250);

std::string parent_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == 0 || slash == std::string::npos ? "/" : path.substr(0, slash);
}

std::string came(const std::string& record) {
  return json::Object().text("push", "record").raw("record", record).line();
}

std::string went(const std::string& name) {
  return json::Object().text("push", "removed").text("name", name).line();
}

}  // namespace

std::vector<std::string> ProcessWatch::begin(Clock::time_point now) {
  told_.clear();
  ends_.clear();
  news(now);
  std::vector<std::string> records;
  for (const auto& [name, record] : told_) records.push_back(record);
  return records;
}

std::vector<std::string> ProcessWatch::news(Clock::time_point now) {
  if (events_) events_->take();
  std::vector<std::string> lines;
  const std::map<std::string, Record> present = look(now);
  for (const auto& [name, record] : present) {
    if (held_back(record, now)) continue;
    std::string text = to_json(record);
    if (told_[name] == text) continue;
    lines.push_back(came(text));
    told_[name] = std::move(text);
  }
  std::erase_if(told_, [&](const auto& known) {
    if (present.contains(known.first)) return false;
    lines.push_back(went(known.first));
    return true;
  });
  std::erase_if(ends_, [&](const auto& end) { return !present.contains(end.first); });
  return lines;
}

// Watches first and reads then, so that nothing falls between.
std::map<std::string, Record> ProcessWatch::look(Clock::time_point now) {
  std::map<std::string, Record> present;
  blind_ = events_ == nullptr;
  deadline_.reset();
  try {
    watch_run_dir();
    watch_directories();
    for (const std::string& name : run_.names()) {
      if (auto record = run_.read(name)) present.emplace(name, std::move(*record));
    }
  } catch (const std::runtime_error&) {
    // A run directory that cannot be read holds nothing, until it can be.
    blind_ = true;
  }
  for (const auto& [name, record] : present) {
    if (record.alive) watch_process(record.pid, record.start_id);
    if (record.supervised) watch_process(record.supervisor_pid, record.supervisor_start_id);
  }
  if (blind_) look_again_at(now + kLookInterval);
  return present;
}

// As long as it does not exist: the nearest directory above it that does.
void ProcessWatch::watch_run_dir() {
  if (!events_) return;
  while (true) {
    std::string nearest = run_.path();
    while (!events_->watch_directory(nearest) && nearest != "/") nearest = parent_of(nearest);
    const bool settled = nearest == run_.path() || nearest == ancestor_;
    if (!ancestor_.empty() && ancestor_ != nearest) events_->forget_directory(ancestor_);
    ancestor_ = nearest == run_.path() ? "" : nearest;
    // What lies below an ancestor may have been made before it was watched.
    if (settled) return;
  }
}

void ProcessWatch::watch_directories() {
  if (!events_) return;
  for (const std::string& name : run_.clusters()) {
    blind_ = !events_->watch_directory(run_.directory(name)) || blind_;
  }
  for (const std::string& name : run_.names()) {
    blind_ = !events_->watch_directory(run_.directory(name)) || blind_;
  }
}

// One that ended, or even gave its number away, between our look and this is looked at again.
void ProcessWatch::watch_process(pid_t pid, const std::string& identity) {
  if (events_ && (!events_->watch_process(pid) || start_id(pid) != identity)) blind_ = true;
}

// An end is told with its cause, if that is written soon.
bool ProcessWatch::held_back(const Record& record, Clock::time_point now) {
  if (!record.awaits_end()) {
    ends_.erase(record.name);
    return false;
  }
  const Clock::time_point until = ends_.try_emplace(record.name, now).first->second + kEndPatience;
  if (now >= until) return false;
  look_again_at(until);
  return true;
}

void ProcessWatch::look_again_at(Clock::time_point when) {
  deadline_ = deadline_ ? std::min(*deadline_, when) : when;
}

}  // namespace dllm::agent
