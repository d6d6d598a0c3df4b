// What arrived in one session, until it is requests for the rpc-server: it is decompressed, and
// weights come from the files of this machine where these have them.
#pragma once

#include <optional>

#include "compression.h"
#include "home/assembly.h"
#include "mingled.h"

namespace dllm::pair {

class Arrivals {
 public:
  // Handed out at a time, and decompressed ahead of that: a few bytes may stand for many.
  static constexpr std::size_t kAheadMax = 256 << 10;

  // Nothing is shorter than it was, and no weights come from here.
  Arrivals() = default;
  void use_compression() { decompressor_.emplace(); }
  void use_home(const home::Home& home, home::HomeCounts& counts);

  void arrived(View data) { mingled_.append(data); }
  // A message of `home`. Throws home::BadMessage.
  void told(View message);
  // Nothing more arrives.
  void finish() { finished_ = true; }

  // The next requests; empty: none yet. Valid until the next call of anything here, may be changed
  // in place. Throws home::BadMessage.
  Bytes next();
  void taken(std::size_t count);
  // Whether a chunk of a weight can be looked for; that; and whether it is here.
  [[nodiscard]] bool can_look() const { return assembly_ && assembly_->can_look(); }
  home::Look next_look() { return assembly_->next_look(); }
  bool looked(home::Look look) { return assembly_->looked(std::move(look)); }

  // Bytes that count against credit and wait.
  [[nodiscard]] std::size_t waiting() const { return mingled_.size(); }
  // All that ever arrives was taken.
  [[nodiscard]] bool is_over() const;
  // What waits goes nowhere.
  void clear();

 private:
  void feed();
  void decompress(Bytes bytes);
  [[nodiscard]] bool has_more() const { return decompressor_ && decompressor_->has_more(); }
  [[nodiscard]] bool has_room() const;

  Mingled mingled_;
  std::optional<Decompressor> decompressor_;
  std::optional<home::Assembly> assembly_;
  Decompressor::Buffer requests_;  // that need not go through the assembly
  std::size_t taken_ = 0;  // of them
  Decompressor::Buffer decompressed_;
  bool finished_ = false;
};

}  // namespace dllm::pair
