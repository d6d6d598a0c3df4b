#include "process_dir.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>

#include "identity.h"

namespace dllm {

namespace {

using std::chrono::steady_clock;

// A supervisor whose child ended needs a moment to write exit.json and let go.
constexpr auto kClaimPatience = std::chrono::seconds(2);
constexpr auto kClaimPause = std::chrono::milliseconds(5);

constexpr std::array<const char*, 12> kOurFiles = {
    kProcessFile, kExitFile,     kLogFile,     kRotatedLogFile,    kPreviousLogFile, kLockFile,
    kStoppingFile, kPrivateFile, "private.tmp", "process.json.tmp", "exit.json.tmp", "log.1.tmp"};

// A slip such as `--dir ~/Documents` must never delete anything.
void refuse_foreign_files(const std::string& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(path.c_str()), ::closedir);
  if (!listing && errno == ENOENT) return;
  if (!listing) throw_errno("cannot read " + path);
  while (const dirent* entry = ::readdir(listing.get())) {
    const std::string name = entry->d_name;
    if (name == "." || name == ".." || is_process_file(name)) continue;
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

bool is_process_file(std::string_view name) {
  return std::any_of(kOurFiles.begin(), kOurFiles.end(),
                     [&](const char* ours) { return name == ours; });
}

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

}  // namespace dllm
