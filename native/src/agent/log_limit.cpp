#include "log_limit.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <exception>
#include <string>
#include <vector>

#include "posix.h"
#include "process_dir.h"

namespace dllm {

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
