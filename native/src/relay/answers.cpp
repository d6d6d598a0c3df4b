#include "answers.h"

namespace dllm {

namespace {

void append(std::string& key, const std::uint8_t* from, std::size_t count) {
  key.append(reinterpret_cast<const char*>(from), count);
}

void append_shape(std::string& key, const std::uint8_t* tensor) {
  append(key, tensor + Tensor::kTypeAt, Tensor::kTypeBytes);
  append(key, tensor + Tensor::kShapeAt, Tensor::kShapeBytes);
}

}  // namespace

bool Answers::covers(std::uint8_t id) {
  return is_one_of(id, {kDeviceCount, kGetAlignment, kGetMaxSize, kGetAllocSize});
}

std::string Answers::key(const Rule& rule, View fields) {
  std::string key(1, static_cast<char>(rule.id));
  const std::size_t tensors = fields.size() / kTensorBytes;
  const std::size_t device = fields.size() % kTensorBytes;
  append(key, fields.data(), device);
  if (tensors) append(key, fields.data() + device + Tensor::kOpAt, Tensor::kOpBytes);
  for (std::size_t i = 0; i < tensors; ++i) {
    append_shape(key, fields.data() + device + i * kTensorBytes);
  }
  return key;
}

std::optional<std::string> Answers::find(const std::string& key) const {
  const auto found = known_.find(key);
  if (found == known_.end()) return std::nullopt;
  return found->second;
}

void Answers::keep(const std::string& key, View payload) {
  if (known_.size() >= kEntriesMax) known_.clear();
  known_[key].assign(payload.begin(), payload.end());
}

}  // namespace dllm
