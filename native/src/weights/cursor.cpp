#include "cursor.h"

#include <algorithm>

namespace dllm::weights {

namespace {

constexpr std::size_t kWindowBytes = 256 * 1024;
// Ours; the largest real headers, vocabulary included, are under 32 MiB.
constexpr std::uint64_t kHeaderBytesMax = 128U << 20;

}  // namespace

void Cursor::fail(const std::string& what) const {
  throw ModelError(name_ + " " + what);
}

void Cursor::truncated() const {
  fail("is truncated: it ends at byte " + std::to_string(size_) + " inside its header");
}

std::string Cursor::text(std::size_t limit) {
  const auto length = number<std::uint64_t>();
  if (length > limit) corrupt("a name in it has " + std::to_string(length) + " bytes");
  const auto* at = reinterpret_cast<const char*>(hold(static_cast<std::size_t>(length)));
  place_ += length;
  return {at, static_cast<std::size_t>(length)};
}

void Cursor::skip(std::uint64_t bytes) {
  if (bytes > left()) truncated();
  place_ += bytes;
  if (place_ > kHeaderBytesMax) corrupt("its header is over 128 MiB");
}

void Cursor::skip_array(std::uint64_t count, std::uint64_t element_bytes) {
  if (count > left() / element_bytes) truncated();
  skip(count * element_bytes);
}

void Cursor::skip_strings(std::uint64_t count) {
  if (count > left() / sizeof(std::uint64_t)) truncated();
  for (; count > 0; --count) skip(number<std::uint64_t>());
}

const std::uint8_t* Cursor::hold(std::size_t bytes) {
  if (place_ < start_ || place_ + bytes > start_ + window_.size()) refill(bytes);
  return window_.data() + (place_ - start_);
}

void Cursor::refill(std::size_t bytes) {
  if (bytes > left()) truncated();
  window_.resize(std::max<std::uint64_t>(bytes, std::min<std::uint64_t>(left(), kWindowBytes)));
  window_.resize(source_.read(place_, window_));
  start_ = place_;
  // It shrank since it was opened.
  if (window_.size() < bytes) truncated();
}

}  // namespace dllm::weights
