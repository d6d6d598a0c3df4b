// What two relays say to each other so that weights stay home, each message in at most
// kMessageBytesMax. Head to worker: REFER or RECALL, OFFER, NEEDED; worker to head: ANSWER and,
// once, LIST. How they are framed and in which order they meet the rest of the conversation is the
// link's.
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <vector>

#include "hashes.h"
#include "resident_weights.h"

namespace dllm::weights {

inline constexpr std::size_t kMessageBytesMax = 60U << 10;
// Of the bytes in one NEEDED.
inline constexpr std::size_t kPieceBytesMax = kMessageBytesMax - 1;

// Of the list of a machine's tensors, which is sent at once: 7.5 MiB, some 90,000 tensors.
inline constexpr std::size_t kListMessagesMax = 128;

// The other end says what cannot be; the text is one sentence.
class BadMessage : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Message {
  enum class Kind : std::uint8_t {
    kRefer = 1,   // a tensor follows, chunk by chunk
    kRecall = 2,  // a tensor of which only the hashes are known: the worker's table has its chunks
    kOffer = 3,   // the hash of the next chunk of the tensor referred to
    kNeeded = 4,  // bytes of chunks that were needed, in the order of the answers
    kAnswer = 5,  // the oldest chunk without an answer: had, or needed
  };

  Kind kind = Kind::kOffer;
  TensorKey key{};          // kRefer, kRecall
  std::uint64_t fnv1a = 0;  // kRecall
  Blake3Hash blake3{};      // kRecall: of the tensor; kOffer: as chunk_hash
  Bytes piece{};            // kNeeded; where the bytes lie that were decoded
  bool have = false;        // kAnswer
};

std::vector<std::uint8_t> encode(const Message& message);
// Throws BadMessage.
Message decode(Bytes data);

// A list of tensors in messages of its own kind.
std::vector<std::vector<std::uint8_t>> encode_list(const std::vector<Listed>& listed);
// Adds the tensors of one such message. Throws BadMessage.
void decode_list(Bytes data, std::vector<Listed>& listed);

class Listing {
 public:
  // One message of the list. Throws BadMessage.
  void add(Bytes message);
  void clear();

  [[nodiscard]] bool has(const TensorKey& key) const { return known_.contains(key); }
  // Whether one of that key had these bytes when the worker's machine read it last.
  [[nodiscard]] bool has(const TensorKey& key, std::uint64_t fnv1a) const;

 private:
  std::size_t messages_ = 0;
  std::map<TensorKey, std::vector<std::uint64_t>> known_;  // FNV-1a of each such tensor
};

}  // namespace dllm::weights
