#include "message_queue.h"

#include <algorithm>

namespace dllm::link {

void MessageQueue::append(View bytes) {
  bytes_.append(bytes);
}

void MessageQueue::append_message(View message) {
  messages_.emplace_back(dropped_ + bytes_.size(), Message(message.begin(), message.end()));
}

Bytes MessageQueue::bytes() {
  const Bytes all = bytes_.all();
  if (messages_.empty()) return all;
  return all.first(std::min<std::uint64_t>(all.size(), messages_.front().first - dropped_));
}

void MessageQueue::drop(std::size_t count) {
  bytes_.drop(count);
  dropped_ += count;
}

bool MessageQueue::message_is_next() const {
  return !messages_.empty() && messages_.front().first == dropped_;
}

MessageQueue::Message MessageQueue::take_message() {
  Message message = std::move(messages_.front().second);
  messages_.pop_front();
  return message;
}

void MessageQueue::clear() {
  dropped_ += bytes_.size();
  bytes_.clear();
  messages_.clear();
}

}  // namespace dllm::link
