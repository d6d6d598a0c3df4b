// Where the bytes of a model come from: a file; in tests, memory that changes at will.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "posix.h"

namespace dllm::weights {

// A model file that cannot be used; the text is a sentence that names it.
class ModelError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Source {
 public:
  Source() = default;
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  virtual ~Source() = default;

  // When it was opened.
  [[nodiscard]] virtual std::uint64_t size_bytes() const = 0;

  // Fills `into` with what lies at `offset`; fewer bytes only where it ends. Throws ModelError.
  virtual std::size_t read(std::uint64_t offset, std::span<std::uint8_t> into) = 0;

  // What was read there is not read again: memory need not keep it.
  virtual void forget(std::uint64_t /*offset*/, std::uint64_t /*size_bytes*/) {}
};

// Tells a file from what stands in its place later. Not what it holds: that is what hashes are for.
struct FileId {
  std::string path;
  std::uint64_t size_bytes = 0;
  std::int64_t mtime_ns = 0;
  std::uint64_t inode = 0;

  bool operator==(const FileId&) const = default;
};

// Reads, never a map: a mapped file that shrinks kills the process.
class FileSource : public Source {
 public:
  // Throws ModelError where there is no such file.
  explicit FileSource(const std::string& path);

  [[nodiscard]] std::uint64_t size_bytes() const override { return id_.size_bytes; }
  std::size_t read(std::uint64_t offset, std::span<std::uint8_t> into) override;
  void forget(std::uint64_t offset, std::uint64_t size_bytes) override;

  // When it was opened, and at this moment.
  [[nodiscard]] const FileId& id() const { return id_; }
  [[nodiscard]] FileId id_now() const;
  // Whether who opens the path now gets the file as it was when we did.
  [[nodiscard]] bool is_in_place() const;

  // From here on `forget` takes what was read out of the system's file cache.
  void drop_cache();

 private:
  UniqueFd file_;
  FileId id_;
  bool drops_ = false;
};

// Whether so many bytes fit twice into the memory this process may use: once where the worker keeps
// them, once as a cache of the file.
bool fits_twice(std::uint64_t size_bytes);

// Numbers and texts, one behind the other, as GGUF has them.
class Packer {
 public:
  template <typename Number>
  Packer& number(Number value) {
    return raw({reinterpret_cast<const char*>(&value), sizeof value});
  }
  Packer& raw(std::string_view bytes) {
    data_.append(bytes);
    return *this;
  }
  Packer& text(std::string_view text) { return number<std::uint64_t>(text.size()).raw(text); }
  template <typename Number>
  Packer& numbers(const std::vector<Number>& values) {
    number<std::uint64_t>(values.size());
    for (const Number& value : values) number(value);
    return *this;
  }
  std::string take() { return std::move(data_); }

 private:
  std::string data_;
};

// Reads a source from its beginning, through a window.
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
