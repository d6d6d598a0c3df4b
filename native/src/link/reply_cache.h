// Replies that do not change while a worker process lives, or while llama-server starts, kept so
// that asking again costs nothing.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>

#include "clock.h"
#include "protocol/decoder.h"

namespace dllm {

// A reply of the worker, as the relay beside it asked for it before the client did.
struct PrefetchedReply {
  std::string key;
  std::string reply;
};

class ReplyCache {
 public:
  static constexpr std::size_t kEntriesMax = 4096;
  static constexpr std::size_t kKeyMaxBytes = 512;  // of GET_ALLOC_SIZE some 470
  // While llama-server starts it asks for the memory of a device again and again, in connections
  // that follow at once. Until the one that loads, nobody is told what was so long ago.
  static constexpr Nanos kStartMax = 10 * kNanosPerSecond;

  // DEVICE_COUNT, GET_ALIGNMENT, GET_MAX_SIZE, GET_ALLOC_SIZE.
  static bool covers(std::uint8_t id);
  // HELLO and GET_DEVICE_MEMORY, which hold for one start of llama-server.
  static bool is_of_start(std::uint8_t id);
  // What the answer depends on: the device and for GET_ALLOC_SIZE shape, type, op and parameters
  // of the tensor and shape and type of its sources, but no ids, names or addresses. Of
  // BUFFER_GET_BASE the buffer.
  static std::string key(const Rule& rule, View fields);
  // Of BUFFER_GET_BASE for this buffer.
  static std::string base(View buffer);
  // Of a HELLO with so many bytes.
  static std::string greeting(std::uint64_t size);
  // Of GET_DEVICE_MEMORY for this device.
  static std::string memory(View device);
  // Whether `prefetched` may be the answer to anything that is asked before its turn.
  static bool makes_sense(const PrefetchedReply& prefetched);

  [[nodiscard]] std::optional<std::string> find(const std::string& key) const;
  void keep(const std::string& key, View payload);
  void forget();
  void forget(const std::string& key) { replies_.erase(key); }

  // A start begins with this answer: what was known of one before is forgotten.
  void begin_start(const std::string& key, View payload, Nanos now);
  [[nodiscard]] bool is_starting(Nanos now) const {
    return started_ && now - *started_ <= kStartMax;
  }
  // It is over: the next must ask again.
  void end_start();

 private:
  std::unordered_map<std::string, std::string> replies_;
  std::optional<Nanos> started_;
};

}  // namespace dllm
