#include "hash_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <utility>

#include "posix.h"

namespace dllm::weights {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "dllmtens";
constexpr std::uint32_t kVersion = 3;
// A chunk has 32 bytes here: that is enough for models of 2 TB.
constexpr std::size_t kHashCacheBytesMax = 64U << 20;
// Of models that are gone nobody would delete them.
constexpr std::size_t kTablesMax = 256;
// FAT tells two seconds apart.
constexpr std::int64_t kFreshNs = 2'000'000'000;

Bytes bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

// Its reads give zeros from the first one on that goes beyond the end.
class Unpacker {
 public:
  explicit Unpacker(std::string_view data) : data_(data) {}

  template <typename Number>
  Number number() {
    Number value{};
    if (data_.size() < sizeof value) {
      fine_ = false;
      data_ = {};
      return value;
    }
    std::memcpy(&value, data_.data(), sizeof value);
    data_.remove_prefix(sizeof value);
    return value;
  }
  std::string text() {
    const auto size = number<std::uint64_t>();
    fine_ = fine_ && size <= data_.size();
    const std::string text(data_.substr(0, fine_ ? size : 0));
    data_.remove_prefix(text.size());
    return text;
  }
  TensorSums sums(std::uint64_t chunks_max) {
    TensorSums sums{number<std::uint64_t>(), {}};
    const auto count = number<std::uint64_t>();
    fine_ = fine_ && count <= chunks_max && count <= data_.size() / sizeof(Blake3Hash);
    for (std::uint64_t i = 0; fine_ && i < count; ++i) sums.chunks.push_back(number<Blake3Hash>());
    return sums;
  }
  // Whether what comes next is just that text.
  bool starts_with(std::string_view text) {
    fine_ = fine_ && data_.starts_with(text);
    if (fine_) data_.remove_prefix(text.size());
    return fine_;
  }
  [[nodiscard]] bool fine() const { return fine_; }
  [[nodiscard]] bool ended() const { return fine_ && data_.empty(); }

 private:
  std::string_view data_;
  bool fine_ = true;
};

// What a table belongs to: the files as they were, and where each tensor lies in them.
std::string belonging(const std::vector<FileId>& ids, const ModelFiles& files) {
  Packer writer;
  writer.number<std::uint64_t>(ids.size());
  for (const FileId& id : ids) {
    writer.text(id.path).number(id.size_bytes).number(id.mtime_ns).number(id.inode);
  }
  writer.number<std::uint64_t>(files.tensors().size());
  for (const TensorPlace& place : files.tensors()) {
    writer.text(place.key.name).number(place.key.type).number(place.key.size_bytes);
    for (const std::uint64_t count : place.key.shape) writer.number(count);
    writer.number(place.file).number(place.offset);
  }
  return writer.take();
}

std::string preamble(const std::vector<FileId>& ids, const ModelFiles& files) {
  Packer writer;
  writer.number<std::uint64_t>(kChunkBytes).number(blake3(bytes_of(belonging(ids, files))));
  Packer versioned;
  versioned.number(kVersion);
  return std::string(kMagic) + versioned.take() + writer.take();
}

// Until it is closed: two at once would write into the same temporary file.
UniqueFd lock_directory(const std::string& directory) {
  UniqueFd held = open_at(AT_FDCWD, directory, O_RDONLY | O_DIRECTORY);
  check(retry([&] { return ::flock(held.get(), LOCK_EX); }), "cannot lock " + directory);
  return held;
}

// Deletes the files that were used longest ago, all but so many.
void delete_oldest(const std::string& directory, std::size_t files_max) {
  std::vector<std::pair<fs::file_time_type, fs::path>> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    if (entry.is_regular_file()) files.emplace_back(entry.last_write_time(), entry.path());
  }
  std::ranges::sort(files, std::greater<>());
  for (std::size_t i = files_max; i < files.size(); ++i) fs::remove(files[i].second);
}

}  // namespace

std::string hash_cache_directory() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && cache[0] == '/') return std::string(cache) + "/dllm-tui/tensors";
  const char* const home = std::getenv("HOME");
  if (home != nullptr && home[0] == '/') return std::string(home) + "/.cache/dllm-tui/tensors";
  return "";
}

std::string encode_hash_cache(const std::vector<FileId>& ids, const ModelFiles& files,
                              const TableSoFar& so_far) {
  Packer writer;
  writer.number<std::uint64_t>(so_far.whole.size());
  const auto write = [&](const TensorSums& sums) { writer.number(sums.fnv1a).numbers(sums.chunks); };
  std::ranges::for_each(so_far.whole, write);
  write(so_far.half);
  std::string data = preamble(ids, files) + writer.take();
  return data + Packer().number(blake3(bytes_of(data))).take();
}

std::optional<TableSoFar> decode_hash_cache(std::string_view data, const std::vector<FileId>& ids,
                                            const ModelFiles& files) {
  if (data.size() > kHashCacheBytesMax) return std::nullopt;
  if (data.size() < sizeof(Blake3Hash)) return std::nullopt;
  const std::string_view before = data.substr(0, data.size() - sizeof(Blake3Hash));
  Unpacker end(data.substr(before.size()));
  if (end.number<Blake3Hash>() != blake3(bytes_of(before))) return std::nullopt;
  Unpacker reader(before);
  if (!reader.starts_with(preamble(ids, files))) return std::nullopt;
  const std::vector<TensorPlace>& tensors = files.tensors();
  const auto whole = reader.number<std::uint64_t>();
  if (whole > tensors.size()) return std::nullopt;
  TableSoFar so_far;
  for (std::uint64_t i = 0; i < whole; ++i) {
    const std::uint64_t chunks = chunks_in(tensors[i].key.size_bytes);
    so_far.whole.push_back(reader.sums(chunks));
    if (so_far.whole.back().chunks.size() != chunks) return std::nullopt;
  }
  const std::uint64_t next_bytes = whole < tensors.size() ? tensors[whole].key.size_bytes : 0;
  // Of a tensor with all its chunks more would be known.
  so_far.half = reader.sums(std::max<std::uint64_t>(chunks_in(next_bytes), 1) - 1);
  if (!reader.ended()) return std::nullopt;
  return so_far;
}

HashCache::HashCache(std::string directory, const std::vector<FileId>& ids)
    : directory_(std::move(directory)), ids_(ids) {
  std::string paths;
  for (const FileId& id : ids_) paths.append(id.path).push_back('\0');
  name_ = hex(blake3(bytes_of(paths))) + ".table";
  path_ = directory_ + "/" + name_;
}

std::optional<TableSoFar> HashCache::load(const ModelFiles& files) const {
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
  const UniqueFd file(retry([&] { return ::open(path_.c_str(), kFlags); }));
  if (!file) return std::nullopt;
  // Used now: the others are deleted before it.
  ::futimens(file.get(), nullptr);
  return decode_hash_cache(read_all(file.get(), kHashCacheBytesMax + 1), ids_, files);
}

void HashCache::save(const ModelFiles& files, const TableSoFar& so_far) const {
  fs::create_directories(directory_);
  const UniqueFd held = lock_directory(directory_);
  ::fchmod(held.get(), 0700);
  write_file_atomic(held.get(), name_, encode_hash_cache(ids_, files, so_far));
  delete_oldest(directory_, kTablesMax);
}

bool too_fresh(const std::vector<FileId>& ids, std::int64_t now_ns) {
  // One from the future is not: a change would set it back.
  return std::ranges::any_of(ids, [&](const FileId& id) {
    return id.mtime_ns > now_ns - kFreshNs && id.mtime_ns < now_ns + kFreshNs;
  });
}

}  // namespace dllm::weights
