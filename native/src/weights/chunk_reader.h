// Reads chunks and compares their hashes in a thread of its own: a disk may take its time, or hang,
// and the loop of a link must not.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "resident_weights.h"
#include "posix.h"

namespace dllm::weights {

// A chunk of which a hash is known, and after the look where it was found.
struct Look {
  std::vector<Resident> residents;  // to be tried in this order
  std::uint64_t chunk = 0;
  std::optional<std::uint64_t> hash;  // none: it is nowhere
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
