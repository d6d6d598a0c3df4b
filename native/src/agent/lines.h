// Cuts a stream into lines, and never holds more than one line may have.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace dllm::agent {

inline constexpr std::size_t kLineBytesMax = 1U << 20;

class Lines {
 public:
  // Adds what was read.
  void add(std::string_view data) { text_.append(data); }

  // The next whole line without its end; none until more is added. One that is too long is told
  // once, as nullopt inside.
  std::optional<std::optional<std::string>> next();

 private:
  std::string text_;
  bool skipping_ = false;  // until the end of a line that is too long
};

}  // namespace dllm::agent
