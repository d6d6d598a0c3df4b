#include "tensors.h"

#include <algorithm>
#include <bit>

namespace dllm::lean {

namespace {

// The lowest bit of what is said of a tensor: fields differ, or so many tensors do not.
constexpr std::uint64_t kDiffers = 1;

FieldSet compare(const std::uint8_t* base, const std::uint8_t* tensor) {
  FieldSet set = 0;
  for (std::size_t i = 0; i < kFields; ++i) {
    const Field& field = kTensorFields[i];
    const bool differs = load_field(base, field) != load_field(tensor, field);
    set |= std::uint64_t{differs} << i;
  }
  return set;
}

// What to add to one number to get the other, with its sign.
std::uint64_t difference(std::uint64_t from, std::uint64_t to, bool is_long) {
  if (is_long) return to - from;
  const auto narrow = static_cast<std::int32_t>(static_cast<std::uint32_t>(to - from));
  return static_cast<std::uint64_t>(std::int64_t{narrow});
}

}  // namespace

std::size_t Recent::place(std::uint64_t value) const {
  const auto* end = values_.begin() + size_;
  const auto* found = std::find(values_.begin(), end, value);
  return found == end ? 0 : static_cast<std::size_t>(found - values_.begin()) + 1;
}

void Recent::add(std::uint64_t value) {
  values_[next_] = value;
  next_ = (next_ + 1) % kMost;
  size_ = std::min(size_ + 1, kMost);
}

void TensorEncoder::add(const std::uint8_t* base, const std::uint8_t* tensor, bool with_op) {
  if (with_op) {
    out_.byte(tensor[Tensor::kOpAt]);
  } else if (std::memcmp(base, tensor, kTensorBytes) == 0) {
    ++same_;
    return;
  }
  end_run();
  const FieldSet set = compare(base, tensor);
  write_set(set);
  for (FieldSet left = set; left != 0; left &= left - 1) {
    const Field& field = kTensorFields[static_cast<std::size_t>(std::countr_zero(left))];
    const std::uint64_t from = load_field(base, field);
    write_difference(difference(from, load_field(tensor, field), field.is_long));
  }
}

void TensorEncoder::end_run() {
  if (same_ > 0) out_.number(same_ << 1);
  same_ = 0;
}

void TensorEncoder::write_set(FieldSet set) {
  const std::size_t place = sets_.place(set);
  out_.number(std::uint64_t{place} << 1 | kDiffers);
  if (place > 0) return;
  out_.number(set);
  sets_.add(set);
}

void TensorEncoder::write_difference(std::uint64_t difference) {
  const std::size_t place = differences_.place(difference);
  out_.number(place);
  if (place > 0) return;
  out_.difference(difference);
  differences_.add(difference);
}

bool TensorDecoder::next(FieldSet& set) {
  set = 0;
  if (same_ > 0) return --same_, true;
  const std::uint64_t said = in_.number();
  if (said & kDiffers) {
    const std::uint64_t place = said >> 1;
    const std::uint64_t known = place == 0 ? in_.number() : 0;
    return read_known(sets_, place, known, set) && set >> kFields == 0;
  }
  if (in_.failed() || said == 0) return false;
  same_ = (said >> 1) - 1;
  return true;
}

bool TensorDecoder::apply(FieldSet set, std::uint8_t* tensor) {
  for (FieldSet left = set; left != 0; left &= left - 1) {
    const Field& field = kTensorFields[static_cast<std::size_t>(std::countr_zero(left))];
    const std::uint64_t place = in_.number();
    const std::uint64_t fresh = place == 0 ? in_.difference() : 0;
    std::uint64_t difference = 0;
    if (!read_known(differences_, place, fresh, difference)) return false;
    store_field(tensor, field, load_field(tensor, field) + difference);
  }
  return true;
}

// By its place, or `fresh` and to be remembered where the place is 0.
bool TensorDecoder::read_known(Recent& known, std::uint64_t place, std::uint64_t fresh,
                               std::uint64_t& value) {
  if (in_.failed() || place > known.size()) return false;
  value = place == 0 ? fresh : known.at(place);
  if (place == 0) known.add(fresh);
  return true;
}

}  // namespace dllm::lean
