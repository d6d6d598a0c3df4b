#include "mingled.h"

#include <algorithm>

namespace dllm::pair {

void Mingled::append(View bytes) {
  bytes_.append(bytes);
}

void Mingled::append_message(View message) {
  messages_.emplace_back(dropped_ + bytes_.size(), Message(message.begin(), message.end()));
}

Bytes Mingled::bytes() {
  const Bytes all = bytes_.all();
  if (messages_.empty()) return all;
  return all.first(std::min<std::uint64_t>(all.size(), messages_.front().first - dropped_));
}

void Mingled::drop(std::size_t count) {
  bytes_.drop(count);
  dropped_ += count;
}

bool Mingled::message_is_next() const {
  return !messages_.empty() && messages_.front().first == dropped_;
}

Mingled::Message Mingled::take_message() {
  Message message = std::move(messages_.front().second);
  messages_.pop_front();
  return message;
}

void Mingled::clear() {
  dropped_ += bytes_.size();
  bytes_.clear();
  messages_.clear();
}

}  // namespace dllm::pair
