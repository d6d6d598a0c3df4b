#include "lines.h"

namespace dllm::agent {

std::optional<std::optional<std::string>> Lines::next() {
  while (true) {
    const std::size_t end = text_.find('\n');
    const bool too_long =
        end == std::string::npos ? text_.size() > kLineBytesMax : end > kLineBytesMax;
    if (end == std::string::npos && !skipping_ && !too_long) return std::nullopt;
    std::string line = text_.substr(0, end);
    text_.erase(0, end == std::string::npos ? end : end + 1);
    const bool is_rest = skipping_;
    skipping_ = end == std::string::npos;
    if (too_long && !is_rest) return std::optional<std::string>();
    if (!is_rest) return line;
    if (skipping_) return std::nullopt;
  }
}

}  // namespace dllm::agent
