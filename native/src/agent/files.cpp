#include "files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <stdexcept>
#include <string_view>

#include "posix.h"
#include "weights/hashes.h"

namespace dllm::agent {

namespace {

using std::chrono::steady_clock;

constexpr auto kWalkPatience = std::chrono::seconds(30);
constexpr std::uint64_t kBlockBytes = 131'072;
constexpr std::uint64_t kWholeBlocksMax = 32;
constexpr std::uint64_t kEndBlocks = 8;
constexpr std::uint64_t kMiddleBlocks = 8;
constexpr std::size_t kIdentityDigits = 32;

char lower(char letter) {
  return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
}

bool ends_with(std::string_view text, std::string_view suffix) {
  if (text.size() < suffix.size()) return false;
  return std::equal(suffix.begin(), suffix.end(), text.end() - suffix.size(),
                    [](char one, char other) { return lower(one) == lower(other); });
}

class Walker {
 public:
  Walker(const std::string& suffix, int depth, std::size_t limit)
      : suffix_(suffix), depth_(depth), limit_(limit) {}

  void enter(const std::string& folder, int level) {
    struct stat status{};
    if (::stat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) return;
    // A link may lead back to a folder above.
    if (!seen_.emplace(status.st_dev, status.st_ino).second) return;
    for (const std::string& name : entries_of(folder).value_or(std::vector<std::string>())) {
      if (steady_clock::now() > deadline_) walk_.complete = false;
      if (!walk_.complete) return;
      visit(folder + "/" + name, level);
    }
  }

  Walk result() && {
    std::sort(walk_.files.begin(), walk_.files.end(),
              [](const FoundFile& one, const FoundFile& other) { return one.path < other.path; });
    return std::move(walk_);
  }

 private:
  void visit(const std::string& path, int level) {
    struct stat status{};
    if (::stat(path.c_str(), &status) != 0) {
      if (errno == ENOENT && ends_with(path, suffix_)) add({path, 0, 0, ""});
    } else if (S_ISDIR(status.st_mode)) {
      if (level < depth_) enter(path, level + 1);
    } else if (S_ISREG(status.st_mode) && ends_with(path, suffix_)) {
      add({path, static_cast<std::uint64_t>(status.st_size), mtime_ns(status),
           std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino)});
    }
  }

  void add(FoundFile file) {
    if (walk_.files.size() == limit_) {
      walk_.complete = false;
      return;
    }
    walk_.files.push_back(std::move(file));
  }

  const std::string& suffix_;
  int depth_;
  std::size_t limit_;
  steady_clock::time_point deadline_ = steady_clock::now() + kWalkPatience;
  std::set<std::pair<dev_t, ino_t>> seen_;
  Walk walk_;
};

}  // namespace

std::int64_t mtime_ns(const struct stat& status) {
#ifdef __APPLE__
  const timespec& time = status.st_mtimespec;
#else
  const timespec& time = status.st_mtim;
#endif
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

Walk find_files(const std::vector<std::string>& folders, const std::string& suffix, int depth,
                std::size_t limit) {
  Walker walker(suffix, depth, limit);
  for (const std::string& folder : folders) walker.enter(folder, 0);
  return std::move(walker).result();
}

std::vector<std::pair<std::uint64_t, std::uint64_t>> sampled(std::uint64_t size_bytes) {
  const std::uint64_t blocks = (size_bytes + kBlockBytes - 1) / kBlockBytes;
  if (blocks <= kWholeBlocksMax) return {{0, size_bytes}};
  const std::uint64_t end = kEndBlocks * kBlockBytes;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> pieces = {{0, end}};
  for (std::uint64_t part = 1; part <= kMiddleBlocks; ++part) {
    pieces.emplace_back(blocks * part / (kMiddleBlocks + 1) * kBlockBytes, kBlockBytes);
  }
  pieces.emplace_back((blocks - kEndBlocks) * kBlockBytes, end);
  return pieces;
}

OpenFile open_file(const std::string& path) {
  // A pipe must not keep us waiting for its writer.
  UniqueFd file = open_at(AT_FDCWD, path, O_RDONLY | O_NONBLOCK);
  struct stat status{};
  check(::fstat(file.get(), &status), "cannot read " + path);
  if (!S_ISREG(status.st_mode)) throw std::runtime_error(path + " is not a file");
  return {std::move(file), static_cast<std::uint64_t>(status.st_size)};
}

std::string identity_of(const std::string& path) {
  const auto [file, size] = open_file(path);
  Sha256 hash;
  for (const auto& [offset, length] : sampled(size)) {
    check(::lseek(file.get(), static_cast<off_t>(offset), SEEK_SET), "cannot read " + path);
    hash.add(read_all(file.get(), static_cast<std::size_t>(length)));
  }
  return "1-" + std::to_string(size) + "-" + hash.hex().substr(0, kIdentityDigits);
}

}  // namespace dllm::agent
