// Which commands the bytes that have left belong to. What a link has to send is sealed, and waits,
// before it leaves: a share counts when the last byte that it went into has left.
#pragma once

#include <deque>

#include "relay/shares.h"

namespace dllm::pair {

class Departures {
 public:
  // For those who have something to send: what is given to the link, and not sealed yet.
  Shares& given() { return given_; }
  // All of it is sealed now, in bytes up to here, counted from the link's first.
  void sealed(std::uint64_t end) {
    if (given_ == Shares{}) return;
    waiting_.emplace_back(end, given_);
    given_ = {};
  }
  // So many bytes have left in all.
  void left(std::uint64_t bytes) {
    for (; !waiting_.empty() && waiting_.front().first <= bytes; waiting_.pop_front()) {
      gone_ += waiting_.front().second;
    }
  }
  [[nodiscard]] const Shares& gone() const { return gone_; }

 private:
  Shares given_{};
  std::deque<std::pair<std::uint64_t, Shares>> waiting_;
  Shares gone_{};
};

}  // namespace dllm::pair
