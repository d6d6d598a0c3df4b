#include "reply_cache.h"

namespace dllm {

namespace {

void append(std::string& key, const std::uint8_t* from, std::size_t count) {
  key.append(reinterpret_cast<const char*>(from), count);
}

void append_shape(std::string& key, const std::uint8_t* tensor) {
  append(key, tensor + Tensor::kTypeAt, Tensor::kTypeBytes);
  append(key, tensor + Tensor::kShapeAt, Tensor::kShapeBytes);
}

// All that is told before it is asked has a reply of the same size in every version.
std::size_t reply_size(std::uint8_t id) {
  if (id == kDeviceCount) return sizeof(std::uint32_t);
  return id == kGetDeviceMemory ? 2 * sizeof(std::uint64_t) : sizeof(std::uint64_t);
}

}  // namespace

bool ReplyCache::covers(std::uint8_t id) {
  return is_one_of(id, {kDeviceCount, kGetAlignment, kGetMaxSize, kGetAllocSize});
}

bool ReplyCache::is_of_start(std::uint8_t id) {
  return is_one_of(id, {kHello, kGetDeviceMemory});
}

std::string ReplyCache::base(View buffer) {
  std::string key(1, static_cast<char>(kBufferGetBase));
  append(key, buffer.data(), buffer.size());
  return key;
}

std::string ReplyCache::memory(View device) {
  std::string key(1, static_cast<char>(kGetDeviceMemory));
  append(key, device.data(), device.size());
  return key;
}

std::string ReplyCache::greeting(std::uint64_t size) {
  std::string key(1, static_cast<char>(kHello));
  key.append(reinterpret_cast<const char*>(&size), sizeof size);
  return key;
}

bool ReplyCache::makes_sense(const PrefetchedReply& prefetched) {
  if (prefetched.key.empty() || prefetched.key.size() > kKeyMaxBytes) return false;
  const auto id = static_cast<std::uint8_t>(prefetched.key[0]);
  const bool is_told = covers(id) || is_one_of(id, {kGetDeviceMemory, kBufferGetBase});
  return is_told && prefetched.reply.size() == reply_size(id);
}

std::string ReplyCache::key(const Rule& rule, View fields) {
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

std::optional<std::string> ReplyCache::find(const std::string& key) const {
  const auto found = replies_.find(key);
  if (found == replies_.end()) return std::nullopt;
  return found->second;
}

void ReplyCache::keep(const std::string& key, View payload) {
  if (replies_.size() >= kEntriesMax) replies_.clear();
  replies_[key].assign(payload.begin(), payload.end());
}

void ReplyCache::begin_start(const std::string& key, View payload, Nanos now) {
  end_start();
  started_ = now;
  keep(key, payload);
}

void ReplyCache::forget() {
  replies_.clear();
  started_.reset();
}

void ReplyCache::end_start() {
  started_.reset();
  std::erase_if(replies_, [](const auto& reply) {
    return is_of_start(static_cast<std::uint8_t>(reply.first[0]));
  });
}

}  // namespace dllm
