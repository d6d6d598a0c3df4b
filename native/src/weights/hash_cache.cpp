#include "hash_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
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
constexpr std::uint32_t kVersion = 2;  // 1 had no BLAKE3
// A chunk has eight bytes here: that is enough for models of 8 TB.
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
  std::vector<std::uint64_t> numbers(std::uint64_t most) {
    const auto count = number<std::uint64_t>();
    fine_ = fine_ && count <= most && count <= data_.size() / sizeof(std::uint64_t);
    std::vector<std::uint64_t> values;
    for (std::uint64_t i = 0; fine_ && i < count; ++i) values.push_back(number<std::uint64_t>());
    return values;
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
  writer.number<std::uint64_t>(kChunkBytes).number(xxh64(bytes_of(belonging(ids, files))));
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

TensorSums read_sums(Unpacker& reader, std::uint64_t size_bytes) {
  TensorSums sums;
  sums.fnv1a = reader.number<std::uint64_t>();
  sums.xxh64 = reader.number<std::uint64_t>();
  sums.blake3 = reader.number<Blake3Hash>();
  sums.chunks = reader.numbers(chunks_in(size_bytes));
  return sums;
}

HalfTensor read_half(Unpacker& reader, std::uint64_t chunks_max) {
  HalfTensor half;
  half.fnv1a = reader.number<std::uint64_t>();
  for (std::uint64_t& lane : half.lanes) lane = reader.number<std::uint64_t>();
  half.chunks = reader.numbers(chunks_max);
  for (std::size_t i = 0; i < half.chunks.size(); ++i) {
    half.nodes.push_back(reader.number<Blake3Node>());
  }
  return half;
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
  for (const TensorSums& sums : so_far.whole) {
    writer.number(sums.fnv1a).number(sums.xxh64).number(sums.blake3).numbers(sums.chunks);
  }
  writer.number(so_far.half.fnv1a);
  for (const std::uint64_t lane : so_far.half.lanes) writer.number(lane);
  writer.numbers(so_far.half.chunks);
  for (const Blake3Node& node : so_far.half.nodes) writer.number(node);
  std::string data = preamble(ids, files) + writer.take();
  return data + Packer().number(xxh64(bytes_of(data))).take();
}

std::optional<TableSoFar> decode_hash_cache(std::string_view data, const std::vector<FileId>& ids,
                                            const ModelFiles& files) {
  if (data.size() > kHashCacheBytesMax) return std::nullopt;
  constexpr std::size_t kSumBytes = sizeof(std::uint64_t);
  if (data.size() < kSumBytes) return std::nullopt;
  const std::string_view before = data.substr(0, data.size() - kSumBytes);
  Unpacker end(data.substr(before.size()));
  if (end.number<std::uint64_t>() != xxh64(bytes_of(before))) return std::nullopt;
  Unpacker reader(before);
  if (!reader.starts_with(preamble(ids, files))) return std::nullopt;
  const std::vector<TensorPlace>& tensors = files.tensors();
  const auto whole = reader.number<std::uint64_t>();
  if (whole > tensors.size()) return std::nullopt;
  TableSoFar so_far;
  for (std::uint64_t i = 0; i < whole; ++i) {
    const std::uint64_t size_bytes = tensors[i].key.size_bytes;
    so_far.whole.push_back(read_sums(reader, size_bytes));
    if (so_far.whole.back().chunks.size() != chunks_in(size_bytes)) return std::nullopt;
  }
  const std::uint64_t next_bytes = whole < tensors.size() ? tensors[whole].key.size_bytes : 0;
  // Of a tensor with all its chunks more would be known.
  so_far.half = read_half(reader, std::max<std::uint64_t>(chunks_in(next_bytes), 1) - 1);
  if (!reader.ended()) return std::nullopt;
  return so_far;
}

HashCache::HashCache(std::string directory, const std::vector<FileId>& ids)
    : directory_(std::move(directory)), ids_(ids) {
  Xxh64 paths;
  for (const FileId& id : ids_) {
    paths.add(bytes_of(id.path));
    paths.add(bytes_of(std::string_view("\0", 1)));
  }
  char name[32];
  std::snprintf(name, sizeof name, "%016llx.table", static_cast<unsigned long long>(paths.value()));
  name_ = name;
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
