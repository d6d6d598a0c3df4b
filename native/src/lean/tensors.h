// One tensor of a graph by another: which fields differ, and by how much.
#pragma once

#include <array>

#include "bytes.h"

namespace dllm::lean {

// A field of an rpc_tensor: where, and whether it is of 8 bytes or of 4.
struct Field {
  std::uint16_t at;
  bool is_long;
};

inline constexpr std::size_t kFields = 59;

constexpr std::array<Field, kFields> make_fields() {
  // id, type, buffer, then 4-byte ones up to the sources, sources and addresses, name and the rest.
  std::array<Field, kFields> fields{Field{0, true}, Field{8, false}, Field{12, true}};
  std::size_t made = 3;
  for (std::uint16_t at = 20; at < 124; at += 4) fields[made++] = {at, false};
  for (std::uint16_t at = 124; at < 228; at += 8) fields[made++] = {at, true};
  for (std::uint16_t at = 228; at < kTensorBytes; at += 4) fields[made++] = {at, false};
  return fields;
}
inline constexpr std::array<Field, kFields> kTensorFields = make_fields();
static_assert(kTensorFields.back().at == kTensorBytes - 4);

// One bit per field, the first the lowest.
using FieldSet = std::uint64_t;

inline std::uint64_t load_field(const std::uint8_t* tensor, const Field& field) {
  return field.is_long ? load<std::uint64_t>(tensor + field.at)
                       : load<std::uint32_t>(tensor + field.at);
}

inline void store_field(std::uint8_t* tensor, const Field& field, std::uint64_t value) {
  std::memcpy(tensor + field.at, &value, field.is_long ? 8 : 4);
}

// What was said lately and may be said again by its place; the oldest goes first.
class Recent {
 public:
  static constexpr std::size_t kMost = 127;
  // 0: not here.
  [[nodiscard]] std::size_t place(std::uint64_t value) const;
  [[nodiscard]] std::uint64_t at(std::size_t place) const { return values_[place - 1]; }
  [[nodiscard]] std::size_t size() const { return size_; }
  void add(std::uint64_t value);

 private:
  std::array<std::uint64_t, kMost> values_{};
  std::size_t size_ = 0;
  std::size_t next_ = 0;
};

class TensorEncoder {
 public:
  explicit TensorEncoder(Writer& out) : out_(out) {}
  // `with_op`: says first which operation it is, by which both ends choose `base`.
  void add(const std::uint8_t* base, const std::uint8_t* tensor, bool with_op);
  void end() { end_run(); }

 private:
  void end_run();
  void write_set(FieldSet set);
  void write_difference(std::uint64_t difference);

  Writer& out_;
  std::uint64_t same_ = 0;
  Recent sets_, differences_;
};

class TensorDecoder {
 public:
  explicit TensorDecoder(Reader& in) : in_(in) {}
  // What is said of the next tensor: nothing of it differs from its base, or these fields.
  bool next(FieldSet& set);
  // Changes the fields of `tensor`, which is its base yet.
  bool apply(FieldSet set, std::uint8_t* tensor);

 private:
  bool read_known(Recent& known, std::uint64_t place, std::uint64_t fresh, std::uint64_t& value);

  Reader& in_;
  std::uint64_t same_ = 0;
  Recent sets_, differences_;
};

// The last tensor of each operation.
class ByOperation {
 public:
  [[nodiscard]] const std::uint8_t* at(std::uint8_t op) const {
    return tensors_[op % kMost].data();
  }
  void put(const std::uint8_t* tensor) {
    std::memcpy(tensors_[tensor[Tensor::kOpAt] % kMost].data(), tensor, kTensorBytes);
  }

 private:
  static constexpr std::size_t kMost = 128;
  std::array<std::array<std::uint8_t, kTensorBytes>, kMost> tensors_{};
};

}  // namespace dllm::lean
