// The head's end of tensors that stay home, for one session; without sockets, never blocking.
//
//   llama-server sends SET_TENSOR of a listed tensor at offset 0:
//     begin(key); then add() its payload as it comes, never more than room() at a time
//   it asks SET_TENSOR_HASH for one whose listed hash is that, and can_recall(): the header of a
//     SET_TENSOR for the worker, recall(), and 1 for llama-server; otherwise 0, and its bytes come
//   of a hole in a sparse file, begin(place): what is added must be nothing but zeros, and what the
//   file says of the chunk is offered; nothing of it can be sent
//   next(), while has_next(): messages for the worker, in order; those of has_message() first
//   next_look(), while can_look(): a recalled chunk that the worker needs, to be read by whom a slow
//   disk does not matter; looked(), in the same order: what came of it
//   answered(): an answer of the worker; afterwards there may be room, or messages
//
// REFER, RECALL and OFFER reach the worker's ChunkReceiver in order, also with the bytes
// llama-server sent before and after the tensor. NEEDED was asked for: it may overtake all of them
// and waits for no credit, since bytes that came earlier may wait for it at the other end. Bytes of
// chunks without an answer are held, at most kHeldBytesMax; what the worker has is forgotten
// without having crossed.
#pragma once

#include <deque>

#include "chunk_reader.h"
#include "messages.h"
#include "resident_weights.h"

namespace dllm::weights {

class ChunkSender {
 public:
  static constexpr std::size_t kHeldBytesMax = 16U << 20;
  static constexpr std::size_t kOpenChunksMax = 1U << 16;
  // Read of our own files and not yet sent.
  static constexpr std::size_t kReadBytesMax = 8U << 20;

  // `own`: the head's files, for chunks of a recalled tensor that the worker proves not to have.
  explicit ChunkSender(WeightCounts& counts, const ResidentWeights* own = nullptr)
      : counts_(counts), own_(own) {}

  // Whether a tensor may be recalled: it could be sent after all, for a file here had these bytes
  // when it was read last, and not too much is under way.
  [[nodiscard]] bool can_recall(const TensorKey& key, std::uint64_t fnv1a) const;

  // Whether there is room for another tensor: very small ones may be too many.
  [[nodiscard]] bool can_begin() const { return held_.size() < kOpenChunksMax; }
  void begin(const TensorKey& key);
  // A hole, of a file that lives as long as this.
  void begin(const TensorPlace& hole);
  // Payload bytes the tensor begun still lacks; 0: none is open.
  [[nodiscard]] std::uint64_t lacks_bytes() const { return lacks_bytes_; }
  // How many of them may be added now.
  [[nodiscard]] std::size_t room() const;
  // How many of any tensors: of this one and those behind it.
  [[nodiscard]] std::size_t spare_bytes() const;
  // Throws ModelError where a hole is not one.
  void add(Bytes payload);

  void recall(const TensorKey& key, std::uint64_t fnv1a);

  [[nodiscard]] bool has_next() const { return has_message() || has_piece(); }
  // Whether the next has its place among all that is sent, and is no NEEDED.
  [[nodiscard]] bool has_message() const { return !messages_.empty(); }
  // The next message, while there is one; its bytes are valid until the next call of anything here.
  Message next();

  [[nodiscard]] bool can_look() const { return !unread_.empty() && read_bytes_ < kReadBytesMax; }
  [[nodiscard]] Look next_look();
  // Throws ModelError where the chunk cannot be read: the session cannot go on.
  void looked(Look look);

  // The worker has answered for all chunks, and has been sent all it needs.
  [[nodiscard]] bool is_done() const { return held_.empty() && needed_.empty() && !has_message(); }

  // Throws BadMessage where nothing was asked, and ModelError where a hole is needed: the session
  // cannot go on.
  void answered(bool have);

 private:
  struct Held {
    std::uint64_t tensor = 0;  // which, of all so far
    std::size_t size_bytes = 0;
    std::vector<std::uint8_t> bytes{};   // none of a recalled one
    std::optional<Resident> recalled{};  // where its bytes are
    std::uint64_t chunk = 0;
    const TensorPlace* hole = nullptr;  // has no bytes either
  };

  void begin_chunk();
  void offer();
  [[nodiscard]] Blake3Hash hash_in_hole(std::uint64_t chunk) const;
  [[nodiscard]] bool has_piece() const { return !needed_.empty() && !needed_.front().bytes.empty(); }
  Message next_piece();

  WeightCounts& counts_;
  const ResidentWeights* own_;
  std::uint64_t tensors_ = 0;    // so far
  std::uint64_t differing_ = 0;  // the latest of them of which something was needed
  std::uint64_t size_bytes_ = 0;  // of the tensor begun
  std::uint64_t lacks_bytes_ = 0;
  std::vector<std::uint8_t> filling_;  // the chunk that is being added
  const TensorPlace* hole_ = nullptr;  // what is being added
  std::deque<Message> messages_;
  std::deque<Held> held_;
  std::deque<Held> needed_;
  std::deque<Held*> unread_, sought_;  // of the needed, those recalled
  std::size_t read_bytes_ = 0;
  std::size_t sent_bytes_ = 0;      // of the first needed chunk
  std::vector<std::uint8_t> last_;  // what a message still points at
  SpareBuffers spare_;
  std::size_t held_bytes_ = 0;
};

}  // namespace dllm::weights
