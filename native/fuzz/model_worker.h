// A worker made for being harmed: it answers as a stock one of its version does, and where that
// one would crash, exhaust its memory, run code or open a way around the relay, it aborts.
//
// Written apart from the guard, with wider numbers and no care for speed, so that both must be
// wrong in the same way for a hole to stay unseen.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "protocol/tensor.h"
#include "transcript.h"

namespace fuzz {

__extension__ typedef unsigned __int128 Wide;

inline void demand(bool holds) {
  if (!holds) std::abort();
}

template <typename Value>
Value take(const std::string& bytes, std::size_t at) {
  Value value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

class ModelWorker {
 public:
  explicit ModelWorker(dllm::Version version, std::uint32_t devices = 2)
      : version_(version), protocol_(version), devices_(devices) {}

  // What it replies to these bytes.
  std::string feed(const std::string& bytes) {
    unread_ += bytes;
    std::string replies;
    while (!closed_ && unread_.size() >= dllm::kRequestHeaderBytes) {
      const auto id = static_cast<std::uint8_t>(unread_[0]);
      const auto size = take<std::uint64_t>(unread_, 1);
      if (!is_readable(id, size)) break;
      if (unread_.size() - dllm::kRequestHeaderBytes < size) break;
      const std::string payload = unread_.substr(dllm::kRequestHeaderBytes, size);
      unread_.erase(0, dllm::kRequestHeaderBytes + size);
      const std::string reply = answer(id, payload);
      const dllm::Rule* rule = protocol_.rule(id);
      if (!closed_ && rule->reply_kind != dllm::Reply::kNone) replies += transcript::reply(reply);
    }
    return replies;
  }
  [[nodiscard]] bool closed() const { return closed_; }

 private:
  static constexpr Wide kMemoryBytes = Wide{1} << 29;
  // Little, so that a fuzzer's time does not go into large replies.
  static constexpr std::uint64_t kGivenMaxBytes = 1 << 16;
  static constexpr std::size_t kT = dllm::kTensorBytes;

  struct Buffer {
    Wide base;
    Wide size;
  };
  using Sizes = std::vector<Wide>;

  std::string close() {
    closed_ = true;
    return "";
  }

  // A stock worker makes room for what the header says before it looks at anything else.
  bool is_readable(std::uint8_t id, std::uint64_t size) {
    const dllm::Rule* rule = protocol_.rule(id);
    const bool first_is_hello = greeted_ || id == dllm::kHello;
    if (!rule || !first_is_hello || (!rule->data_follows && size != rule->fields)) close();
    if (!closed_) demand(size < kMemoryBytes);
    return !closed_;
  }

  std::string answer(std::uint8_t id, const std::string& payload) {
    const std::uint32_t fields = protocol_.rule(id)->fields;
    if (payload.size() < fields) return close();
    switch (id) {
      case dllm::kHello:
        demand(payload.find_first_not_of('\0') == std::string::npos);
        if (greeted_) return close();
        greeted_ = true;
        return transcript::hello_reply(version_, true).substr(dllm::kReplyHeaderBytes);
      case dllm::kDeviceCount:
        return {reinterpret_cast<const char*>(&devices_), sizeof devices_};
      case dllm::kAllocBuffer:
        return give(take<std::uint64_t>(payload, fields - 8));
      case dllm::kBufferGetBase:
        return base_of(take<std::uint64_t>(payload, 0));
      case dllm::kFreeBuffer:
        if (buffers_.erase(take<std::uint64_t>(payload, 0)) == 0) return close();
        return "";
      case dllm::kSetTensor:
        return reach(payload, take<std::uint64_t>(payload, fields - 8), payload.size() - fields);
      case dllm::kMemsetTensor:
        return reach(payload, take<std::uint64_t>(payload, kT),
                     take<std::uint64_t>(payload, kT + 8));
      case dllm::kGetTensor: {
        const auto size = take<std::uint64_t>(payload, kT + 8);
        reach(payload, take<std::uint64_t>(payload, kT), size);
        return closed_ ? "" : std::string(size, 'r');
      }
      case dllm::kSetTensorHash:
        unpack(payload, 0);
        return std::string(1, '\0');
      case dllm::kSetTensor2d:
      case dllm::kGetTensor2d:
        return reach_rows(id, payload);
      case dllm::kCopyTensor:
        return copy(payload);
      case dllm::kInitTensor:
        unpack(payload, 0);
        return "";
      case dllm::kGetAllocSize:
        for (std::size_t at = fields % kT; at < fields; at += kT) unpack(payload, at);
        return std::string(8, 's');
      case dllm::kGraphCompute:
        return compute(payload, fields);
      case dllm::kCommInit:
      case dllm::kCommAllreduce:
        std::abort();
      default:
        return std::string(protocol_.rule(id)->reply, 'a');
    }
  }

  std::string give(std::uint64_t wanted) {
    const std::uint64_t handle = next_++;
    const bool has_room = wanted <= transcript::kBufferBytes;
    const std::uint64_t given = has_room ? std::min(wanted, kGivenMaxBytes) : 0;
    if (has_room) buffers_[handle] = {transcript::kBase + (Wide{handle - 1} << 32), given};
    std::string reply;
    transcript::put<std::uint64_t>(reply, has_room ? handle : 0);
    transcript::put<std::uint64_t>(reply, given);
    return reply;
  }

  std::string base_of(std::uint64_t handle) {
    const auto found = buffers_.find(handle);
    if (found == buffers_.end()) return close();
    std::string reply;
    transcript::put(reply, static_cast<std::uint64_t>(found->second.base));
    return reply;
  }

  static const std::map<std::uint32_t, std::pair<unsigned, unsigned>> kBlocks;

  // From the first byte to behind the last that an op touches: it walks a row by the size of its
  // type or by the stride, and from row to row by the strides.
  static Wide reach_of(const std::string& payload, std::size_t at) {
    const auto found = kBlocks.find(take<std::uint32_t>(payload, at + 8));
    const Sizes sizes = sizes_at(payload, at);
    if (found == kBlocks.end() || std::ranges::count(sizes, Wide{0}) > 0) return 0;
    const auto [elements, bytes] = found->second;
    const Wide blocks = (sizes[0] + elements - 1) / elements;
    const Wide stride = std::max<Wide>(bytes, take<std::uint32_t>(payload, at + 36));
    Wide reach = (blocks - 1) * stride + bytes;
    for (std::size_t i = 1; i < 4; ++i) {
      reach += (sizes[i] - 1) * take<std::uint32_t>(payload, at + 36 + 4 * i);
    }
    return reach;
  }

  // ggml_nbytes; none for types whose blocks are not known here.
  static std::optional<Wide> bytes_of(const std::string& payload, std::size_t at) {
    const auto found = kBlocks.find(take<std::uint32_t>(payload, at + 8));
    if (found == kBlocks.end()) return std::nullopt;
    const auto [elements, bytes] = found->second;
    Wide sum = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      const Wide ne = take<std::uint32_t>(payload, at + 20 + 4 * i);
      const Wide nb = take<std::uint32_t>(payload, at + 36 + 4 * i);
      if (ne == 0) return 0;
      sum += i == 0 && elements > 1 ? ne * nb / elements : (ne - 1) * nb;
    }
    return elements > 1 ? sum : sum + bytes;
  }

  // A tensor of the wire becomes one of ggml's; whether it has a buffer.
  bool unpack(const std::string& payload, std::size_t at) {
    demand(dllm::tensor_type(take<std::uint32_t>(payload, at + 8)) != nullptr);
    const auto found = buffers_.find(take<std::uint64_t>(payload, at + 12));
    if (found == buffers_.end()) return false;
    const Wide data = take<std::uint64_t>(payload, at + 220);
    const Wide bytes = std::max(bytes_of(payload, at).value_or(0), reach_of(payload, at));
    if (bytes == 0 && version_.major >= 8) return true;
    demand(data >= found->second.base && data + bytes <= found->second.base + found->second.size);
    return true;
  }

  std::string reach(const std::string& payload, Wide offset, Wide size) {
    if (!unpack(payload, 0)) return close();
    demand(size < kMemoryBytes);
    const std::optional<Wide> bytes = bytes_of(payload, 0);
    demand(size == 0 || !bytes || offset + size <= *bytes);
    return "";
  }

  std::string reach_rows(std::uint8_t id, const std::string& payload) {
    const Wide offset = take<std::uint64_t>(payload, kT),
               size = take<std::uint64_t>(payload, kT + 8);
    const Wide count = take<std::uint64_t>(payload, kT + 16);
    const Wide stride = take<std::uint64_t>(payload, kT + 24);
    if (count == 0 || size == 0) return close();
    demand(size < kMemoryBytes && count < kMemoryBytes && size * count < kMemoryBytes);
    reach(payload, offset, (count - 1) * stride + size);
    return id == dllm::kGetTensor2d ? std::string(static_cast<std::size_t>(size * count), 'r') : "";
  }

  std::string copy(const std::string& payload) {
    if (!unpack(payload, 0) || !unpack(payload, kT)) return close();
    const Buffer& target = buffers_.at(take<std::uint64_t>(payload, kT + 12));
    const Wide data = take<std::uint64_t>(payload, kT + 220);
    demand(data + bytes_of(payload, 0).value_or(0) <= target.base + target.size);
    return std::string(1, '\1');
  }

  std::string compute(const std::string& payload, std::size_t fields) {
    const auto nodes = take<std::uint32_t>(payload, fields - 4);
    const Wide count_at = Wide{fields} + 8 * Wide{nodes};
    if (count_at + 4 > payload.size()) return close();
    const auto first = static_cast<std::size_t>(count_at) + 4;
    const auto tensors = take<std::uint32_t>(payload, first - 4);
    if (first + kT * Wide{tensors} > payload.size()) return close();
    demand(nodes <= tensors);
    for (std::size_t i = 0; i < tensors; ++i) unpack_one(payload, first + kT * i);
    Made made;
    for (std::size_t i = tensors; i-- > 0;) {
      made[take<std::uint64_t>(payload, first + kT * i)] = first + kT * i;
    }
    std::set<std::uint64_t> computed;
    for (std::size_t i = 0; i < nodes; ++i) {
      const auto id = take<std::uint64_t>(payload, fields + 8 * i);
      demand(id != 0 && computed.insert(id).second);
      compute_one(payload, id, made);
    }
    return std::string(protocol_.rule(dllm::kGraphCompute)->reply, '\0');
  }

  // By id, where in the payload.
  using Made = std::map<std::uint64_t, std::size_t>;

  // Of the most usual ops; as versions with 101 of them number them.
  void compute_one(const std::string& payload, std::uint64_t id, const Made& made) {
    static const std::map<std::uint32_t, unsigned> kReads = {
        {2, 2}, {7, 2}, {25, 1}, {29, 2}, {30, 3}, {40, 2}, {46, 1}, {48, 2}, {74, 3}, {91, 1}};
    if (!made.contains(id)) return static_cast<void>(close());
    const std::size_t at = made.at(id);
    const auto reads = kReads.find(take<std::uint32_t>(payload, at + 52));
    if (version_.major < 5 || reads == kReads.end()) return;
    demand(has_bytes(payload, at));
    std::vector<std::size_t> sources;
    for (std::size_t i = 0; i < reads->second; ++i) {
      const auto source = made.find(take<std::uint64_t>(payload, at + 124 + 8 * i));
      demand(source != made.end() && has_bytes(payload, source->second));
      sources.push_back(source->second);
    }
    check_shapes(payload, reads->first, at, sources);
  }

  static Sizes sizes_at(const std::string& payload, std::size_t at) {
    Sizes sizes;
    for (std::size_t i = 0; i < 4; ++i)
      sizes.push_back(take<std::uint32_t>(payload, at + 20 + 4 * i));
    return sizes;
  }

  // A stock worker computes nothing for a result that is empty, and aborts where this does.
  static void check_shapes(const std::string& payload, std::uint32_t op, std::size_t at,
                           const std::vector<std::size_t>& sources) {
    const Sizes result = sizes_at(payload, at), first = sizes_at(payload, sources[0]);
    if (std::ranges::count(result, Wide{0}) > 0) return;
    if (op == 2 || op == 7 || op == 25 || op == 46 || op == 48 || op == 91) demand(result == first);
    if (op == 25 || op == 46) demand(take<std::uint32_t>(payload, sources[0] + 8) == 0);
    if (op == 48) demand(take<std::uint32_t>(payload, sources[1] + 8) == 26);
    if (op != 2 && op != 7 && op != 29) return;
    const Sizes second = sizes_at(payload, sources[1]);
    if (op == 29) return demand(result == Sizes{first[1], second[1], second[2], second[3]});
    for (std::size_t i = 0; i < 4; ++i) demand(second[i] > 0 && first[i] % second[i] == 0);
  }

  bool has_bytes(const std::string& payload, std::size_t at) {
    return unpack(payload, at) || bytes_of(payload, at) == Wide{0};
  }

  void unpack_one(const std::string& payload, std::size_t at) {
    const bool placed = unpack(payload, at);
    demand(placed || take<std::uint64_t>(payload, at + 220) == 0);
    if (version_.major < 5) return;
    const auto op = take<std::uint32_t>(payload, at + 52);
    demand(op < 101 && !(op >= 92 && op <= 95));
  }

  const dllm::Version version_;
  const dllm::Protocol protocol_;
  const std::uint32_t devices_;
  std::map<std::uint64_t, Buffer> buffers_;
  std::uint64_t next_ = transcript::kBuffer;
  std::string unread_;
  bool greeted_ = false;
  bool closed_ = false;
};

inline const std::map<std::uint32_t, std::pair<unsigned, unsigned>> ModelWorker::kBlocks = {
    {0, {1, 4}},  {1, {1, 2}},  {2, {32, 18}}, {8, {32, 34}}, {12, {256, 144}},
    {24, {1, 1}}, {26, {1, 4}}, {27, {1, 8}},  {30, {1, 2}}};

}  // namespace fuzz
