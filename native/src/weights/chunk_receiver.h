// The worker's end of tensors that stay home, for one session; without sockets, a chunk at a time.
//
//   literal(): bytes for the rpc-server as they came, the header of a SET_TENSOR among them
//   take(): what a ChunkSender says
//   next_look(), while can_look(): the next chunk to look for in our own files
//   looked(), in the same order: whether it is had, just those bytes, or needed; the answer goes to
//     the ChunkSender, in order
//   ready(), written(): bytes for the rpc-server, in order, whoever they come from
//
// Nothing is read twice: the bytes that were hashed are those that are handed out. A file of
// another quant, of a fine-tune, cut short or changed meanwhile costs the chunks that differ, no
// more.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "chunk_reader.h"
#include "messages.h"
#include "resident_weights.h"

namespace dllm::weights {

class ChunkReceiver {
 public:
  // Read or asked for ahead of what the rpc-server has taken.
  static constexpr std::size_t kAheadBytesMax = 8U << 20;
  // Offered and not yet looked for: as many as a ChunkSender holds.
  static constexpr std::size_t kOpenChunksMax = 1U << 16;

  ChunkReceiver(const ResidentWeights& home, WeightCounts& counts) : home_(home), counts_(counts) {}

  void literal(Bytes bytes);
  // Throws BadMessage: the session cannot go on then.
  void take(const Message& message);

  [[nodiscard]] bool can_look() const;
  [[nodiscard]] Look next_look();
  // Whether it is had.
  bool looked(Look look);

  // Valid until the next call of anything but this; may be changed in place.
  [[nodiscard]] std::span<std::uint8_t> ready();
  void written(std::size_t bytes);
  // Of those that came as they were, how many wait.
  [[nodiscard]] std::size_t literal_bytes() const { return literal_bytes_; }
  // Nothing waits, in or out.
  [[nodiscard]] bool empty() const { return segments_.empty(); }

 private:
  // A tensor whose chunks come.
  struct Arrival {
    TensorKey key;
    std::vector<Resident> residents;   // the one that had the latest chunk first
    const TensorSums* sums = nullptr;  // of a recalled one
    std::uint64_t offered = 0;         // chunks
    bool differs = false;
  };

  // A part of what the rpc-server gets.
  struct Segment {
    std::vector<std::uint8_t> bytes;
    std::shared_ptr<Arrival> arrival;  // none: literal
    std::uint64_t chunk = 0;
    std::optional<Blake3Hash> hash;     // what its bytes must have
    bool is_open = false;               // not looked for yet
    std::size_t lacks = 0;              // bytes that were asked for
  };

  void refer(const TensorKey& key);
  void recall(const Message& message);
  void offer(std::optional<Blake3Hash> hash);
  void add_needed(Bytes bytes);
  void need(Segment& segment);

  const ResidentWeights& home_;
  WeightCounts& counts_;
  std::shared_ptr<Arrival> arrival_;  // the latest
  std::deque<Segment> segments_;
  std::deque<Segment*> open_;
  std::deque<Segment*> sought_;
  std::deque<Segment*> awaited_;
  std::size_t ahead_bytes_ = 0;
  std::size_t literal_bytes_ = 0;
  std::size_t written_ = 0;  // of the first segment
  SpareBuffers spare_;
};

}  // namespace dllm::weights
