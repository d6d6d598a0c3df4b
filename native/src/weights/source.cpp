#include "source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <system_error>

#include "agent/files.h"
#include "agent/memory.h"

namespace dllm::weights {

namespace {

FileId id_of(const std::string& path, const struct stat& status) {
  return {path, static_cast<std::uint64_t>(status.st_size), agent::mtime_ns(status), status.st_ino};
}

[[noreturn]] void unreadable(const std::string& path) {
  throw ModelError(path + " cannot be read (" + std::strerror(errno) + ")");
}

}  // namespace

FileSource::FileSource(const std::string& path) {
  // A pipe must not keep us waiting for its writer.
  file_.reset(retry([&] { return ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC); }));
  id_.path = path;
  struct stat status {};
  if (!file_ || ::fstat(file_.get(), &status) != 0) unreadable(path);
  if (!S_ISREG(status.st_mode)) throw ModelError(path + " is not a file");
  id_ = id_now();
}

FileId FileSource::id_now() const {
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) unreadable(id_.path);
  return id_of(id_.path, status);
}

bool FileSource::is_in_place() const {
  struct stat status {};
  return ::stat(id_.path.c_str(), &status) == 0 && id_of(id_.path, status) == id_;
}

std::size_t FileSource::read(std::uint64_t offset, std::span<std::uint8_t> into) {
  std::size_t done = 0;
  while (done < into.size()) {
    const ssize_t count = retry([&] {
      return ::pread(file_.get(), into.data() + done, into.size() - done,
                     static_cast<off_t>(offset + done));
    });
    if (count < 0) unreadable(id_.path);
    if (count == 0) break;
    done += static_cast<std::size_t>(count);
  }
  return done;
}

void FileSource::forget(std::uint64_t offset, std::uint64_t size_bytes) {
#ifdef POSIX_FADV_DONTNEED
  if (!drops_) return;
  ::posix_fadvise(file_.get(), static_cast<off_t>(offset), static_cast<off_t>(size_bytes),
                  POSIX_FADV_DONTNEED);
#else
  static_cast<void>(offset + size_bytes);
#endif
}

void FileSource::drop_cache() {
  drops_ = true;
#ifdef F_NOCACHE
  ::fcntl(file_.get(), F_NOCACHE, 1);
#endif
}

bool fits_twice(std::uint64_t size_bytes) {
  const agent::Memory memory = agent::machine_memory();
  std::uint64_t available = memory.total_bytes;
  for (const agent::MemoryLimit& limit : memory.limits) {
    available = std::min(available, limit.limit_bytes);
  }
  return size_bytes <= available / 2;
}

}  // namespace dllm::weights
