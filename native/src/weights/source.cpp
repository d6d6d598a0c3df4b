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
  struct stat status{};
  if (!file_ || ::fstat(file_.get(), &status) != 0) unreadable(path);
  if (!S_ISREG(status.st_mode)) throw ModelError(path + " is not a file");
  id_ = id_now();
}

FileId FileSource::id_now() const {
  struct stat status{};
  if (::fstat(file_.get(), &status) != 0) unreadable(id_.path);
  return id_of(id_.path, status);
}

bool FileSource::is_in_place() const {
  struct stat status{};
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

namespace {

constexpr std::size_t kWindowBytes = 256 * 1024;
// Ours; the largest real headers, vocabulary included, are under 32 MiB.
constexpr std::uint64_t kHeaderBytesMax = 128U << 20;

}  // namespace

void Cursor::fail(const std::string& what) const {
  throw ModelError(name_ + " " + what);
}

void Cursor::truncated() const {
  fail("is truncated: it ends at byte " + std::to_string(size_) + " inside its header");
}

std::string Cursor::text(std::size_t limit) {
  const auto length = number<std::uint64_t>();
  if (length > limit) corrupt("a name in it has " + std::to_string(length) + " bytes");
  const auto* at = reinterpret_cast<const char*>(hold(static_cast<std::size_t>(length)));
  place_ += length;
  return {at, static_cast<std::size_t>(length)};
}

void Cursor::skip(std::uint64_t bytes) {
  if (bytes > left()) truncated();
  place_ += bytes;
  if (place_ > kHeaderBytesMax) corrupt("its header is over 128 MiB");
}

void Cursor::skip_array(std::uint64_t count, std::uint64_t element_bytes) {
  if (count > left() / element_bytes) truncated();
  skip(count * element_bytes);
}

void Cursor::skip_strings(std::uint64_t count) {
  if (count > left() / sizeof(std::uint64_t)) truncated();
  for (; count > 0; --count) skip(number<std::uint64_t>());
}

const std::uint8_t* Cursor::hold(std::size_t bytes) {
  if (place_ < start_ || place_ + bytes > start_ + window_.size()) refill(bytes);
  return window_.data() + (place_ - start_);
}

void Cursor::refill(std::size_t bytes) {
  if (bytes > left()) truncated();
  window_.resize(std::max<std::uint64_t>(bytes, std::min<std::uint64_t>(left(), kWindowBytes)));
  window_.resize(source_.read(place_, window_));
  start_ = place_;
  // It shrank since it was opened.
  if (window_.size() < bytes) truncated();
}

}  // namespace dllm::weights
