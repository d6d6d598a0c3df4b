// What llama-server asked a worker when it started before: most likely it asks the same again. Only
// questions are kept; every start is told answers of its own.
#pragma once

#include <cstdint>
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
  // And it has these devices, as it tells of them: likewise.
  void learn(const std::string& devices);
  // What was asked did harm, or may have.
  void forget();
  // A GET_ALLOC_SIZE that was answered, without what belonged to its connection.
  void size_asked(std::string fields);
  // The buffers that a connection allocated, in order.
  void allocated(Row row);

  [[nodiscard]] Version version() const { return version_; }
  [[nodiscard]] const std::string& devices() const { return devices_; }
  [[nodiscard]] const std::vector<std::string>& sizes() const { return sizes_; }
  [[nodiscard]] const std::vector<Row>& rows() const { return rows_; }
  // What was allocated behind this one, the latest time that it was the first.
  [[nodiscard]] Row behind(const std::string& first) const;
  // Grows with every change.
  [[nodiscard]] std::uint64_t revision() const { return revision_; }

 private:
  Version version_;
  std::string devices_;
  std::vector<std::string> sizes_;  // the oldest first
  std::vector<Row> rows_;           // likewise
  std::uint64_t revision_ = 0;
};

}  // namespace dllm
