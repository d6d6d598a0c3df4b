#include "byte_queue.h"

namespace dllm::link {

namespace {

// What was taken is forgotten once it is so much, and half of all.
constexpr std::size_t kTidyBytes = 64 << 10;

}  // namespace

void ByteQueue::append(View bytes) {
  if (start_ >= kTidyBytes && start_ >= bytes_.size() / 2) {
    bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(start_));
    start_ = 0;
  }
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

}  // namespace dllm::link
