// What arrived in one session, until it is requests for the rpc-server: it is decompressed, and
// weights come from the files of this machine where these have them.
#pragma once

#include <optional>

#include "compression.h"
#include "message_queue.h"
#include "weights/chunk_receiver.h"

namespace dllm::link {

class RequestReceiver {
 public:
  // Handed out at a time, and decompressed ahead of that: a few bytes may stand for many.
  static constexpr std::size_t kAheadMax = 256 << 10;

  // Nothing is shorter than it was, and no weights come from here.
  RequestReceiver() = default;
  void use_compression() { decompressor_.emplace(); }
  void use_models(const weights::ResidentWeights& home, weights::WeightCounts& counts);

  void arrived(View data) { queue_.append(data); }
  // A message of `home`. Throws weights::BadMessage.
  void told(View message);
  // Nothing more arrives.
  void finish() { finished_ = true; }

  // The next requests; empty: none yet. Valid until the next call of anything here, may be changed
  // in place. Throws weights::BadMessage.
  Bytes next();
  void taken(std::size_t count);
  // Whether a chunk of a weight can be looked for; that; and whether it is here.
  [[nodiscard]] bool can_look() const { return receiver_ && receiver_->can_look(); }
  weights::Look next_look() { return receiver_->next_look(); }
  bool looked(weights::Look look) { return receiver_->looked(std::move(look)); }

  // Bytes that count against credit and wait.
  [[nodiscard]] std::size_t waiting() const { return queue_.size(); }
  // All that ever arrives was taken.
  [[nodiscard]] bool is_over() const;
  // What waits goes nowhere.
  void clear();

 private:
  void feed();
  void decompress(Bytes bytes);
  [[nodiscard]] bool has_more() const { return decompressor_ && decompressor_->has_more(); }
  [[nodiscard]] bool has_room() const;

  MessageQueue queue_;
  std::optional<Decompressor> decompressor_;
  std::optional<weights::ChunkReceiver> receiver_;
  Decompressor::Buffer requests_;  // that need not go through the chunk receiver
  std::size_t taken_ = 0;  // of them
  Decompressor::Buffer decompressed_;
  bool finished_ = false;
};

}  // namespace dllm::link
