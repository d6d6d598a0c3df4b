// Reads chunks and compares their hashes in a thread of its own: a disk may take its time, or hang,
// and the loop of a link must not.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "hashes.h"
#include "posix.h"
#include "resident_weights.h"

namespace dllm::weights {

// Of all sessions of a link.
struct WeightCounts {
  std::uint64_t tensors = 0;          // weights, by reference or not
  std::uint64_t tensors_differ = 0;   // of these: in a file of the worker's, but not all its bytes
  std::uint64_t tensors_missing = 0;  // of these: in no file of the worker's
  std::uint64_t home_bytes = 0;       // came from the worker's own files
  std::uint64_t needed_bytes = 0;     // had to cross

  bool operator==(const WeightCounts&) const = default;
};

class SpareBuffers {
 public:
  using Buffer = std::vector<std::uint8_t>;
  static constexpr std::size_t kMost = 4;

  // One that was given back, as it was then, or an empty one.
  Buffer take() {
    if (spare_.empty()) return {};
    Buffer buffer = std::move(spare_.back());
    spare_.pop_back();
    return buffer;
  }
  void give(Buffer buffer) {
    if (buffer.capacity() >= kChunkBytes && spare_.size() < kMost) {
      spare_.push_back(std::move(buffer));
    }
  }

 private:
  std::vector<Buffer> spare_;
};

// A chunk of which a hash is known, and after the look where it was found.
struct Look {
  std::vector<Resident> residents;  // to be tried in this order
  std::uint64_t chunk = 0;
  std::optional<Blake3Hash> hash;  // none: it is nowhere
  std::vector<std::uint8_t> bytes;
  std::optional<std::size_t> found{};  // which of the residents has it; its bytes are `bytes` then
  std::uint64_t asker = 0;             // for who asks
};

// Tries one resident after the other; reads as long as the disk takes.
void look(Look& look);

class ChunkReader {
 public:
  // Under way at once: more would be no faster, and those that nobody wants any more go first.
  static constexpr std::size_t kLooksMax = 8;

  ChunkReader();
  // Waits for the read under way.
  ~ChunkReader();
  ChunkReader(const ChunkReader&) = delete;
  ChunkReader& operator=(const ChunkReader&) = delete;

  [[nodiscard]] bool has_room() const { return under_way_ < kLooksMax; }
  void ask(Look look);
  // The next that was looked for, in the order of asking.
  std::optional<Look> take();
  // Readable when there may be one.
  [[nodiscard]] int fd() const { return wake_.reader.get(); }

 private:
  void run();

  std::size_t under_way_ = 0;  // asked and not taken
  const Pipe wake_ = make_pipe();
  std::mutex mutex_;  // over everything below
  std::condition_variable changed_;
  std::deque<Look> asked_, looked_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace dllm::weights
