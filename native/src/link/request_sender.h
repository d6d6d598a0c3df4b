// What goes up to the worker's relay in one session: requests, compressed where both ends can, and
// weights by reference where that machine has them; in order, under credit.
#pragma once

#include <deque>
#include <optional>

#include "compression.h"
#include "live_link.h"
#include "message_queue.h"
#include "session.h"
#include "weights.h"
#include "weights/chunk_sender.h"
#include "weights/messages.h"

namespace dllm::link {

// What the head knows of weights, and counts of them, over all sessions.
struct HeadWeights {
  const weights::ResidentWeights& own;  // the models of this machine
  weights::Listing listing;  // of the worker's
  weights::WeightCounts counts;
};

class RequestSender final : public Weights {
 public:
  explicit RequestSender(HeadWeights& weights) : weights_(weights) {}

  // The link is up, with these features.
  void begin(const LinkEnd& end);
  // What is taken from here on crosses, in this session.
  void open(std::uint32_t session) { session_ = session; }

  // Bytes of the client that may be taken now.
  [[nodiscard]] std::size_t room(const LiveLink& link) const;
  // Throws weights::ModelError, as do others: the session cannot go on then.
  void take(const Outgoing& out, LiveLink& link);
  // The client pauses: what is held back to be compressed with what follows.
  void flush(LiveLink& link);
  // Sends what may be sent; throws weights::ModelError.
  void push(LiveLink& link);
  // Whether `push` could send more at once.
  [[nodiscard]] bool can_push(const LiveLink& link) const;
  // All is sent, and nothing is waited for.
  [[nodiscard]] bool is_done() const;

  // A tensor was taken out of the stream, and its place has not come yet.
  [[nodiscard]] bool has_decided() const { return !decided_.empty(); }

  // The worker told its version.
  void learned(Version version) { version_ = version; }
  // A message of the worker's end. Throws weights::BadMessage, and weights::ModelError.
  void told(View message);
  // Of our own files, what the worker needs: to be read elsewhere.
  [[nodiscard]] bool can_look() const { return sender_ && sender_->can_look(); }
  [[nodiscard]] weights::Look next_look() { return sender_->next_look(); }
  // Throws weights::ModelError.
  void looked(weights::Look look) { sender_->looked(std::move(look)); }

  // These throw weights::ModelError where a hole of a sparse file would be sent.
  bool takes(Tensor tensor, std::uint64_t offset, std::uint64_t bytes) override;
  void passes(Tensor tensor) override;
  std::optional<std::uint64_t> recalls(Tensor tensor, std::uint64_t hash) override;
  void unread() override { is_read_ = false; }

 private:
  // A tensor whose data do not go with the requests.
  struct Decided {
    weights::TensorKey key;
    std::optional<std::uint64_t> recalled;    // its FNV-1a
    const weights::TensorPlace* hole = nullptr;  // in our own file
  };

  void check_read(std::size_t bytes);
  void check_files(Tensor tensor) const;
  void check_hole(const weights::TensorPlace& hole, const weights::TensorKey& key,
                  std::uint64_t offset) const;
  void pass(View bytes, LiveLink& link);
  void send(View bytes, LiveLink& link);
  void send_home(View message, LiveLink& link);
  void requests(View bytes, LiveLink& link);
  void send_or_hold(View bytes, LiveLink& link);
  void head(View head);
  void refer(const Decided& decided);
  void collect();
  bool push_next(LiveLink& link);

  HeadWeights& weights_;
  std::uint32_t session_ = 0;               // 0: nothing has to cross yet
  std::optional<Compressor> compressor_;    // where both ends can
  std::optional<weights::ChunkSender> sender_;  // likewise
  std::deque<Decided> decided_;             // told by the session with the bytes that follow
  Compressor::Buffer compressed_;
  MessageQueue up_;                         // not yet sent
  bool is_read_ = true;                // the client is understood
  std::optional<Version> version_;     // of the worker
  std::size_t unversioned_bytes_ = 0;  // came before it
};

}  // namespace dllm::link
