#include "blocks.h"

#include <algorithm>

namespace dllm::lean {

void Blocks::begin(Heads& heads, std::size_t slot, View head, std::uint64_t bytes) {
  const Tensor tensor(head.data() + kRequestHeaderBytes);
  heads_ = &heads;
  slot_ = slot;
  unit_ = unit_bytes(tensor.type());
  row_ = tensor.ne(0) * unit_;
  left_ = bytes;
  is_one_ = bytes <= kBlockBytes;
  before_.clear();
}

std::size_t Blocks::next() const {
  return static_cast<std::size_t>(std::min<std::uint64_t>(left_, kBlockBytes));
}

View Blocks::before() const {
  return is_one_ ? View(heads_->at(slot_).data) : View(before_);
}

void Blocks::crossed(View data) {
  left_ -= data.size();
  if (is_one_) {
    heads_->keep(slot_, data);
  } else if (left_ > 0) {
    before_.assign(data.begin(), data.end());
  } else {
    Buffer().swap(before_);
  }
}

}  // namespace dllm::lean
