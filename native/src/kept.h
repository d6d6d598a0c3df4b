// Small files of our own in the user's cache directory: nothing is lost with one but time.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dllm {

// $XDG_CACHE_HOME/dllm-tui/KIND, or the same below ~/.cache; "" where neither is known.
std::string cache_directory(const std::string& kind);
// Replaces a file (mode 0600, in one step) in a directory of ours, which is made where it is
// missing (0700). Throws std::runtime_error.
void keep(const std::string& directory, const std::string& name, std::string_view data);
// What was kept at a path, which counts as used now; none where there is nothing, and what is
// longer by more than a byte is cut. Throws std::runtime_error where it cannot be read.
std::optional<std::string> read_kept(const std::string& path, std::size_t bytes_max);
// Deletes the files in a directory of ours that were used longest ago, all but so many.
void keep_latest(const std::string& directory, std::size_t files_max);

// Behind the data their XXH64; and the data before it, none where it is another.
std::string with_sum(std::string data);
std::optional<std::string_view> without_sum(std::string_view data);

// Numbers and texts, one behind the other.
class Packer {
 public:
  template <typename Number>
  Packer& number(Number value) {
    data_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Packer& text(std::string_view text) {
    number<std::uint64_t>(text.size());
    data_.append(text);
    return *this;
  }
  Packer& numbers(const std::vector<std::uint64_t>& values) {
    number<std::uint64_t>(values.size());
    for (const std::uint64_t value : values) number(value);
    return *this;
  }
  std::string take() { return std::move(data_); }

 private:
  std::string data_;
};

// Its reads give zeros from the first one on that goes beyond the end.
class Unpacker {
 public:
  explicit Unpacker(std::string_view data) : data_(data) {}

  template <typename Number>
  Number number() {
    Number value{};
    if (data_.size() < sizeof value) {
      fine_ = false;
      data_ = {};
      return value;
    }
    std::memcpy(&value, data_.data(), sizeof value);
    data_.remove_prefix(sizeof value);
    return value;
  }
  std::string text() {
    const auto size = number<std::uint64_t>();
    fine_ = fine_ && size <= data_.size();
    const std::string text(data_.substr(0, fine_ ? size : 0));
    data_.remove_prefix(text.size());
    return text;
  }
  std::vector<std::uint64_t> numbers(std::uint64_t most) {
    const auto count = number<std::uint64_t>();
    fine_ = fine_ && count <= most && count <= data_.size() / sizeof(std::uint64_t);
    std::vector<std::uint64_t> values;
    for (std::uint64_t i = 0; fine_ && i < count; ++i) values.push_back(number<std::uint64_t>());
    return values;
  }
  // Whether what comes next is just that text.
  bool starts_with(std::string_view text) {
    fine_ = fine_ && data_.starts_with(text);
    if (fine_) data_.remove_prefix(text.size());
    return fine_;
  }
  [[nodiscard]] bool fine() const { return fine_; }
  [[nodiscard]] bool ended() const { return fine_ && data_.empty(); }

 private:
  std::string_view data_;
  bool fine_ = true;
};

}  // namespace dllm
