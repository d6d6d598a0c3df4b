#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

#include "answer.h"
#include "errands.h"
#include "family.h"
#include "files.h"
#include "process_dir.h"
#include "program.h"
#include "protocol/json.h"
#include "run_program.h"
#include "spawn.h"
#include "work.h"

namespace dllm::agent {

namespace {

using std::chrono::duration;
using std::chrono::steady_clock;

constexpr double kRunSecondsMax = 600;
constexpr std::int64_t kRunBytesMax = 1 << 20;
constexpr std::int64_t kReadBytesMax = 1 << 20;
constexpr std::int64_t kFindDepthMax = 32;
constexpr std::int64_t kFindFilesMax = 16'384;
// A supervisor whose child ended needs a moment to write exit.json and let go.
constexpr auto kLockPatience = std::chrono::seconds(2);
constexpr auto kLockPause = std::chrono::milliseconds(5);
constexpr double kStopSecondsMax = 86'400;
constexpr int kRemoveAttempts = 3;
constexpr int kPortMax = 65535;

std::string record_or_null(const RunDir& run, const std::string& name) {
  const auto record = run.read_settled(name);
  return json::Object().raw("record", record ? to_json(*record, true) : "null").str();
}

bool has_nul(const std::string& text) {
  return text.find('\0') != std::string::npos;
}

void check_executable(const SpawnOptions& options) {
  const bool odd =
      std::any_of(options.argv.begin(), options.argv.end(), has_nul) || has_nul(options.cwd) ||
      std::any_of(options.env.begin(), options.env.end(),
                  [](const auto& pair) { return has_nul(pair.first) || has_nul(pair.second); });
  if (odd) throw Refusal(kNotStarted, "embedded null byte");
  if (options.argv.empty() || options.argv.front().empty()) {
    throw Refusal(kNotStarted, "the command is empty");
  }
  for (const auto& [name, value] : options.env) {
    if (name.empty() || name.find('=') != std::string::npos) {
      throw Refusal(kNotStarted, "'" + name + "' cannot be the name of a variable");
    }
  }
}

// A process is no cluster: what is below it would be taken for its files.
void check_cluster(const RunDir& run, const std::string& name) {
  const std::size_t slash = name.find('/');
  if (slash != std::string::npos && run.read(name.substr(0, slash))) {
    throw Refusal(kNotStarted, name.substr(0, slash) + " is a process, not a cluster");
  }
}

StartReport launch(const SpawnOptions& options) {
  settle_for_spawning();
  const std::array<int, 2> unwanted = {kAnswerFd, kLifelineFd};
  try {
    const ProcessDir dir = ProcessDir::claim(options.dir);
    return start_supervised(options, dir, unwanted);
  } catch (const std::exception& error) {
    throw Refusal(kNotStarted, error.what());
  }
}

// Waits until no start and no supervisor uses the directory.
UniqueFd lock(const UniqueFd& directory, const std::string& name) {
  const auto deadline = steady_clock::now() + kLockPatience;
  UniqueFd file(retry([&] { return ::openat(directory.get(), kLockFile, O_RDWR | O_CLOEXEC); }));
  while (file && ::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (steady_clock::now() > deadline) {
      throw Refusal(kFailed, name + " is being used by another start or stop");
    }
    std::this_thread::sleep_for(kLockPause);
  }
  return file;
}

std::string entries_of(const std::string& path) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(path.c_str()), ::closedir);
  while (const dirent* entry = listing ? ::readdir(listing.get()) : nullptr) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

void delete_directory(const std::string& path) {
  int error = 0;
  for (int attempt = 0; attempt < kRemoveAttempts; ++attempt) {
    const UniqueFd directory(
        retry([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
    if (directory) remove_process_files(directory.get());
    if (::rmdir(path.c_str()) == 0 || errno == ENOENT) return;
    error = errno;
  }
  const std::string left = entries_of(path);
  const std::string why = left.empty() ? std::strerror(error) : "it holds " + left;
  throw Refusal(kFailed, path + " cannot be deleted (" + why + ")");
}

// Last in its cluster: that goes too.
void delete_empty_cluster(const RunDir& run, const std::string& name) {
  const std::size_t slash = name.find('/');
  if (slash != std::string::npos) ::rmdir(run.directory(name.substr(0, slash)).c_str());
}

std::string number_or_null(const std::optional<int>& number) {
  return number ? std::to_string(*number) : "null";
}

std::string absolute_path_in(const json::Value& value, std::string_view what) {
  const std::string& path = value.text(what);
  if (!path.starts_with('/') || has_nul(path)) {
    throw Refusal(kBadRequest, "'" + std::string(what) + "' must be an absolute path");
  }
  return path;
}

}  // namespace

std::string path_in(const json::Value& request) {
  const json::Value* const path = request.find("path");
  if (path == nullptr) throw Refusal(kBadRequest, "'path' is missing");
  return absolute_path_in(*path, "path");
}

SpawnOptions spec_in(const RunDir& run, const json::Value& request) {
  SpawnOptions options;
  options.dir = run.directory(name_in(request));
  options.argv = json::texts_of(request, "argv");
  options.env = json::pairs_of(request, "env");
  options.unset = json::texts_of(request, "unset");
  options.meta = json::text_of(request, "meta", "");
  options.private_text = json::text_of(request, "private", "");
  options.cwd = json::text_of(request, "cwd", "/");
  options.ignore_sigpipe = json::flag_of(request, "ignore_sigpipe", false);
  const auto limit = static_cast<std::int64_t>(kDefaultLogLimitBytes);
  options.log_limit = static_cast<std::uint64_t>(
      std::max<std::int64_t>(json::integer_of(request, "log_limit", limit), 0));
  check_executable(options);
  return options;
}

std::string start(const RunDir& run, const std::string& name, const SpawnOptions& options) {
  run.make();
  check_cluster(run, name);
  const std::vector<Member> family = find_family(run, name);
  if (!family.empty()) throw Refusal(kStillRuns, name + " still runs", {family.front().pid});
  const StartReport report = launch(options);
  if (report.status != kExitOk) throw Refusal(kNotStarted, report.text);
  return record_or_null(run, name);
}

// More than the clock can count to would be none at all.
duration<double> patience_in(const json::Value& request, const char* member,
                             duration<double> otherwise) {
  return duration<double>(
      std::clamp(json::number_of(request, member, otherwise.count()), 0.0, kStopSecondsMax));
}

std::string stop(const RunDir& run, const json::Value& request) {
  const std::string name = name_in(request);
  Patience patience;
  patience.grace = patience_in(request, "grace_s", patience.grace);
  patience.kill = patience_in(request, "kill_s", patience.kill);
  patience.supervisor = patience_in(request, "supervisor_s", patience.supervisor);
  const std::vector<pid_t> left = end_family(run, name, patience);
  if (!left.empty()) throw Refusal(kOutlived, name + " outlived SIGKILL", left);
  return record_or_null(run, name);
}

std::string remove(const RunDir& run, const json::Value& request) {
  const std::string name = name_in(request);
  const auto record = run.read_settled(name);
  if (record && record->alive) throw Refusal(kStillRuns, name + " still runs", {record->pid});
  const std::string path = run.directory(name);
  const UniqueFd directory(
      retry([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (!directory && errno == ENOENT) return "{}";
  const UniqueFd held = directory ? lock(directory, name) : UniqueFd();
  // While we waited somebody may have started it anew.
  const auto now = run.read(name);
  if (now && now->alive) throw Refusal(kStillRuns, name + " still runs", {now->pid});
  delete_directory(path);
  delete_empty_cluster(run, name);
  return "{}";
}

std::string run(const json::Value& request) {
  Program program;
  program.argv = json::texts_of(request, "argv");
  program.env = json::pairs_of(request, "env");
  program.cwd = json::text_of(request, "cwd", "/");
  const double wanted = json::number_of(request, "timeout_s", program.timeout.count());
  program.timeout = duration<double>(std::clamp(wanted, 0.0, kRunSecondsMax));
  program.limit_bytes = static_cast<std::size_t>(
      std::clamp<std::int64_t>(json::integer_of(request, "limit", kRunBytesMax), 0, kRunBytesMax));
  const std::int64_t port = json::integer_of(request, "touch", 0);
  if (port < 0 || port > kPortMax) throw Refusal(kBadRequest, "there is no such port");
  program.touch_port = static_cast<int>(port);
  program.until = json::texts_of(request, "until");
  SpawnOptions checked;
  checked.argv = program.argv;
  checked.env = program.env;
  checked.cwd = program.cwd;
  check_executable(checked);
  const Outcome outcome = run_program(program, kLifelineFd);
  json::Object result;
  result.raw("code", number_or_null(outcome.code)).raw("signal", number_or_null(outcome.signal));
  result.flag("timed_out", outcome.timed_out).flag("truncated", outcome.truncated);
  return result.text("stdout", outcome.out).text("stderr", outcome.err).str();
}

std::string find(const json::Value& request) {
  std::vector<std::string> folders;
  const json::Value* const named = request.find("folders");
  if (named == nullptr) throw Refusal(kBadRequest, "'folders' is missing");
  for (const json::Value& folder : named->array("folders")) {
    folders.push_back(absolute_path_in(folder, "folders"));
  }
  const std::int64_t depth = json::integer_of(request, "depth", 6);
  const std::int64_t limit = json::integer_of(request, "limit", 4096);
  const Walk walk =
      find_files(folders, json::text_of(request, "suffix", ".gguf"),
                 static_cast<int>(std::clamp<std::int64_t>(depth, 0, kFindDepthMax)),
                 static_cast<std::size_t>(std::clamp<std::int64_t>(limit, 1, kFindFilesMax)));
  std::vector<std::string> files;
  for (const FoundFile& file : walk.files) {
    json::Object object;
    object.raw("path", json::quote_bytes(file.path)).number("size_bytes", file.size_bytes);
    files.push_back(object.number("mtime_ns", file.mtime_ns).text("inode", file.inode).str());
  }
  return json::Object().raw("files", json::list(files)).flag("complete", walk.complete).str();
}

std::string read(const json::Value& request) {
  const std::string path = path_in(request);
  const std::int64_t limit = json::integer_of(request, "limit", kReadBytesMax);
  // A pipe must not keep us waiting for its writer.
  const UniqueFd file = open_at(AT_FDCWD, path, O_RDONLY | O_NONBLOCK);
  struct stat status{};
  check(::fstat(file.get(), &status), "cannot read " + path);
  if (!S_ISREG(status.st_mode)) throw Refusal(kFailed, path + " is not a file");
  const std::int64_t size = std::clamp<std::int64_t>(limit, 0, kReadBytesMax);
  const std::string data = read_all(file.get(), static_cast<std::size_t>(size));
  return json::Object().text("data", base64(data)).str();
}

std::string identity(const json::Value& request) {
  return json::Object().text("identity", identity_of(path_in(request))).str();
}

}  // namespace dllm::agent
