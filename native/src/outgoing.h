// What one step of the decoder lets through, in order.
#pragma once

#include <list>
#include <string>
#include <vector>

#include "decoder.h"

namespace dllm {

class Outgoing {
 public:
  // Views of the caller's bytes; pieces that touch become one.
  void pass(View bytes) {
    if (!spans_.empty() && spans_.back().data() + spans_.back().size() == bytes.data()) {
      spans_.back() = View(spans_.back().data(), spans_.back().size() + bytes.size());
    } else if (!bytes.empty()) {
      spans_.push_back(bytes);
    }
  }
  // Bytes of our own, kept here.
  void pass_own(std::string bytes) {
    const std::string& kept = kept_.emplace_back(std::move(bytes));
    pass({reinterpret_cast<const std::uint8_t*>(kept.data()), kept.size()});
  }
  // Remembers this point; `cut` drops all that was passed since.
  void mark() {
    marked_ = spans_.size();
    marked_bytes_ = spans_.empty() ? 0 : spans_.back().size();
  }
  void cut() {
    spans_.resize(marked_);
    if (marked_) spans_.back() = spans_.back().first(marked_bytes_);
  }

  [[nodiscard]] const std::vector<View>& spans() const { return spans_; }
  // Replies of ours, for the client; none is due before them.
  std::string answers;
  // Close the connection once the spans are sent.
  bool refused = false;

 private:
  std::vector<View> spans_;
  std::list<std::string> kept_;
  std::size_t marked_ = 0;
  std::size_t marked_bytes_ = 0;
};

}  // namespace dllm
