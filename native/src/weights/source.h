// Where the bytes of a model come from: a file; in tests, memory that changes at will.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

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

}  // namespace dllm::weights
