#include "chunk_receiver.h"

#include <algorithm>

namespace dllm::weights {

namespace {

// What was written of a segment is kept until all of it is.
constexpr std::size_t kLiteralBytes = 256 * 1024;

}  // namespace

void ChunkReceiver::literal(Bytes bytes) {
  if (bytes.empty()) return;
  const bool fits = !segments_.empty() && segments_.back().arrival == nullptr &&
                    segments_.back().bytes.size() < kLiteralBytes;
  if (!fits) segments_.emplace_back();
  std::vector<std::uint8_t>& last = segments_.back().bytes;
  last.insert(last.end(), bytes.begin(), bytes.end());
  literal_bytes_ += bytes.size();
}

void ChunkReceiver::take(const Message& message) {
  switch (message.kind) {
    case Message::Kind::kRefer:
      return refer(message.key);
    case Message::Kind::kRecall:
      return recall(message);
    case Message::Kind::kOffer:
      return offer(message.blake3);
    case Message::Kind::kNeeded:
      return add_needed(message.piece);
    case Message::Kind::kAnswer:
      throw BadMessage("the head answers what it was not asked");
  }
}

void ChunkReceiver::refer(const TensorKey& key) {
  if (arrival_ != nullptr && arrival_->offered < chunks_in(arrival_->key.size_bytes)) {
    throw BadMessage("a tensor begins before " + arrival_->key.name + " has ended");
  }
  arrival_ = std::make_shared<Arrival>();
  arrival_->key = key;
  arrival_->residents = home_.find(key);
  ++counts_.tensors;
  counts_.tensors_missing += arrival_->residents.empty() ? 1 : 0;
}

void ChunkReceiver::recall(const Message& message) {
  const TensorKey& key = message.key;
  refer(key);
  // Otherwise its size would be anything.
  if (arrival_->residents.empty()) throw BadMessage(key.name + " is recalled and was never here");
  const auto resident = home_.find(key, message.fnv1a);
  if (resident && resident->sums->blake3() == message.blake3) {
    arrival_->residents = {*resident};
    arrival_->sums = resident->sums;
  }
  for (std::uint64_t chunk = 0; chunk < chunks_in(key.size_bytes); ++chunk) {
    const bool known = arrival_->sums != nullptr;
    offer(known ? std::optional(arrival_->sums->chunks[chunk]) : std::nullopt);
  }
}

void ChunkReceiver::offer(std::optional<Blake3Hash> hash) {
  if (arrival_ == nullptr || arrival_->offered == chunks_in(arrival_->key.size_bytes)) {
    throw BadMessage("a chunk is offered that belongs to no tensor");
  }
  if (open_.size() == kOpenChunksMax) throw BadMessage("too many chunks are offered at once");
  Segment& segment = segments_.emplace_back();
  segment.arrival = arrival_;
  segment.chunk = arrival_->offered++;
  segment.hash = hash;
  segment.is_open = true;
  open_.push_back(&segment);
}

bool ChunkReceiver::can_look() const {
  if (open_.empty()) return false;
  const Segment& segment = *open_.front();
  const std::size_t bytes = chunk_bytes(segment.arrival->key.size_bytes, segment.chunk);
  return ahead_bytes_ + bytes <= kAheadBytesMax;
}

Look ChunkReceiver::next_look() {
  Segment& segment = *open_.front();
  open_.pop_front();
  sought_.push_back(&segment);
  ahead_bytes_ += chunk_bytes(segment.arrival->key.size_bytes, segment.chunk);
  return {segment.arrival->residents, segment.chunk, segment.hash, spare_.take()};
}

bool ChunkReceiver::looked(Look look) {
  Segment& segment = *sought_.front();
  sought_.pop_front();
  segment.is_open = false;
  if (!look.found) {
    spare_.give(std::move(look.bytes));
    need(segment);
    return false;
  }
  segment.bytes = std::move(look.bytes);
  counts_.home_bytes += segment.bytes.size();
  // Looked for there first from now on.
  std::swap(look.residents[0], look.residents[*look.found]);
  segment.arrival->residents = std::move(look.residents);
  return true;
}

void ChunkReceiver::need(Segment& segment) {
  Arrival& arrival = *segment.arrival;
  segment.lacks = chunk_bytes(arrival.key.size_bytes, segment.chunk);
  counts_.needed_bytes += segment.lacks;
  if (!arrival.residents.empty() && !arrival.differs) ++counts_.tensors_differ;
  arrival.differs = true;
  awaited_.push_back(&segment);
}

void ChunkReceiver::add_needed(Bytes bytes) {
  while (!bytes.empty()) {
    if (awaited_.empty()) throw BadMessage("bytes come that nobody needs");
    Segment& segment = *awaited_.front();
    const std::size_t taken = std::min(bytes.size(), segment.lacks);
    segment.bytes.insert(segment.bytes.end(), bytes.begin(),
                         bytes.begin() + static_cast<std::ptrdiff_t>(taken));
    segment.lacks -= taken;
    bytes = bytes.subspan(taken);
    if (segment.lacks > 0) return;
    const TensorKey& key = segment.arrival->key;
    if (segment.hash && chunk_hash(segment.bytes, key.size_bytes, segment.chunk) != *segment.hash) {
      throw BadMessage("the bytes of " + key.name + " are not those announced");
    }
    awaited_.pop_front();
  }
}

std::span<std::uint8_t> ChunkReceiver::ready() {
  if (segments_.empty()) return {};
  Segment& first = segments_.front();
  if (first.is_open || first.lacks > 0) return {};
  return std::span(first.bytes).subspan(written_);
}

void ChunkReceiver::written(std::size_t bytes) {
  if (bytes == 0) return;
  written_ += bytes;
  Segment& first = segments_.front();
  if (first.arrival == nullptr) literal_bytes_ -= bytes;
  if (written_ < first.bytes.size()) return;
  written_ = 0;
  if (first.arrival != nullptr) {
    ahead_bytes_ -= first.bytes.size();
    spare_.give(std::move(first.bytes));
  }
  segments_.pop_front();
}

}  // namespace dllm::weights
