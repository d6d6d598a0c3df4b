#include "kept.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <utility>

#include "home/hashes.h"
#include "posix.h"

namespace dllm {

namespace {

namespace fs = std::filesystem;

std::uint64_t sum(std::string_view text) {
  return home::xxh64({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
}

// Of a directory of ours, until it is closed: two at once would write into the same temporary file.
UniqueFd hold(const std::string& directory) {
  UniqueFd held = open_at(AT_FDCWD, directory, O_RDONLY | O_DIRECTORY);
  check(retry([&] { return ::flock(held.get(), LOCK_EX); }), "cannot lock " + directory);
  return held;
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
  fs::create_directories(directory);
  const UniqueFd held = hold(directory);
  ::fchmod(held.get(), 0700);
  write_file_atomic(held.get(), name, data);
}

std::optional<std::string> read_kept(const std::string& path, std::size_t bytes_max) {
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
  const UniqueFd file(retry([&] { return ::open(path.c_str(), kFlags); }));
  if (!file) return std::nullopt;
  ::futimens(file.get(), nullptr);
  return read_all(file.get(), bytes_max + 1);
}

void keep_latest(const std::string& directory, std::size_t files_max) {
  const UniqueFd held = hold(directory);
  std::vector<std::pair<fs::file_time_type, fs::path>> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    if (entry.is_regular_file()) files.emplace_back(entry.last_write_time(), entry.path());
  }
  std::ranges::sort(files, std::greater<>());
  for (std::size_t i = files_max; i < files.size(); ++i) fs::remove(files[i].second);
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
