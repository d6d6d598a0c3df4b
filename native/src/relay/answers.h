// Replies that never change while a worker process lives, kept so that asking again costs nothing.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>

#include "decoder.h"

namespace dllm {

class Answers {
 public:
  static constexpr std::size_t kEntriesMax = 4096;  // of at most ~0.5 kB

  // DEVICE_COUNT, GET_ALIGNMENT, GET_MAX_SIZE, GET_ALLOC_SIZE.
  static bool covers(std::uint8_t id);
  // What the answer depends on: the device and for GET_ALLOC_SIZE shape, type, op and parameters
  // of the tensor and shape and type of its sources, but no ids, names or addresses.
  static std::string key(const Rule& rule, View fields);

  [[nodiscard]] std::optional<std::string> find(const std::string& key) const;
  void keep(const std::string& key, View payload);
  void forget() { known_.clear(); }

 private:
  std::unordered_map<std::string, std::string> known_;
};

}  // namespace dllm
