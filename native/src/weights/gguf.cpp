#include "gguf.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <unordered_set>

#include "hashes.h"
#include "protocol/tensor.h"
#include "source.h"

namespace dllm::weights {

namespace {

constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr std::uint64_t kAlignmentDefault = 32;
// Ours; real files have under 100 keys, and the most tensors seen are 47,000.
constexpr std::uint64_t kKeysMax = 65'536;
constexpr std::uint64_t kTensorsMax = 131'072;
constexpr std::size_t kKeyBytesMax = 65'535;
constexpr std::size_t kNameBytesMax = 63;  // GGML_MAX_NAME - 1
constexpr std::uint64_t kKeyBytesLeast = 8 + 1 + 4 + 1;
constexpr std::uint64_t kTensorBytesLeast = 8 + 4 + 4 + 8;
// A chunk of a hole has one: that is enough for models of 4 TB.
constexpr std::uint64_t kHoleNumbersMax = 1U << 22;
constexpr std::size_t kSha256Digits = 64;
constexpr std::uint64_t kElementsMax = std::numeric_limits<std::int64_t>::max();

enum ValueType : std::uint32_t {
  kUint8 = 0,
  kUint16 = 2,
  kUint32 = 4,
  kString = 8,
  kArray = 9,
  kUint64 = 10
};

// Bytes of a number of each type; 0 where it is none.
std::uint64_t number_bytes(std::uint32_t type) {
  constexpr std::array<std::uint8_t, 13> kBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return type < kBytes.size() ? kBytes[type] : 0;
}

// What we need to know beside the tensors.
struct Settings {
  std::uint64_t alignment = kAlignmentDefault;
  std::uint32_t part = 0;
  std::uint32_t parts = 1;
  bool is_sparse = false;
  std::string list;  // of a sparse file, as are the following
  std::vector<std::uint64_t> kept;
  std::vector<Blake3Hash> chunks;
};

void skip_value(Cursor& cursor, std::uint32_t type) {
  if (type == kString) return cursor.skip(cursor.number<std::uint64_t>());
  if (type == kArray) {
    const auto element = cursor.number<std::uint32_t>();
    const auto count = cursor.number<std::uint64_t>();
    if (element == kString) return cursor.skip_strings(count);
    // Arrays of arrays too: llama.cpp refuses them, and they would nest for ever.
    if (number_bytes(element) == 0) cursor.corrupt("an array of type " + std::to_string(element));
    return cursor.skip_array(count, number_bytes(element));
  }
  if (number_bytes(type) == 0) cursor.corrupt("a value of type " + std::to_string(type));
  cursor.skip(number_bytes(type));
}

// Numbers, or hashes as the bytes they have.
template <typename Number>
std::vector<Number> read_numbers(Cursor& cursor, std::uint32_t type, ValueType element) {
  if (type != kArray || cursor.number<std::uint32_t>() != element) {
    cursor.corrupt("what it says of its holes is no list of numbers");
  }
  const auto count = cursor.number<std::uint64_t>();
  const std::uint64_t each = sizeof(Number) / number_bytes(element);
  if (count % each != 0 || count / each > std::min(kHoleNumbersMax, cursor.left() / sizeof(Number))) {
    cursor.corrupt("it claims " + std::to_string(count) + " numbers about its holes");
  }
  std::vector<Number> numbers(static_cast<std::size_t>(count / each));
  for (Number& number : numbers) number = cursor.number<Number>();
  return numbers;
}

void read_setting(Cursor& cursor, Settings& settings) {
  const std::string key = cursor.text(kKeyBytesMax);
  const auto type = cursor.number<std::uint32_t>();
  settings.is_sparse = settings.is_sparse || key.starts_with(kSparseMark);
  if (key == "general.alignment" && type == kUint32) {
    settings.alignment = cursor.number<std::uint32_t>();
  } else if (key == "split.no" && type == kUint16) {
    settings.part = cursor.number<std::uint16_t>();
  } else if (key == "split.count" && type == kUint16) {
    settings.parts = cursor.number<std::uint16_t>();
  } else if (key == kSparseTensors && type == kString) {
    settings.list = cursor.text(kSha256Digits);
  } else if (key == kSparseKept) {
    settings.kept = read_numbers<std::uint64_t>(cursor, type, kUint64);
  } else if (key == kSparseChunks) {
    settings.chunks = read_numbers<Blake3Hash>(cursor, type, kUint8);
  } else {
    skip_value(cursor, type);
  }
}

void check_count(const Cursor& cursor, const char* of, std::uint64_t count, std::uint64_t limit,
                 std::uint64_t least_bytes) {
  if (count <= limit && count * least_bytes <= cursor.left()) return;
  cursor.corrupt("it claims " + std::to_string(count) + " " + of + " in " +
                 std::to_string(cursor.size()) + " bytes");
}

TensorPlace read_place(Cursor& cursor) {
  TensorPlace place;
  place.key.name = cursor.text(kNameBytesMax);
  const auto dims = cursor.number<std::uint32_t>();
  if (dims > kDims) cursor.corrupt(place.key.name + " has " + std::to_string(dims) + " dimensions");
  for (std::uint32_t i = 0; i < dims; ++i) place.key.shape[i] = cursor.number<std::uint64_t>();
  place.key.type = cursor.number<std::uint32_t>();
  place.offset = cursor.number<std::uint64_t>();
  return place;
}

// The product; more than `limit` is a corrupt file.
std::uint64_t product(const Cursor& cursor, const TensorKey& key, std::uint64_t one,
                      std::uint64_t other) {
  if (other != 0 && one > kElementsMax / other) cursor.corrupt(key.name + " is too large");
  return one * other;
}

void size_by_type(const Cursor& cursor, const TensorType& type, TensorKey& key) {
  std::uint64_t elements = 1;
  for (const std::uint64_t count : key.shape) elements = product(cursor, key, elements, count);
  if (key.shape[0] % type.block != 0) {
    cursor.corrupt(key.name + " cannot have rows of " + std::to_string(key.shape[0]) + " in " +
                   type.name);
  }
  key.size_bytes = product(cursor, key, elements / type.block, type.block_bytes);
}

// Sizes, and offsets from the beginning of the file: aligned, disjoint, inside.
void settle(const Cursor& cursor, std::vector<TensorPlace>& places, std::uint64_t data,
            std::uint64_t alignment) {
  std::uint64_t following = cursor.size();
  for (auto place = places.rbegin(); place != places.rend(); ++place) {
    const std::string& name = place->key.name;
    if (place->offset % alignment != 0) {
      cursor.corrupt(name + " is not aligned to " + std::to_string(alignment));
    }
    if (data > cursor.size() || place->offset > cursor.size() - data) {
      cursor.fail("is truncated: " + name + " begins beyond its end");
    }
    place->offset += data;
    const TensorType* type = tensor_type(place->key.type);
    place->type_known = type != nullptr;
    if (type != nullptr) size_by_type(cursor, *type, place->key);
    const std::uint64_t room = following - std::min(following, place->offset);
    if (type == nullptr) place->key.size_bytes = room;
    if (place->key.size_bytes > room) {
      const bool last = following == cursor.size();
      if (last) cursor.fail("is truncated: it ends inside " + name);
      cursor.corrupt(name + " overlaps the next tensor");
    }
    // One without bytes may lie where another begins.
    if (place->key.size_bytes > 0) following = place->offset;
  }
}

// Whether these bytes lie within one of the runs, each of which begins and ends with a number.
bool is_kept(const std::vector<std::uint64_t>& kept, std::uint64_t begin, std::uint64_t end) {
  if (begin == end) return true;
  const auto after = std::ranges::upper_bound(kept, begin);
  return (after - kept.begin()) % 2 == 1 && end <= *after;
}

// Which tensors of a sparse file are holes, and what they stand for.
void find_holes(const Cursor& cursor, const Settings& settings, Header& header) {
  const std::vector<std::uint64_t>& kept = settings.kept;
  if (kept.size() % 2 != 0 || !std::ranges::is_sorted(kept)) {
    cursor.corrupt("it does not say where its holes are");
  }
  auto chunk = settings.chunks.begin();
  for (TensorPlace& place : header.tensors) {
    const std::uint64_t begin = place.offset - header.data_at;
    place.is_hole = !is_kept(kept, begin, begin + place.key.size_bytes);
    if (!place.is_hole) continue;
    const std::uint64_t count = chunks_in(place.key.size_bytes);
    const auto left = static_cast<std::uint64_t>(settings.chunks.end() - chunk);
    if (!place.type_known || count > left) {
      cursor.corrupt("it does not say what " + place.key.name + " holds");
    }
    const auto end = chunk + static_cast<std::ptrdiff_t>(count);
    place.chunks.assign(chunk, end);
    chunk = end;
  }
  if (chunk != settings.chunks.end()) cursor.corrupt("it has more hashes than holes");
}

}  // namespace

Header read_header(Source& source, const std::string& name) {
  Cursor cursor(source, name);
  if (cursor.number<std::uint32_t>() != kMagic) cursor.fail("is not a GGUF file");
  const auto version = cursor.number<std::uint32_t>();
  if (version != 2 && version != 3) {
    cursor.fail("is GGUF version " + std::to_string(version) + "; 2 and 3 can be read");
  }
  const auto tensors = cursor.number<std::uint64_t>();
  const auto keys = cursor.number<std::uint64_t>();
  check_count(cursor, "metadata entries", keys, kKeysMax, kKeyBytesLeast);
  check_count(cursor, "tensors", tensors, kTensorsMax, kTensorBytesLeast);
  Settings settings;
  Header header;
  header.keys_at = cursor.place();
  for (std::uint64_t i = 0; i < keys; ++i) read_setting(cursor, settings);
  const std::uint64_t alignment = settings.alignment;
  if (alignment == 0 || (alignment & (alignment - 1)) != 0) {
    cursor.corrupt("its alignment is no power of two");
  }
  header.part = settings.part;
  header.parts = settings.parts;
  header.version = version;
  header.keys = keys;
  header.alignment = alignment;
  header.is_sparse = settings.is_sparse;
  header.list_at = cursor.place();
  for (std::uint64_t i = 0; i < tensors; ++i) header.tensors.push_back(read_place(cursor));
  std::unordered_set<std::string_view> names;
  for (const TensorPlace& place : header.tensors) {
    if (!names.insert(place.key.name).second) cursor.corrupt(place.key.name + " appears twice");
  }
  std::ranges::stable_sort(header.tensors, {}, &TensorPlace::offset);
  header.end_at = cursor.place();
  header.data_at = (cursor.place() + alignment - 1) / alignment * alignment;
  settle(cursor, header.tensors, header.data_at, alignment);
  if (!header.is_sparse) return header;
  if (settings.list != list_sha256(source, header)) {
    cursor.corrupt("what it says of its holes is of other tensors than it lists");
  }
  find_holes(cursor, settings, header);
  return header;
}

std::string list_sha256(Source& source, const Header& header) {
  std::vector<std::uint8_t> list(header.end_at - header.list_at);
  const std::size_t read = source.read(header.list_at, list);
  agent::Sha256 hash;
  hash.add({reinterpret_cast<const char*>(list.data()), read});
  return hash.hex();
}

}  // namespace dllm::weights
