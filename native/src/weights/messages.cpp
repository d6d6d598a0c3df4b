#include "messages.h"

#include <algorithm>
#include <cstring>

namespace dllm::weights {

namespace {

using Kind = Message::Kind;

constexpr std::size_t kNameBytesMax = 63;
// A name, type, shape, size and a hash.
constexpr std::size_t kListedBytesMax = 1 + kNameBytesMax + 4 + 8 * kDims + 8 + 8;

template <typename Number>
void put(std::vector<std::uint8_t>& out, Number number) {
  for (std::size_t i = 0; i < sizeof number; ++i, number = static_cast<Number>(number >> 8)) {
    out.push_back(static_cast<std::uint8_t>(number));
  }
}

void put_key(std::vector<std::uint8_t>& out, const TensorKey& key) {
  out.push_back(static_cast<std::uint8_t>(key.name.size()));
  for (const char letter : key.name) out.push_back(static_cast<std::uint8_t>(letter));
  put(out, key.type);
  for (const std::uint64_t count : key.shape) put(out, count);
  put(out, key.size_bytes);
}

template <typename Number>
Number take(Bytes& data) {
  Number number;
  if (data.size() < sizeof number) throw BadMessage("a message about a tensor ends too early");
  std::memcpy(&number, data.data(), sizeof number);
  data = data.subspan(sizeof number);
  return number;
}

TensorKey take_key(Bytes& data) {
  const auto length = take<std::uint8_t>(data);
  if (length > kNameBytesMax || length > data.size()) {
    throw BadMessage("a tensor has a name of " + std::to_string(length) + " bytes");
  }
  TensorKey key;
  key.name.assign(reinterpret_cast<const char*>(data.data()), length);
  data = data.subspan(length);
  key.type = take<std::uint32_t>(data);
  for (std::uint64_t& count : key.shape) count = take<std::uint64_t>(data);
  key.size_bytes = take<std::uint64_t>(data);
  return key;
}

Message take_message(Kind kind, Bytes& data) {
  Message message;
  message.kind = kind;
  switch (kind) {
    case Kind::kRecall:
      message.key = take_key(data);
      message.fnv1a = take<std::uint64_t>(data);
      message.blake3 = take<Blake3Hash>(data);
      return message;
    case Kind::kRefer:
      message.key = take_key(data);
      return message;
    case Kind::kOffer:
      message.blake3 = take<Blake3Hash>(data);
      return message;
    case Kind::kNeeded:
      message.piece = std::exchange(data, {});
      return message;
    case Kind::kAnswer:
      message.have = take<std::uint8_t>(data) != 0;
      return message;
  }
  throw BadMessage("there is no message " + std::to_string(static_cast<int>(kind)));
}

}  // namespace

std::vector<std::uint8_t> encode(const Message& message) {
  std::vector<std::uint8_t> out(1, static_cast<std::uint8_t>(message.kind));
  switch (message.kind) {
    case Kind::kRefer:
      put_key(out, message.key);
      break;
    case Kind::kRecall:
      put_key(out, message.key);
      put(out, message.fnv1a);
      [[fallthrough]];
    case Kind::kOffer:
      out.insert(out.end(), message.blake3.begin(), message.blake3.end());
      break;
    case Kind::kNeeded:
      out.resize(1 + message.piece.size());
      std::ranges::copy(message.piece, out.begin() + 1);
      break;
    case Kind::kAnswer:
      out.push_back(message.have ? 1 : 0);
  }
  return out;
}

Message decode(Bytes data) {
  const auto kind = static_cast<Kind>(take<std::uint8_t>(data));
  Message message = take_message(kind, data);
  if (!data.empty()) throw BadMessage("a message about a tensor is too long");
  return message;
}

std::vector<std::vector<std::uint8_t>> encode_list(const std::vector<Listed>& listed) {
  std::vector<std::vector<std::uint8_t>> messages;
  for (const Listed& one : listed) {
    if (messages.empty() || messages.back().size() + kListedBytesMax > kMessageBytesMax) {
      messages.emplace_back();
    }
    put_key(messages.back(), one.key);
    put(messages.back(), one.fnv1a);
  }
  return messages;
}

void decode_list(Bytes data, std::vector<Listed>& listed) {
  while (!data.empty()) {
    Listed& one = listed.emplace_back();
    one.key = take_key(data);
    one.fnv1a = take<std::uint64_t>(data);
  }
}

void Listing::add(Bytes message) {
  if (++messages_ > kListMessagesMax) throw BadMessage("the other end lists too many tensors");
  std::vector<Listed> listed;
  decode_list(message, listed);
  for (Listed& one : listed) known_[std::move(one.key)].push_back(one.fnv1a);
}

void Listing::clear() {
  known_.clear();
  messages_ = 0;
}

bool Listing::has(const TensorKey& key, std::uint64_t fnv1a) const {
  const auto found = known_.find(key);
  return found != known_.end() && fnv1a != 0 &&
         std::ranges::find(found->second, fnv1a) != found->second.end();
}

}  // namespace dllm::weights
