#include "chunk_sender.h"

#include <algorithm>
#include <utility>

namespace dllm::weights {

namespace {

Message message_of(Message::Kind kind, const TensorKey& key = {}) {
  Message message;
  message.kind = kind;
  message.key = key;
  return message;
}

}  // namespace

bool ChunkSender::can_recall(const TensorKey& key, std::uint64_t fnv1a) const {
  return own_ != nullptr && own_->find(key, fnv1a) &&
         held_.size() + chunks_in(key.size_bytes) <= kOpenChunksMax;
}

void ChunkSender::begin(const TensorKey& key) {
  messages_.push_back(message_of(Message::Kind::kRefer, key));
  size_bytes_ = lacks_bytes_ = key.size_bytes;
  hole_ = nullptr;
  ++tensors_;
  ++counts_.tensors;
}

void ChunkSender::begin(const TensorPlace& hole) {
  begin(hole.key);
  hole_ = &hole;
}

// Chunks without bytes are bounded by their number.
std::size_t ChunkSender::spare_bytes() const {
  if (held_.size() >= kOpenChunksMax / 2) return 0;
  return kHeldBytesMax - std::min(kHeldBytesMax, held_bytes_ + filling_.size());
}

std::size_t ChunkSender::room() const {
  return static_cast<std::size_t>(std::min<std::uint64_t>(spare_bytes(), lacks_bytes_));
}

void ChunkSender::add(Bytes payload) {
  while (!payload.empty()) {
    if (filling_.empty()) begin_chunk();
    const std::size_t taken = std::min(payload.size(), kChunkBytes - filling_.size());
    filling_.insert(filling_.end(), payload.begin(),
                    payload.begin() + static_cast<std::ptrdiff_t>(taken));
    payload = payload.subspan(taken);
    lacks_bytes_ -= taken;
    if (filling_.size() == kChunkBytes || lacks_bytes_ == 0) offer();
  }
}

void ChunkSender::begin_chunk() {
  filling_ = spare_.take();
  filling_.clear();
  filling_.reserve(static_cast<std::size_t>(std::min<std::uint64_t>(kChunkBytes, lacks_bytes_)));
}

void ChunkSender::offer() {
  const std::uint64_t chunk = (size_bytes_ - lacks_bytes_ - filling_.size()) / kChunkBytes;
  Message message = message_of(Message::Kind::kOffer);
  message.blake3 =
      hole_ != nullptr ? hash_in_hole(chunk) : chunk_hash(filling_, size_bytes_, chunk);
  messages_.push_back(std::move(message));
  held_.push_back({tensors_, filling_.size(), {}, {}, chunk, hole_});
  if (hole_ != nullptr) return spare_.give(std::exchange(filling_, {}));
  held_bytes_ += filling_.size();
  held_.back().bytes = std::exchange(filling_, {});
}

Blake3Hash ChunkSender::hash_in_hole(std::uint64_t chunk) const {
  const Blake3Hash& meant = hole_->chunks[chunk];
  const bool is_empty = std::ranges::all_of(filling_, [](std::uint8_t byte) { return byte == 0; });
  if (is_empty || chunk_hash(filling_, size_bytes_, chunk) == meant) return meant;
  throw ModelError(hole_->key.name +
                   " comes from another model than the sparse one here, which has a hole of that "
                   "name");
}

void ChunkSender::recall(const TensorKey& key, std::uint64_t fnv1a) {
  const std::optional<Resident> own = own_->find(key, fnv1a);
  Message message = message_of(Message::Kind::kRecall, key);
  message.fnv1a = fnv1a;
  message.blake3 = own->sums->blake3();
  messages_.push_back(std::move(message));
  ++tensors_;
  ++counts_.tensors;
  for (std::uint64_t chunk = 0; chunk < chunks_in(key.size_bytes); ++chunk) {
    const std::size_t size_bytes = chunk_bytes(key.size_bytes, chunk);
    held_.push_back({tensors_, size_bytes, {}, own, chunk, nullptr});
  }
}

Message ChunkSender::next() {
  if (messages_.empty()) return next_piece();
  Message message = std::move(messages_.front());
  messages_.pop_front();
  return message;
}

Message ChunkSender::next_piece() {
  Held& held = needed_.front();
  const Bytes left = Bytes(held.bytes).subspan(sent_bytes_);
  Message message = message_of(Message::Kind::kNeeded);
  message.piece = left.first(std::min(left.size(), kPieceBytesMax));
  sent_bytes_ += message.piece.size();
  if (message.piece.size() < left.size()) return message;
  (held.recalled ? read_bytes_ : held_bytes_) -= held.bytes.size();
  // Moved, its bytes stay where they are.
  spare_.give(std::exchange(last_, std::move(held.bytes)));
  needed_.pop_front();
  sent_bytes_ = 0;
  return message;
}

void ChunkSender::answered(bool have) {
  if (held_.empty()) throw BadMessage("the other end answers for a chunk that was not offered");
  Held& held = held_.front();
  if (have) {
    counts_.home_bytes += held.size_bytes;
    held_bytes_ -= held.bytes.size();
    spare_.give(std::move(held.bytes));
  } else {
    if (held.hole != nullptr) {
      throw ModelError(held.hole->key.name + " holds other bytes on the worker's machine than in "
                       "the model that the sparse file here was made from");
    }
    counts_.needed_bytes += held.size_bytes;
    if (std::exchange(differing_, held.tensor) != held.tensor) ++counts_.tensors_differ;
    needed_.push_back(std::move(held));
    if (needed_.back().recalled) unread_.push_back(&needed_.back());
  }
  held_.pop_front();
}

Look ChunkSender::next_look() {
  Held& held = *unread_.front();
  unread_.pop_front();
  sought_.push_back(&held);
  read_bytes_ += held.size_bytes;
  const Resident& own = *held.recalled;
  return {{own}, held.chunk, own.sums->chunks[held.chunk], spare_.take()};
}

void ChunkSender::looked(Look look) {
  Held& held = *sought_.front();
  sought_.pop_front();
  if (!look.found) {
    throw ModelError(held.recalled->place->key.name +
                     " has changed in the model here, or cannot be read any more, and the worker "
                     "needs it");
  }
  held.bytes = std::move(look.bytes);
}

}  // namespace dllm::weights
