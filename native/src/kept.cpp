#include "kept.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>

#include "home/hashes.h"
#include "posix.h"

namespace dllm {

namespace {

std::uint64_t sum(std::string_view text) {
  return home::xxh64({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
}

}  // namespace

std::string cache_directory(const std::string& kind) {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && cache[0] == '/') return std::string(cache) + "/dllm-tui/" + kind;
  const char* const home = std::getenv("HOME");
  if (home != nullptr && home[0] == '/') return std::string(home) + "/.cache/dllm-tui/" + kind;
  return "";
}

void keep(const std::string& directory, const std::string& name, std::string_view data) {
  std::filesystem::create_directories(directory);
  const UniqueFd held = open_at(AT_FDCWD, directory, O_RDONLY | O_DIRECTORY);
  ::fchmod(held.get(), 0700);
  // Two at once would write into the same temporary file.
  check(retry([&] { return ::flock(held.get(), LOCK_EX); }), "cannot lock " + directory);
  write_file_atomic(held.get(), name, data);
}

std::string with_sum(std::string data) {
  const std::string end = Packer().number(sum(data)).take();
  return data + end;
}

std::optional<std::string_view> without_sum(std::string_view data) {
  constexpr std::size_t kSumBytes = sizeof(std::uint64_t);
  if (data.size() < kSumBytes) return std::nullopt;
  const std::string_view before = data.substr(0, data.size() - kSumBytes);
  Unpacker end(data.substr(before.size()));
  if (end.number<std::uint64_t>() != sum(before)) return std::nullopt;
  return before;
}

}  // namespace dllm
