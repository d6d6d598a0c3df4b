// What llama-server asked a worker when it started before: most likely it asks the same again. Only
// questions are kept; every start is told answers of its own.
#pragma once

#include <string>
#include <vector>

#include "protocol.h"

namespace dllm {

// Requests are kept as their fixed fields.
class Precedents {
 public:
  // Of a model some five; of each three more are guessed.
  static constexpr std::size_t kSizesMax = 48;
  static constexpr std::size_t kRowsMax = 8;
  static constexpr std::size_t kRowMax = 32;
  using Row = std::vector<std::string>;

  // The worker speaks this version: what was asked in another is forgotten.
  void learn(Version version);
  // A GET_ALLOC_SIZE that was answered, without what belonged to its connection.
  void size_asked(std::string fields);
  // The buffers that a connection allocated, in order.
  void allocated(Row row);

  [[nodiscard]] const std::vector<std::string>& sizes() const { return sizes_; }
  // What was allocated behind this one, the latest time that it was the first.
  [[nodiscard]] Row behind(const std::string& first) const;

 private:
  Version version_;
  std::vector<std::string> sizes_;  // the oldest first
  std::vector<Row> rows_;           // likewise
};

}  // namespace dllm
