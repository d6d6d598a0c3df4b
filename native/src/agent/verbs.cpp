#include "verbs.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>

#include "files.h"
#include "hashed_model.h"
#include "json.h"
#include "ports.h"
#include "posix.h"
#include "process_dir.h"
#include "process_tree.h"
#include "requests.h"
#include "run_program.h"
#include "spawn.h"
#include "system.h"
#include "weights/resident_weights.h"

namespace dllm::agent {

namespace {

// A read shorter than the longest UTF-8 sequence could never get past one.
constexpr std::int64_t kLogReadMin = 4;
constexpr std::int64_t kLogReadMax = 4 << 20;
constexpr int kPortMax = 65535;

int port_in(const json::Value& request) {
  const std::int64_t port = json::integer_of(request, "port");
  if (port < 1 || port > kPortMax) throw Refusal(kBadRequest, "there is no such port");
  return static_cast<int>(port);
}

pid_t pid_of(std::int64_t number) {
  return number > 0 && number <= INT32_MAX ? static_cast<pid_t>(number) : 0;
}

// None when there is no log.
UniqueFd open_log(const std::string& path, const std::string& name) {
  UniqueFd log(retry([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }));
  struct stat status{};
  if (log && (::fstat(log.get(), &status) != 0 || !S_ISREG(status.st_mode))) {
    throw Refusal(kFailed, "the log of " + name + " cannot be read (it is no file)");
  }
  if (!log && errno != ENOENT && errno != ENOTDIR) {
    throw Refusal(kFailed, "the log of " + name + " cannot be read (" + std::strerror(errno) + ")");
  }
  return log;
}

// Where to read a log of that size: from the end if negative, anew if beyond the end.
std::int64_t first_byte(std::int64_t offset, std::int64_t size) {
  if (offset < 0) return std::max<std::int64_t>(size + offset, 0);
  return offset <= size ? offset : 0;
}

std::string read_at(const UniqueFd& log, std::int64_t start, std::int64_t limit) {
  check(::lseek(log.get(), static_cast<off_t>(start), SEEK_SET), "cannot read the log");
  return read_all(log.get(), static_cast<std::size_t>(limit));
}

}  // namespace

std::string base64(std::string_view data) {
  constexpr const char* kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((data.size() + 2) / 3 * 4);
  for (std::size_t at = 0; at < data.size(); at += 3) {
    const std::string_view part = data.substr(at, 3);
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      bits = bits << 8 | (i < part.size() ? static_cast<unsigned char>(part[i]) : 0U);
    }
    for (std::size_t i = 0; i < 4; ++i) {
      out += i <= part.size() ? kDigits[bits >> (18 - 6 * i) & 63] : '=';
    }
  }
  return out;
}

std::string name_in(const json::Value& request) {
  std::string name = json::text_of(request, "name");
  if (!is_process_name(name)) {
    throw Refusal(kBadName, "'" + name + "' cannot be the name of a process");
  }
  return name;
}

std::string records_of(const RunDir& run, const json::Value& request) {
  const bool is_one = request.find("name") != nullptr;
  std::vector<std::string> names = is_one ? std::vector{name_in(request)} : run.names();
  std::vector<std::string> records;
  for (const std::string& name : names) {
    if (const auto record = run.read_settled(name)) records.push_back(to_json(*record, true));
  }
  return json::Object().raw("records", json::list(records)).str();
}

std::string log_of(const RunDir& run, const json::Value& request) {
  const std::string name = name_in(request);
  const std::int64_t offset = json::integer_of(request, "offset");
  const std::int64_t limit =
      std::clamp(json::integer_of(request, "limit"), kLogReadMin, kLogReadMax);
  const UniqueFd log = open_log(run.directory(name) + "/" + kLogFile, name);
  const auto record = run.read(name);
  if (!log && !record) throw Refusal(kUnknown, "There is no process called " + name);
  struct stat status{};
  if (log) check(::fstat(log.get(), &status), "cannot read the log");
  const std::int64_t start = first_byte(offset, status.st_size);
  json::Object result;
  result.number("size", std::int64_t{status.st_size}).number("start", start);
  result.text("data", log ? base64(read_at(log, start, limit)) : "");
  return result.flag("ended", !record || !record->alive).str();
}

std::string listens_of(const json::Value& request) {
  const pid_t pid = pid_of(json::integer_of(request, "pid"));
  return json::Object().flag("listens", listens(pid, port_in(request))).str();
}

std::string port_owner_of(const json::Value& request) {
  const int port = port_in(request);
  json::Object result;
  const bool used = is_port_used(port);
  result.flag("used", used);
  const auto owner = used ? listener_on(port) : std::nullopt;
  if (owner) result.number("pid", *owner).text("name", name_of(*owner));
  return result.str();
}

std::string orphans_of(const RunDir& run) {
  std::vector<std::string> orphans;
  for (const Orphan& orphan : find_orphans(run)) {
    json::Object object;
    object.text("name", orphan.name).number("pid", orphan.member.pid);
    object.text("start_id", orphan.member.start_id).raw("argv", json::array(orphan.argv));
    orphans.push_back(object.str());
  }
  return json::Object().raw("orphans", json::list(orphans)).str();
}

namespace {

using std::chrono::duration;
using std::chrono::steady_clock;

constexpr double kRunSecondsMax = 600;
constexpr std::int64_t kRunBytesMax = 1 << 20;
constexpr std::int64_t kReadBytesMax = 1 << 20;
constexpr std::int64_t kFindDepthMax = 32;
constexpr std::int64_t kFindFilesMax = 16'384;
// A supervisor whose child ended needs a moment to write exit.json and let go.
constexpr auto kLockPatience = std::chrono::seconds(5);
constexpr auto kLockPause = std::chrono::milliseconds(5);
constexpr double kStopSecondsMax = 86'400;
constexpr int kRemoveAttempts = 3;

std::string record_or_null(const RunDir& run, const std::string& name) {
  const auto record = run.read_settled(name, kLockPatience);
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

void delete_directory(const std::string& path) {
  int error = 0;
  for (int attempt = 0; attempt < kRemoveAttempts; ++attempt) {
    const UniqueFd directory(
        retry([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
    if (directory) remove_process_files(directory.get());
    if (::rmdir(path.c_str()) == 0 || errno == ENOENT) return;
    error = errno;
  }
  std::string left;
  for (const std::string& name : entries_of(path).value_or(std::vector<std::string>())) {
    left += (left.empty() ? "" : ", ") + name;
  }
  const std::string why = left.empty() ? std::strerror(error) : "it holds " + left;
  throw Refusal(kFailed, path + " cannot be deleted (" + why + ")");
}

// Last in its cluster: that goes too.
void delete_empty_cluster(const RunDir& run, const std::string& name) {
  const std::size_t slash = name.find('/');
  if (slash != std::string::npos) ::rmdir(run.directory(name.substr(0, slash)).c_str());
}

std::string absolute_path(const std::string& path, std::string_view what) {
  if (!path.starts_with('/') || has_nul(path)) {
    throw Refusal(kBadRequest, "'" + std::string(what) + "' must be an absolute path");
  }
  return path;
}

}  // namespace

std::string path_in(const json::Value& request) {
  const json::Value* const path = request.find("path");
  if (path == nullptr) throw Refusal(kBadRequest, "'path' is missing");
  return absolute_path(path->text("path"), "path");
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
  const std::vector<Member> tree = find_process_tree(run, name);
  if (!tree.empty()) throw Refusal(kStillRuns, name + " still runs", {tree.front().pid});
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
  const std::vector<pid_t> left = end_process_tree(run, name, patience);
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
  result.number("code", outcome.code).number("signal", outcome.signal);
  result.flag("timed_out", outcome.timed_out).flag("truncated", outcome.truncated);
  return result.text("stdout", outcome.out).text("stderr", outcome.err).str();
}

std::string find(const json::Value& request) {
  std::vector<std::string> folders;
  const json::Value* const named = request.find("folders");
  if (named == nullptr) throw Refusal(kBadRequest, "'folders' is missing");
  for (const json::Value& folder : named->array("folders")) {
    folders.push_back(absolute_path(folder.text("folders"), "folders"));
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
  const UniqueFd file = open_file(path).fd;
  const std::int64_t size = std::clamp<std::int64_t>(limit, 0, kReadBytesMax);
  const std::string data = read_all(file.get(), static_cast<std::size_t>(size));
  return json::Object().text("data", base64(data)).str();
}

std::string identity(const json::Value& request) {
  return json::Object().text("identity", identity_of(path_in(request))).str();
}

namespace {

namespace fs = std::filesystem;

// llama.cpp asks by hash for tensors of more than so many bytes.
constexpr std::uint64_t kHashedAboveBytes = 10U << 20;
constexpr std::size_t kNameDigits = 16;
constexpr std::string_view kPart = ".part";
constexpr std::size_t kListedMax = 65'536;

// A tensor a worker could be asked for, and the file it would be in.
struct Wanted {
  weights::Resident tensor;
  std::string name;
};

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

// As rpc-server --cache finds it.
std::string stock_directory() {
  if (const std::string named = variable("LLAMA_CACHE"); !named.empty()) return named + "/rpc";
#ifdef __APPLE__
  const std::string caches = variable("HOME") + "/Library/Caches";
#else
  const std::string named = variable("XDG_CACHE_HOME");
  const std::string caches = named.empty() ? variable("HOME") + "/.cache" : named;
#endif
  return caches + "/llama.cpp/rpc";
}

std::string directory_in(const json::Value& request) {
  std::string directory = json::text_of(request, "directory", "");
  if (directory.empty()) directory = stock_directory();
  return absolute_path(directory, "directory");
}

bool is_cached_name(std::string_view name) {
  if (name.ends_with(kPart)) name.remove_suffix(kPart.size());
  return name.size() == kNameDigits &&
         name.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::uint64_t size_of(const std::string& path) {
  struct stat status{};
  const bool there = ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
  return there ? static_cast<std::uint64_t>(status.st_size) : 0;
}

std::vector<Wanted> wanted_of(const weights::ModelFiles& files,
                              const std::vector<weights::TensorSums>& sums) {
  std::vector<Wanted> wanted;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const weights::TensorPlace& place = files.tensors()[i];
    if (place.key.size_bytes <= kHashedAboveBytes) continue;
    wanted.push_back({{&files, &place, &sums[i]}, hex(sums[i].fnv1a)});
  }
  return wanted;
}

// One file of the cache in the making: nobody sees it before it is whole and right.
class Seed {
 public:
  Seed(const std::string& directory, const Wanted& wanted)
      : tensor_(wanted.tensor), path_(directory + "/" + wanted.name), part_(path_ + kPart.data()) {
    file_ = open_at(AT_FDCWD, part_, O_RDWR | O_CREAT, 0600);
    if (retry([&] { return ::flock(file_.get(), LOCK_EX | LOCK_NB); }) != 0) {
      throw Refusal(kBusy, path_ + " is being written already");
    }
    // What an earlier try left begins anew at a whole chunk.
    chunk_ = std::min(size_of(part_), size_bytes()) / weights::kChunkBytes;
    check(::ftruncate(file_.get(), at(chunk_)), "cannot write " + part_);
    check(::lseek(file_.get(), 0, SEEK_END), "cannot write " + part_);
  }

  [[nodiscard]] bool filled() const { return chunk_ == weights::chunks_in(size_bytes()); }

  void add_chunk() {
    const bool fine = weights::read_chunk(tensor_, chunk_, buffer_) && is_right(chunk_);
    if (!fine) give_up(tensor_.place->key.name + " has changed since it was hashed; try again");
    const char* const data = reinterpret_cast<const char*>(buffer_.data());
    try {
      write_all(file_.get(), {data, buffer_.size()}, "cannot write " + part_);
    } catch (const std::system_error& error) {
      give_up(error.code() == std::errc::no_space_on_device ? path_ + ": the disk is full"
                                                            : error.what());
    }
    ++chunk_;
  }

  void finish() {
    for (std::uint64_t chunk = 0; chunk < chunk_; ++chunk) {
      buffer_.resize(weights::chunk_bytes(size_bytes(), chunk));
      const ssize_t got =
          retry([&] { return ::pread(file_.get(), buffer_.data(), buffer_.size(), at(chunk)); });
      buffer_.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
      if (!is_right(chunk)) give_up(part_ + " is not what was written to it");
    }
    check(::fsync(file_.get()), "cannot write " + part_);
    check(::rename(part_.c_str(), path_.c_str()), "cannot write " + path_);
  }

 private:
  [[nodiscard]] std::uint64_t size_bytes() const { return tensor_.place->key.size_bytes; }
  // Whether the buffer holds just that chunk.
  [[nodiscard]] bool is_right(std::uint64_t chunk) const {
    return weights::chunk_hash(buffer_, size_bytes(), chunk) == tensor_.sums->chunks[chunk];
  }
  static off_t at(std::uint64_t chunk) { return static_cast<off_t>(chunk * weights::kChunkBytes); }

  [[noreturn]] void give_up(const std::string& why) const {
    ::unlink(part_.c_str());
    throw Refusal(kFailed, why);
  }

  weights::Resident tensor_;
  std::string path_;
  std::string part_;
  UniqueFd file_;
  std::uint64_t chunk_ = 0;
  std::vector<std::uint8_t> buffer_;
};

std::uint64_t there_bytes(const std::string& directory, const Wanted& wanted) {
  const std::uint64_t size_bytes = wanted.tensor.place->key.size_bytes;
  // One that was cut short is no good: the worker would take it as it is.
  return size_of(directory + "/" + wanted.name) == size_bytes ? size_bytes : 0;
}

// What has yet to be written of it.
std::uint64_t missing_of(const std::string& directory, const Wanted& wanted) {
  if (there_bytes(directory, wanted) > 0) return 0;
  const std::uint64_t size_bytes = wanted.tensor.place->key.size_bytes;
  return size_bytes - std::min(size_bytes, size_of(directory + "/" + wanted.name + kPart.data()));
}

void seed_for(const std::string& directory, const std::vector<Wanted>& all, WorkTime& time) {
  for (const Wanted& wanted : all) {
    if (there_bytes(directory, wanted) > 0) continue;
    Seed seed(directory, wanted);
    while (!seed.filled()) {
      seed.add_chunk();
      if (time.over()) return;
    }
    seed.finish();
    if (time.over()) return;
  }
}

// Rounded up.
std::string mib(std::uint64_t bytes) {
  constexpr std::uint64_t kMib = 1U << 20;
  return std::to_string((bytes + kMib - 1) / kMib) + " MiB";
}

void check_room(const std::string& directory, std::uint64_t needed_bytes) {
  const std::uint64_t free = disk_free_bytes(directory);
  if (needed_bytes <= free) return;
  throw Refusal(kFailed, "the disk of " + directory + " is too full: " + mib(needed_bytes) +
                             " are needed and " + mib(free) + " free");
}

std::string file_row(const std::string& name, const struct stat& status) {
  json::Object object;
  object.text("name", name).number("size_bytes", static_cast<std::uint64_t>(status.st_size));
  return object.number("mtime_s", static_cast<std::int64_t>(status.st_mtime)).str();
}

}  // namespace

std::string cached(const json::Value& request) {
  const std::string directory = directory_in(request);
  std::vector<std::string> rows;
  const auto names = entries_of(directory);
  if (!names && errno != ENOENT) throw_errno("cannot read " + directory);
  for (const std::string& name : names.value_or(std::vector<std::string>())) {
    struct stat status{};
    const bool ours = is_cached_name(name) && rows.size() < kListedMax;
    if (ours && ::lstat((directory + "/" + name).c_str(), &status) == 0) {
      if (S_ISREG(status.st_mode)) rows.push_back(file_row(name, status));
    }
  }
  json::Object object;
  object.raw("directory", json::quote_bytes(directory));
  return object.number("free_bytes", disk_free_bytes(directory))
      .raw("files", json::list(rows))
      .str();
}

std::string uncache(const json::Value& request) {
  const std::string directory = directory_in(request);
  std::uint64_t freed_bytes = 0;
  for (const std::string& name : json::texts_of(request, "names")) {
    if (!is_cached_name(name)) throw Refusal(kBadRequest, name + " is no file of a cache");
    const std::string path = directory + "/" + name;
    const std::uint64_t size_bytes = size_of(path);
    if (::unlink(path.c_str()) == 0) {
      freed_bytes += size_bytes;
    } else if (errno != ENOENT) {
      throw_errno("cannot delete " + path);
    }
  }
  return json::Object().number("freed_bytes", freed_bytes).str();
}

std::string seed(const json::Value& request) {
  const std::string directory = directory_in(request);
  const bool dry = json::flag_of(request, "dry", false);
  WorkTime time(request);
  const HashedModel model(path_in(request), time);
  json::Object object;
  object.number("hashed_bytes", model.done_bytes()).number("model_bytes", model.size_bytes());
  object.raw("directory", json::quote_bytes(directory));
  std::vector<Wanted> all;
  if (model.done()) all = wanted_of(model.files(), model.sums());
  std::uint64_t size_bytes = 0, missing_bytes = 0, seeded_bytes = 0;
  for (const Wanted& wanted : all) {
    size_bytes += wanted.tensor.place->key.size_bytes;
    missing_bytes += missing_of(directory, wanted);
  }
  if (!dry && !all.empty()) {
    check_room(directory, missing_bytes);
    fs::create_directories(directory);
    seed_for(directory, all, time);
  }
  std::vector<std::string> names;
  for (const Wanted& wanted : all) {
    seeded_bytes += there_bytes(directory, wanted);
    names.push_back(wanted.name);
  }
  object.number("size_bytes", size_bytes).number("seeded_bytes", seeded_bytes);
  object.raw("names", json::array(names)).number("free_bytes", disk_free_bytes(directory));
  return object.flag("complete", model.done() && (dry || seeded_bytes == size_bytes)).str();
}

namespace {

std::string row(const weights::TensorKey& key, const weights::TensorSums& sums) {
  std::vector<std::string> shape;
  for (const std::uint64_t count : key.shape) shape.push_back(std::to_string(count));
  json::Object object;
  object.text("name", key.name).number("type", key.type).raw("shape", json::list(shape));
  object.number("size_bytes", key.size_bytes);
  return object.text("blake3", weights::hex(sums.blake3())).str();
}

}  // namespace

std::string tensors(const json::Value& request) {
  const WorkTime time(request);
  const HashedModel model(path_in(request), time);
  std::vector<std::string> rows;
  for (std::size_t i = 0; model.done() && i < model.sums().size(); ++i) {
    rows.push_back(row(model.files().tensors()[i].key, model.sums()[i]));
  }
  json::Object object;
  object.number("done_bytes", model.done_bytes()).number("size_bytes", model.size_bytes());
  return object.flag("complete", model.done()).raw("tensors", json::list(rows)).str();
}

}  // namespace dllm::agent
