#include "request_receiver.h"

#include <algorithm>

namespace dllm::link {

void RequestReceiver::use_models(const weights::ResidentWeights& home,
                                 weights::WeightCounts& counts) {
  receiver_.emplace(home, counts);
}

// What is needed was asked for: what came before may wait for it.
void RequestReceiver::told(View message) {
  if (!receiver_) return;
  const weights::Message said = weights::decode(message);
  if (said.kind == weights::Message::Kind::kNeeded) return receiver_->take(said);
  if (queue_.messages() >= weights::ChunkReceiver::kOpenChunksMax) {
    throw weights::BadMessage("too many chunks are offered at once");
  }
  queue_.append_message(message);
}

Bytes RequestReceiver::next() {
  if (requests_.empty()) feed();
  const Bytes all =
      requests_.empty() && receiver_ ? receiver_->ready() : Bytes(requests_).subspan(taken_);
  return all.first(std::min(all.size(), kAheadMax));
}

void RequestReceiver::taken(std::size_t count) {
  if (requests_.empty()) return receiver_->written(count);
  taken_ += count;
  if (taken_ < requests_.size()) return;
  requests_.clear();
  taken_ = 0;
}

void RequestReceiver::feed() {
  while (has_room()) {
    if (!has_more() && queue_.message_is_next()) {
      receiver_->take(weights::decode(queue_.take_message()));
      continue;
    }
    const Bytes bytes = queue_.bytes();
    if (bytes.empty() && !has_more()) return;
    decompress(bytes);
    if (receiver_ && !receiver_->empty()) {
      receiver_->literal(decompressed_);
    } else {
      requests_.swap(decompressed_);
    }
  }
}

// Of these bytes as many as may be; what they stand for is then in `decompressed_`.
void RequestReceiver::decompress(Bytes bytes) {
  decompressed_.clear();
  if (!decompressor_) {
    bytes = bytes.first(std::min(bytes.size(), kAheadMax));
    decompressed_.assign(bytes.begin(), bytes.end());
    return queue_.drop(bytes.size());
  }
  queue_.drop(decompressor_->take(bytes, decompressed_));
  if (decompressor_->is_lost()) throw weights::BadMessage("what came cannot be decompressed");
}

// Requests that go directly are handed out before anything else is looked at.
bool RequestReceiver::has_room() const {
  return requests_.empty() && (!receiver_ || receiver_->literal_bytes() < kAheadMax);
}

bool RequestReceiver::is_over() const {
  return finished_ && queue_.empty() && !has_more() && requests_.empty() &&
         (!receiver_ || receiver_->empty());
}

void RequestReceiver::clear() {
  queue_.clear();
  requests_.clear();
  taken_ = 0;
  receiver_.reset();
}

}  // namespace dllm::link
