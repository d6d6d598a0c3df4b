#include "tensor_sums.h"

#include <algorithm>

namespace dllm::weights {

TableBuilder::TableBuilder(const ModelFiles& files, TableSoFar so_far)
    : files_(files), so_far_(std::move(so_far)) {
  const std::uint64_t half_bytes = so_far_.half.chunks.size() * kChunkBytes;
  fnv1a_ = Fnv1a64(so_far_.half.fnv1a);
  xxh64_ = Xxh64(so_far_.half.lanes, half_bytes);
  done_bytes_ = half_bytes;
  for (std::size_t i = 0; i < so_far_.whole.size(); ++i) {
    done_bytes_ += files_.tensors()[i].key.size_bytes;
  }
}

bool TableBuilder::step() {
  if (done()) return false;
  const TensorPlace& place = files_.tensors()[so_far_.whole.size()];
  HalfTensor& half = so_far_.half;
  const std::uint64_t at = half.chunks.size() * kChunkBytes;
  const std::uint64_t left = place.key.size_bytes - at;
  const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(left, kChunkBytes));
  block_.resize(std::max(block_.size(), bytes));
  const std::span wanted(block_.data(), bytes);
  Source& source = files_.source(place);
  if (source.read(place.offset + at, wanted) < wanted.size()) {
    throw ModelError("the file of " + place.key.name + " ends inside it");
  }
  source.forget(place.offset + at, wanted.size());
  fnv1a_.add(wanted);
  xxh64_.add(wanted);
  if (!wanted.empty()) half.chunks.push_back(xxh64(wanted));
  half.fnv1a = fnv1a_.value();
  half.lanes = xxh64_.lanes();
  done_bytes_ += wanted.size();
  if (wanted.size() == left) end_tensor();
  return !done();
}

void TableBuilder::end_tensor() {
  so_far_.whole.push_back({fnv1a_.value(), xxh64_.value(), std::move(so_far_.half.chunks)});
  so_far_.half = {};
  fnv1a_ = {};
  xxh64_ = {};
}

}  // namespace dllm::weights
