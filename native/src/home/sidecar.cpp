#include "sidecar.h"

#include <algorithm>
#include <cstdio>

#include "kept.h"
#include "posix.h"

namespace dllm::home {

namespace {

constexpr std::string_view kMagic = "dllmtens";
constexpr std::uint32_t kVersion = 1;
// A chunk has eight bytes here: that is enough for models of 8 TB.
constexpr std::size_t kSidecarBytesMax = 64U << 20;
// Of models that are gone nobody would delete them.
constexpr std::size_t kTablesMax = 256;
// FAT tells two seconds apart.
constexpr std::int64_t kFreshNs = 2'000'000'000;

Bytes bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

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

TensorSums read_sums(Unpacker& reader, std::uint64_t size_bytes) {
  TensorSums sums;
  sums.fnv1a = reader.number<std::uint64_t>();
  sums.xxh64 = reader.number<std::uint64_t>();
  sums.chunks = reader.numbers(chunks_in(size_bytes));
  return sums;
}

HalfTensor read_half(Unpacker& reader, std::uint64_t chunks_max) {
  HalfTensor half;
  half.fnv1a = reader.number<std::uint64_t>();
  for (std::uint64_t& lane : half.lanes) lane = reader.number<std::uint64_t>();
  half.chunks = reader.numbers(chunks_max);
  return half;
}

}  // namespace

std::string sidecar_directory() {
  return cache_directory("tensors");
}

std::string encode_sidecar(const std::vector<FileId>& ids, const ModelFiles& files,
                           const TableSoFar& so_far) {
  Packer writer;
  writer.number<std::uint64_t>(so_far.whole.size());
  for (const TensorSums& sums : so_far.whole) {
    writer.number(sums.fnv1a).number(sums.xxh64).numbers(sums.chunks);
  }
  writer.number(so_far.half.fnv1a);
  for (const std::uint64_t lane : so_far.half.lanes) writer.number(lane);
  writer.numbers(so_far.half.chunks);
  return with_sum(preamble(ids, files) + writer.take());
}

std::optional<TableSoFar> decode_sidecar(std::string_view data, const std::vector<FileId>& ids,
                                         const ModelFiles& files) {
  if (data.size() > kSidecarBytesMax) return std::nullopt;
  const std::optional<std::string_view> before_sum = without_sum(data);
  if (!before_sum) return std::nullopt;
  Unpacker reader(*before_sum);
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

Sidecar::Sidecar(std::string directory, const std::vector<FileId>& ids)
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

std::optional<TableSoFar> Sidecar::load(const ModelFiles& files) const {
  const std::optional<std::string> data = read_kept(path_, kSidecarBytesMax);
  if (!data) return std::nullopt;
  return decode_sidecar(*data, ids_, files);
}

void Sidecar::save(const ModelFiles& files, const TableSoFar& so_far) const {
  keep(directory_, name_, encode_sidecar(ids_, files, so_far));
  keep_latest(directory_, kTablesMax);
}

bool too_fresh(const std::vector<FileId>& ids, std::int64_t now_ns) {
  // One from the future is not: a change would set it back.
  return std::ranges::any_of(ids, [&](const FileId& id) {
    return id.mtime_ns > now_ns - kFreshNs && id.mtime_ns < now_ns + kFreshNs;
  });
}

}  // namespace dllm::home
