#include "gguf.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <unordered_set>

#include "cursor.h"
#include "tensor_types.h"

namespace dllm::home {

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
constexpr std::uint64_t kElementsMax = std::numeric_limits<std::int64_t>::max();

enum ValueType : std::uint32_t { kUint16 = 2, kUint32 = 4, kString = 8, kArray = 9 };

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

void read_setting(Cursor& cursor, Settings& settings) {
  const std::string key = cursor.text(kKeyBytesMax);
  const auto type = cursor.number<std::uint32_t>();
  if (key == "general.alignment" && type == kUint32) {
    settings.alignment = cursor.number<std::uint32_t>();
  } else if (key == "split.no" && type == kUint16) {
    settings.part = cursor.number<std::uint16_t>();
  } else if (key == "split.count" && type == kUint16) {
    settings.parts = cursor.number<std::uint16_t>();
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
void settle(const Cursor& cursor, std::vector<TensorPlace>& places, std::uint64_t alignment) {
  const std::uint64_t data = (cursor.place() + alignment - 1) / alignment * alignment;
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
  for (std::uint64_t i = 0; i < keys; ++i) read_setting(cursor, settings);
  const std::uint64_t alignment = settings.alignment;
  if (alignment == 0 || (alignment & (alignment - 1)) != 0) {
    cursor.corrupt("its alignment is no power of two");
  }
  Header header{settings.part, settings.parts, {}};
  for (std::uint64_t i = 0; i < tensors; ++i) header.tensors.push_back(read_place(cursor));
  std::unordered_set<std::string_view> names;
  for (const TensorPlace& place : header.tensors) {
    if (!names.insert(place.key.name).second) cursor.corrupt(place.key.name + " appears twice");
  }
  std::ranges::stable_sort(header.tensors, {}, &TensorPlace::offset);
  settle(cursor, header.tensors, alignment);
  return header;
}

}  // namespace dllm::home
