// The data behind one head, piece by piece: how much is still to come, and what both ends have
// that it may resemble.
#pragma once

#include "data.h"
#include "heads.h"
#include "limits.h"

namespace dllm::lean {

class Blocks {
 public:
  // `head` is in `slot` already, and of a SET_TENSOR.
  void begin(Heads& heads, std::size_t slot, View head, std::uint64_t bytes);
  // Bytes of the next piece; 0: that was all.
  [[nodiscard]] std::size_t next() const;
  [[nodiscard]] std::size_t unit() const { return unit_; }
  [[nodiscard]] std::size_t row() const { return row_; }
  // What the next piece may resemble.
  [[nodiscard]] View before() const;
  // This piece crossed.
  void crossed(View data);

 private:
  Heads* heads_ = nullptr;
  std::size_t slot_ = 0;
  std::size_t unit_ = 0;
  std::size_t row_ = 0;
  std::uint64_t left_ = 0;
  bool is_one_ = false;  // all of it is one piece
  Buffer before_;
};

}  // namespace dllm::lean
