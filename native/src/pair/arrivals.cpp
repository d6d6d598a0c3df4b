#include "arrivals.h"

#include <algorithm>

namespace dllm::pair {

void Arrivals::use_home(const home::Home& home, home::HomeCounts& counts) {
  assembly_.emplace(home, counts);
}

// What is needed was asked for: what came before may wait for it.
void Arrivals::told(View message) {
  if (!assembly_) return;
  const home::Message said = home::decode(message);
  if (said.kind == home::Message::Kind::kNeeded) return assembly_->take(said);
  if (mingled_.messages() >= home::Assembly::kOpenChunksMax) {
    throw home::BadMessage("too many chunks are offered at once");
  }
  mingled_.append_message(message);
}

Bytes Arrivals::next() {
  if (requests_.empty()) feed();
  const Bytes all =
      requests_.empty() && assembly_ ? assembly_->ready() : Bytes(requests_).subspan(taken_);
  return all.first(std::min(all.size(), kAheadMax));
}

void Arrivals::taken(std::size_t count) {
  if (requests_.empty()) return assembly_->written(count);
  taken_ += count;
  if (taken_ < requests_.size()) return;
  requests_.clear();
  taken_ = 0;
}

void Arrivals::feed() {
  while (has_room()) {
    if (!has_more() && mingled_.message_is_next()) {
      assembly_->take(home::decode(mingled_.take_message()));
      continue;
    }
    const Bytes bytes = mingled_.bytes();
    if (bytes.empty() && !has_more()) return;
    decompress(bytes);
    if (assembly_ && !assembly_->empty()) {
      assembly_->literal(decompressed_);
    } else {
      requests_.swap(decompressed_);
    }
  }
}

// Of these bytes as many as may be; what they stand for is then in `decompressed_`.
void Arrivals::decompress(Bytes bytes) {
  decompressed_.clear();
  if (!decompressor_) {
    bytes = bytes.first(std::min(bytes.size(), kAheadMax));
    decompressed_.assign(bytes.begin(), bytes.end());
    return mingled_.drop(bytes.size());
  }
  mingled_.drop(decompressor_->take(bytes, decompressed_));
  if (decompressor_->is_lost()) throw home::BadMessage("what came cannot be decompressed");
}

// Requests that go directly are handed out before anything else is looked at.
bool Arrivals::has_room() const {
  return requests_.empty() && (!assembly_ || assembly_->literal_bytes() < kAheadMax);
}

bool Arrivals::is_over() const {
  return finished_ && mingled_.empty() && !has_more() && requests_.empty() && (!assembly_ || assembly_->empty());
}

void Arrivals::clear() {
  mingled_.clear();
  requests_.clear();
  taken_ = 0;
  assembly_.reset();
}

}  // namespace dllm::pair
