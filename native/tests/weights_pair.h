// Both ends of tensors that stay home and a way between them that delivers when it likes.
#pragma once

#include <deque>
#include <random>
#include <set>

#include "text_of.h"
#include "weights/chunk_receiver.h"
#include "weights/chunk_sender.h"
#include "weights_models.h"

namespace models {

using dllm::weights::Bytes;
using Encoded = std::vector<std::uint8_t>;

inline Bytes bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

inline dllm::weights::TensorKey key_of(const Made& made) {
  dllm::weights::TensorKey key{made.name, made.type, {1, 1, 1, 1}, made.data.size()};
  std::ranges::copy(made.shape, key.shape.begin());
  return key;
}

inline std::uint64_t fnv1a_of(const std::string& data) {
  dllm::weights::Fnv1a64 hash;
  hash.add(bytes_of(data));
  return hash.value();
}

// What a table says of all tensors of a model.
// The next chunk, looked for at once.
inline bool look_once(dllm::weights::ChunkReceiver& worker) {
  dllm::weights::Look next = worker.next_look();
  dllm::weights::look(next);
  return worker.looked(std::move(next));
}

inline std::vector<dllm::weights::TensorSums> sums_of(const dllm::weights::ModelFiles& files) {
  dllm::weights::TableBuilder builder(files);
  while (builder.step()) {
  }
  return builder.so_far().whole;
}

// The files of a machine, and their bytes.
struct Machine {
  dllm::weights::ResidentWeights home;
  std::vector<Memory*> files;

  void add(const std::vector<Made>& tensors, bool with_sums = true) {
    auto model = opened({gguf(tensors)}, &files);
    auto sums = with_sums ? sums_of(model) : std::vector<dllm::weights::TensorSums>();
    home.add(std::move(model), std::move(sums));
  }
};

class Pair {
 public:
  // `here`: the head's files; none where it cannot recall.
  Pair(const dllm::weights::ResidentWeights* here, const dllm::weights::ResidentWeights& there)
      : head(head_counts, here), worker(there, counts), there_(there) {}

  // Sends what a client sent: plain bytes, or a tensor's payload.
  void literal(const std::string& text) {
    collect();
    up_.push_back({true, Encoded(text.begin(), text.end())});
    sent += text;
  }
  void begin(const Made& made) {
    head.begin(key_of(made));
    payload_ = made.data;
    sent += made.data;
  }
  // Whether the worker lists such a tensor, and the head has it too.
  [[nodiscard]] bool can_recall(const Made& made) const {
    return !there_.find(key_of(made)).empty() && head.can_recall(key_of(made), fnv1a_of(made.data));
  }
  void recall(const Made& made) {
    head.recall(key_of(made), fnv1a_of(made.data));
    sent += made.data;
  }

  // Does one of all that could happen; false where nothing can.
  template <typename Random>
  bool step(Random& random) {
    std::vector<void (Pair::*)(std::size_t)> possible;
    if (!payload_.empty() && head.room() > 0) possible.push_back(&Pair::add);
    if (head.has_next()) possible.push_back(&Pair::send);
    if (!up_.empty()) possible.push_back(&Pair::deliver);
    if (!overtaking_.empty()) possible.push_back(&Pair::overtake);
    if (worker.can_look()) possible.push_back(&Pair::look);
    if (head.can_look()) possible.push_back(&Pair::read);
    if (!down_.empty()) possible.push_back(&Pair::answer);
    if (!worker.ready().empty()) possible.push_back(&Pair::write);
    if (possible.empty()) return false;
    (this->*possible[random() % possible.size()])(random());
    return true;
  }

  template <typename Random>
  void finish(Random& random) {
    while (step(random)) {
    }
  }

  dllm::weights::WeightCounts counts;  // the worker's
  dllm::weights::WeightCounts head_counts;
  dllm::weights::ChunkSender head;
  dllm::weights::ChunkReceiver worker;
  std::string sent;                 // as the client meant it
  std::string arrived;              // as the rpc-server got it
  std::uint64_t crossed_bytes = 0;  // of tensors
  std::uint64_t messages = 0;

 private:
  struct Packet {
    bool is_literal = false;
    Encoded data;
  };

  void add(std::size_t much) {
    const std::size_t most = std::min({head.room(), payload_.size(), much % (3 << 20) + 1});
    head.add(bytes_of(payload_).first(most));
    payload_.erase(0, most);
  }
  void send(std::size_t) {
    const dllm::weights::Message message = head.next();
    ++messages;
    crossed_bytes += message.piece.size();
    const bool overtakes = message.kind == dllm::weights::Message::Kind::kNeeded;
    const Encoded data = encode(message);
    if (overtakes) {
      overtaking_.push_back(data);
    } else {
      up_.push_back({false, data});
    }
  }
  // What was said before must be sent before.
  void collect() {
    while (head.has_next()) send(0);
  }
  void deliver(std::size_t) {
    const Packet packet = std::move(up_.front());
    up_.pop_front();
    if (packet.is_literal) return worker.literal(packet.data);
    worker.take(dllm::weights::decode(packet.data));
  }
  void overtake(std::size_t) {
    worker.take(dllm::weights::decode(overtaking_.front()));
    overtaking_.pop_front();
  }
  void look(std::size_t) {
    dllm::weights::Message answer{.kind = dllm::weights::Message::Kind::kAnswer};
    answer.have = look_once(worker);
    down_.push_back(encode(answer));
  }
  void read(std::size_t) {
    dllm::weights::Look next = head.next_look();
    dllm::weights::look(next);
    head.looked(std::move(next));
  }
  void answer(std::size_t) {
    head.answered(dllm::weights::decode(down_.front()).have);
    down_.pop_front();
  }
  void write(std::size_t much) {
    const Bytes ready = worker.ready();
    const Bytes part = ready.first(std::min<std::size_t>(ready.size(), much % (2 << 20) + 1));
    arrived += text_of(part);
    worker.written(part.size());
  }

  const dllm::weights::ResidentWeights& there_;
  std::string payload_;  // of the tensor begun, not yet added
  std::deque<Packet> up_;
  std::deque<Encoded> overtaking_;
  std::deque<Encoded> down_;
};

}  // namespace models
