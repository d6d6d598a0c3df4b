#include "records.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>

#include "json.h"
#include "posix.h"
#include "process_dir.h"
#include "system.h"

namespace dllm::agent {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::size_t kNamePartMax = 64;
constexpr auto kEndPause = milliseconds(5);

bool is_plain(char sign) {
  return (sign >= '0' && sign <= '9') || (sign >= 'A' && sign <= 'Z') ||
         (sign >= 'a' && sign <= 'z');
}

bool is_name_part(std::string_view text) {
  return !text.empty() && text.size() <= kNamePartMax && is_plain(text.front()) &&
         std::all_of(text.begin(), text.end(), [](char sign) {
           return is_plain(sign) || sign == '.' || sign == '_' || sign == '-';
         });
}

bool exists(const std::string& path) {
  struct stat status{};
  return ::stat(path.c_str(), &status) == 0;
}

bool is_same(pid_t pid, const std::string& recorded) {
  return pid > 0 && !recorded.empty() && start_id(pid) == recorded;
}

// Directories of a fitting name, sorted; nothing when there is no such path.
std::vector<std::string> directories_in(const std::string& path) {
  auto names = entries_of(path);
  if (!names && errno == ENOENT) return {};
  if (!names) throw std::runtime_error(path + " cannot be read (" + std::strerror(errno) + ")");
  std::erase_if(*names, [&](const std::string& name) {
    struct stat status{};
    const bool is_there = ::stat((path + "/" + name).c_str(), &status) == 0;
    return !is_name_part(name) || !is_there || !S_ISDIR(status.st_mode);
  });
  return *names;
}

// None when there is no such file.
std::optional<std::string> content_of(const std::string& path) {
  try {
    return read_all(open_at(AT_FDCWD, path, O_RDONLY).get(), kProcessFileMax);
  } catch (const std::system_error& error) {
    const bool missing = error.code().value() == ENOENT || error.code().value() == ENOTDIR;
    return missing ? std::nullopt : std::optional<std::string>("");
  }
}

pid_t pid_in(const json::Value& object, std::string_view name, std::int64_t otherwise) {
  const std::int64_t pid = json::integer_of(object, name, otherwise);
  if (pid < 0 || pid > INT32_MAX) throw json::TypeError("a process has no such number");
  return static_cast<pid_t>(pid);
}

void take_process(Record& record, const json::Value& file) {
  const pid_t pid = pid_in(file, "pid", -1);
  record.start_id = json::text_of(file, "start_id");
  record.supervisor_pid = pid_in(file, "supervisor_pid", 0);
  record.supervisor_start_id = json::text_of(file, "supervisor_start_id", "");
  record.started_at = json::number_of(file, "started_at", 0);
  record.argv = json::texts_of(file, "argv");
  record.meta = json::text_of(file, "meta", "");
  record.pid = pid;
}

void take_end(Record& record, const json::Value& file) {
  if (json::integer_of(file, "pid") != record.pid ||
      json::text_of(file, "start_id") != record.start_id) {
    return;
  }
  const auto number = [&](const char* name) -> std::optional<int> {
    const json::Value* const found = file.find(name);
    if (found == nullptr) return std::nullopt;
    return static_cast<int>(found->integer(name));
  };
  const std::optional<int> code = number("code"), signal = number("signal");
  record.code = code;
  record.signal = signal;
  record.end_known = true;
}

// Whether the text could be understood.
template <typename Take>
bool understood(const std::string& text, Take&& take) {
  try {
    take(json::parse(text));
    return true;
  } catch (const json::ParseError&) {
    return false;
  } catch (const json::TypeError&) {
    return false;
  }
}

void read_end(Record& record) {
  const auto text = content_of(record.directory + "/" + kExitFile);
  if (text) understood(*text, [&](const json::Value& file) { take_end(record, file); });
}

}  // namespace

bool is_process_name(std::string_view text) {
  const std::size_t slash = text.find('/');
  if (slash == std::string_view::npos) return is_name_part(text);
  return is_name_part(text.substr(0, slash)) && is_name_part(text.substr(slash + 1));
}

RunDir::RunDir(const std::string& path) {
  std::error_code error;
  path_ = std::filesystem::weakly_canonical(path, error).string();
  if (error || path_.empty()) path_ = path;
  while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
}

void RunDir::make() const {
  std::error_code error;
  std::filesystem::create_directories(path_, error);
  if (error) {
    throw std::runtime_error("Cannot use the directory " + path_ + " (" + error.message() + ")");
  }
  struct stat status{};
  if (::stat(path_.c_str(), &status) != 0 || status.st_uid != ::getuid()) {
    throw std::runtime_error(path_ + " is not a directory owned by you");
  }
  if ((status.st_mode & 0077) != 0) ::chmod(path_.c_str(), 0700);
}

std::vector<std::string> RunDir::clusters() const {
  std::vector<std::string> found = directories_in(path_);
  std::erase_if(
      found, [&](const std::string& name) { return exists(directory(name) + "/" + kProcessFile); });
  return found;
}

std::vector<std::string> RunDir::names() const {
  std::vector<std::string> found;
  for (const std::string& name : directories_in(path_)) {
    if (exists(directory(name) + "/" + kProcessFile)) {
      found.push_back(name);
      continue;
    }
    try {
      for (const std::string& part : directories_in(directory(name))) {
        found.push_back(name + "/" + part);
      }
    } catch (const std::runtime_error&) {
      // A cluster's directory that cannot be read hides nothing of the others.
    }
  }
  return found;
}

std::optional<Record> RunDir::read(const std::string& name) const {
  Record record;
  record.name = name;
  record.directory = directory(name);
  const auto text = content_of(record.directory + "/" + kProcessFile);
  if (!text) return std::nullopt;
  const bool readable =
      understood(*text, [&](const json::Value& file) { take_process(record, file); });
  if (!readable) {
    Record damaged;
    damaged.name = record.name;
    damaged.directory = record.directory;
    return damaged;
  }
  record.alive = is_same(record.pid, record.start_id);
  // In this order: a supervisor ends only after it has written.
  record.supervised = is_same(record.supervisor_pid, record.supervisor_start_id);
  if (!record.alive) read_end(record);
  record.stopping = record.alive && exists(record.directory + "/" + kStoppingFile);
  return record;
}

std::optional<Record> RunDir::read_settled(const std::string& name,
                                           milliseconds patience) const {
  const auto deadline = steady_clock::now() + patience;
  auto record = read(name);
  while (record && record->awaits_end() && steady_clock::now() < deadline) {
    std::this_thread::sleep_for(kEndPause);
    record = read(name);
  }
  return record;
}

std::string to_json(const Record& record, bool with_use) {
  json::Object object;
  object.text("name", record.name).number("pid", record.pid).text("start_id", record.start_id);
  object.flag("supervised", record.alive && record.supervised).flag("alive", record.alive);
  object.flag("stopping", record.stopping);
  object.time("started_at", record.started_at).raw("argv", json::array(record.argv));
  object.text("meta", record.meta);
  object.number("code", record.code).number("signal", record.signal);
  object.text("log", record.directory + "/" + kLogFile);
  if (with_use && record.alive) {
    if (const auto bytes = rss_bytes(record.pid)) object.number("rss_bytes", *bytes);
    if (const auto used_ms = cpu_ms(record.pid)) object.number("cpu_ms", *used_ms);
    object.flag("stopped", is_stopped(record.pid));
  }
  return object.str();
}

}  // namespace dllm::agent
