#include "process_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "posix.h"

#ifdef __APPLE__
#include <libproc.h>
#endif

namespace dllm {

#ifdef __APPLE__

std::string start_id(pid_t pid) {
  proc_bsdinfo info{};
  // Answers nothing for a zombie (its last but one argument would ask for them).
  const int size = ::proc_pidinfo(pid, PROC_PIDTBSDINFO, 0, &info, sizeof info);
  if (size != static_cast<int>(sizeof info)) return "";
  return std::to_string(info.pbi_start_tvsec * 1'000'000 + info.pbi_start_tvusec);
}

#else

namespace {

constexpr std::size_t kProcFileMax = 4096;
constexpr int kFieldsBetweenStateAndStart = 18;

std::string slurp(const std::string& path) {
  try {
    return read_all(open_at(AT_FDCWD, path, O_RDONLY).get(), kProcFileMax);
  } catch (const std::system_error&) {
    return "";
  }
}

}  // namespace

std::string start_id(pid_t pid) {
  const std::string stat = slurp("/proc/" + std::to_string(pid) + "/stat");
  // The second field is the program's name in brackets and may itself hold brackets.
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return "";
  std::istringstream fields(stat.substr(name_end + 1));
  std::string state, field, start_ticks, boot_id;
  fields >> state;
  for (int i = 0; i < kFieldsBetweenStateAndStart; ++i) fields >> field;
  fields >> start_ticks;
  if (!fields || state == "Z" || state == "X") return "";
  std::istringstream(slurp("/proc/sys/kernel/random/boot_id")) >> boot_id;
  return boot_id + ":" + start_ticks;
}

#endif

namespace {

using std::chrono::steady_clock;

// A supervisor whose child ended needs a moment to write exit.json and let go.
constexpr auto kClaimPatience = std::chrono::seconds(2);
constexpr auto kClaimPause = std::chrono::milliseconds(5);

constexpr const char* kRotatedLogFile = "log.1";
constexpr const char* kPreviousLogFile = "log.old";
constexpr std::array<const char*, 12> kOurFiles = {
    kProcessFile,  kExitFile,    kLogFile,      kRotatedLogFile,    kPreviousLogFile, kLockFile,
    kStoppingFile, kPrivateFile, "private.tmp", "process.json.tmp", "exit.json.tmp",  "log.1.tmp"};

bool is_process_file(std::string_view name) {
  return std::any_of(kOurFiles.begin(), kOurFiles.end(),
                     [&](const char* ours) { return name == ours; });
}

// What is not of a process must never be deleted.
void refuse_foreign_files(const std::string& path) {
  const auto names = entries_of(path);
  if (!names && errno == ENOENT) return;
  if (!names) throw_errno("cannot read " + path);
  for (const std::string& name : *names) {
    if (is_process_file(name)) continue;
    throw Refused(path + " is not a process directory: it holds '" + name + "'");
  }
}

// The living process a directory records, if any. We wrote the file, so its first two keys are
// known; what cannot be read belongs to nobody.
std::optional<pid_t> living_owner(int dir) {
  const UniqueFd file(retry([&] { return ::openat(dir, kProcessFile, O_RDONLY | O_CLOEXEC); }));
  if (!file) return std::nullopt;
  const std::string text = read_all(file.get(), kProcessFileMax);
  int pid = 0;
  char recorded[128] = "";
  const char* form = R"( { "pid" : %d , "start_id" : "%127[^"]")";
  if (std::sscanf(text.c_str(), form, &pid, recorded) != 2 || pid <= 0) return std::nullopt;
  if (start_id(pid) != recorded) return std::nullopt;
  return pid;
}

void refuse_living_owner(int dir, const std::string& path) {
  if (const auto pid = living_owner(dir)) {
    throw Refused("a process already runs in " + path + " (pid " + std::to_string(*pid) + ")");
  }
}

bool try_lock(int fd) {
  if (retry([&] { return ::flock(fd, LOCK_EX | LOCK_NB); }) == 0) return true;
  if (errno == EWOULDBLOCK) return false;
  throw_errno("cannot lock the process directory");
}

// False when the directory was deleted between our opening the lock and locking it.
bool still_there(const std::string& path, int lock) {
  struct stat ours{}, found{};
  return ::fstat(lock, &ours) == 0 && ::stat((path + "/" + kLockFile).c_str(), &found) == 0 &&
         ours.st_ino == found.st_ino && ours.st_dev == found.st_dev;
}

// The former process's log is kept once: it says why that process ended.
void clear(int dir) {
  ::renameat(dir, kLogFile, dir, kPreviousLogFile);
  for (const char* name : kOurFiles) {
    if (name != kLockFile && name != kPreviousLogFile) ::unlinkat(dir, name, 0);
  }
}

// Opens a file or directory; none when somebody deleted it just now.
UniqueFd open_unless_gone(int base, const std::string& path, int flags, const std::string& what) {
  UniqueFd fd(retry([&] { return ::openat(base, path.c_str(), flags | O_CLOEXEC, 0600); }));
  if (!fd && errno != ENOENT) throw_errno(what);
  return fd;
}

// Empty when somebody deleted a parent that was empty just now.
std::string make_directory(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error == std::errc::no_such_file_or_directory) return "";
  if (error) throw std::system_error(error, "cannot create " + path);
  return std::filesystem::weakly_canonical(path).string();
}

}  // namespace

void remove_process_files(int directory) noexcept {
  for (const char* name : kOurFiles) ::unlinkat(directory, name, 0);
}

std::optional<ProcessDir> ProcessDir::try_claim(const std::string& path) {
  UniqueFd dir = open_unless_gone(AT_FDCWD, path, O_RDONLY | O_DIRECTORY, "cannot open " + path);
  if (!dir) return std::nullopt;
  refuse_foreign_files(path);
  refuse_living_owner(dir.get(), path);
  UniqueFd lock =
      open_unless_gone(dir.get(), kLockFile, O_RDWR | O_CREAT, "cannot write in " + path);
  if (!lock || !try_lock(lock.get()) || !still_there(path, lock.get())) return std::nullopt;
  refuse_living_owner(dir.get(), path);
  check(::fchmod(dir.get(), 0700), "cannot make private " + path);
  clear(dir.get());
  return ProcessDir(path, std::move(dir), std::move(lock));
}

ProcessDir ProcessDir::claim(const std::string& path) {
  const auto deadline = steady_clock::now() + kClaimPatience;
  do {
    const std::string real = make_directory(path);
    if (real.empty()) continue;
    try {
      if (auto claimed = try_claim(real)) return std::move(*claimed);
    } catch (...) {
      ::rmdir(real.c_str());  // succeeds only on the empty one we made
      throw;
    }
    std::this_thread::sleep_for(kClaimPause);
  } while (steady_clock::now() < deadline);
  throw Refused(path + " is being used by another start or stop");
}

UniqueFd ProcessDir::open_log() const {
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC;
  const int log = retry([&] { return ::openat(fd(), kLogFile, flags, 0600); });
  return UniqueFd(check(log, "cannot write " + path_ + "/" + kLogFile));
}

void ProcessDir::write(const char* name, std::string_view text) const {
  try {
    write_file_atomic(fd(), name, text);
  } catch (const std::system_error& error) {
    throw std::system_error(error.code(), "cannot write " + path_ + "/" + name);
  }
}

void ProcessDir::discard(const char* name) const noexcept {
  ::unlinkat(fd(), name, 0);
}

void ProcessDir::remove() const noexcept {
  remove_process_files(fd());
  ::rmdir(path_.c_str());
}

namespace {

constexpr std::size_t kCopyBlock = 256 * 1024;

std::uint64_t size_of(int fd) {
  struct stat status{};
  return ::fstat(fd, &status) == 0 ? static_cast<std::uint64_t>(status.st_size) : 0;
}

// Stops after `most` bytes, so that a writer faster than us cannot keep us here.
void copy_from(int in, std::uint64_t offset, std::uint64_t most, int out) {
  std::vector<char> block(kCopyBlock);
  for (const std::uint64_t end = offset + most; offset < end;) {
    const ssize_t count =
        retry([&] { return ::pread(in, block.data(), block.size(), static_cast<off_t>(offset)); });
    if (check(count, "cannot read the log") == 0) return;
    write_all(out, {block.data(), static_cast<std::size_t>(count)}, "cannot copy the log");
    offset += static_cast<std::uint64_t>(count);
  }
}

void copy_newest(int directory, int log, std::uint64_t limit) {
  const std::string temporary = std::string(kRotatedLogFile) + ".tmp";
  try {
    const UniqueFd copy = open_at(directory, temporary, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    copy_from(log, size_of(log) - limit, 2 * limit, copy.get());
    check(::renameat(directory, temporary.c_str(), directory, kRotatedLogFile), "rename");
  } catch (const std::exception&) {
    ::unlinkat(directory, temporary.c_str(), 0);
  }
}

}  // namespace

bool enforce_log_limit(int directory, std::uint64_t limit) noexcept {
  if (limit == 0) return false;
  try {
    const UniqueFd log = open_at(directory, kLogFile, O_RDWR | O_NOFOLLOW);
    if (size_of(log.get()) <= limit) return false;
    copy_newest(directory, log.get(), limit);
    return ::ftruncate(log.get(), 0) == 0;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace dllm
