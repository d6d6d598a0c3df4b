// What the worker's machine has, as the head was told at the beginning of the link.
#pragma once

#include <map>
#include <vector>

#include "messages.h"

namespace dllm::weights {

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
