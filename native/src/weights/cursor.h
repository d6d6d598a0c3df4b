// Reads a header forwards through one bounded window; every step is checked against the end.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "source.h"

namespace dllm::weights {

class Cursor {
 public:
  Cursor(Source& source, std::string name)
      : source_(source), name_(std::move(name)), size_(source.size_bytes()) {}

  // The next number, little endian.
  template <typename Number>
  Number number() {
    Number value;
    std::memcpy(&value, hold(sizeof value), sizeof value);
    place_ += sizeof value;
    return value;
  }

  // A string; one of more bytes than `limit` is a corrupt file.
  std::string text(std::size_t limit);
  void skip(std::uint64_t bytes);
  void skip_array(std::uint64_t count, std::uint64_t element_bytes);
  void skip_strings(std::uint64_t count);

  [[nodiscard]] std::uint64_t place() const { return place_; }
  [[nodiscard]] std::uint64_t size() const { return size_; }
  [[nodiscard]] std::uint64_t left() const { return size_ - place_; }

  // Throws ModelError, the file's name before `what`.
  [[noreturn]] void fail(const std::string& what) const;
  [[noreturn]] void corrupt(const std::string& what) const { fail("is corrupt: " + what); }

 private:
  // Has so many bytes at hand; where they are.
  const std::uint8_t* hold(std::size_t bytes);
  void refill(std::size_t bytes);
  [[noreturn]] void truncated() const;

  Source& source_;
  std::string name_;
  std::uint64_t size_;
  std::uint64_t place_ = 0;
  std::uint64_t start_ = 0;  // of the window
  std::vector<std::uint8_t> window_;
};

}  // namespace dllm::weights
