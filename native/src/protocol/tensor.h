// A view of one rpc_tensor as it lies on the wire; the layout has not moved since 2024.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

#include "commands.h"

namespace dllm {

// So many numbers share so many bytes.
struct TensorType {
  std::uint32_t id;
  const char* name;
  std::uint32_t block;
  std::uint32_t block_bytes;
};

// Null for a type we do not know.
const TensorType* tensor_type(std::uint32_t id);

static_assert(std::endian::native == std::endian::little, "the wire is little endian");

template <typename Value>
Value load(const std::uint8_t* at) {
  Value value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

class Tensor {
 public:
  static constexpr int kDims = 4;
  static constexpr std::size_t kSources = 10;
  static constexpr std::uint32_t kF32 = 0;
  static constexpr std::uint32_t kNoOp = 0;  // stored, not computed
  // Byte ranges that other code copies whole.
  static constexpr std::size_t kTypeAt = 8, kTypeBytes = 4;
  static constexpr std::size_t kBufferAt = 12;
  static constexpr std::size_t kShapeAt = 20, kShapeBytes = 32;  // ne and nb
  static constexpr std::size_t kOpAt = 52, kOpBytes = 4 + 64;    // op and its parameters
  static constexpr std::size_t kOpParametersAt = kOpAt + 4;
  // Behind them, up to the name: sources, what it is a view of, address.
  static constexpr std::size_t kSourcesAt = 124;
  static constexpr std::size_t kNameAt = 228, kNameBytes = 64;

  explicit Tensor(const std::uint8_t* at) : at_(at) {}

  [[nodiscard]] const std::uint8_t* bytes() const { return at_; }
  [[nodiscard]] std::uint64_t id() const { return load<std::uint64_t>(at_); }
  [[nodiscard]] std::uint32_t type() const { return load<std::uint32_t>(at_ + kTypeAt); }
  [[nodiscard]] std::uint64_t buffer() const { return load<std::uint64_t>(at_ + kBufferAt); }
  [[nodiscard]] std::uint32_t ne(int i) const { return load<std::uint32_t>(at_ + 20 + 4 * i); }
  [[nodiscard]] std::uint32_t nb(int i) const { return load<std::uint32_t>(at_ + 36 + 4 * i); }
  [[nodiscard]] std::uint32_t op() const { return load<std::uint32_t>(at_ + kOpAt); }
  // Of a custom op the address of its function, of UNARY which one.
  [[nodiscard]] std::uint64_t op_parameter() const {
    return load<std::uint64_t>(at_ + kOpParametersAt);
  }
  // Ids of other tensors of its graph; 0: none.
  [[nodiscard]] std::uint64_t source(std::size_t i) const {
    return load<std::uint64_t>(at_ + kSourcesAt + 8 * i);
  }
  [[nodiscard]] std::uint64_t view_source() const { return load<std::uint64_t>(at_ + 204); }
  [[nodiscard]] std::uint64_t data() const { return load<std::uint64_t>(at_ + 220); }
  [[nodiscard]] std::string_view name() const {
    const auto* text = reinterpret_cast<const char*>(at_ + kNameAt);
    return {text, ::strnlen(text, kNameBytes)};
  }

 private:
  const std::uint8_t* at_;
};

// Whether each element (or block) of a row has its bytes to itself. An op reads and writes elements
// of the type's size whatever `nb[0]` says; in a tensor without this it leaves the extent. Rows may
// overlap: an op follows their strides, and `-sm tensor` sends strides of 0.
bool has_whole_elements(Tensor tensor);
// ggml_nbytes: from the first to behind the last byte, 0 when it has no elements. None when
// that is more than 64 bits hold.
std::optional<std::uint64_t> extent(Tensor tensor);

// `sum += more`; false when it wraps around.
inline bool adds_up(std::uint64_t& sum, std::uint64_t more) {
  sum += more;
  return sum >= more;
}

}  // namespace dllm
