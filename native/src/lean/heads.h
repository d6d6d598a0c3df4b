// The heads of requests that crossed: command, size and fixed fields. Both ends keep the same ones
// in the same slots; which, the encoder decides and says.
#pragma once

#include <array>

#include "bytes.h"
#include "limits.h"

namespace dllm::lean {

struct Head {
  Buffer bytes;
  Buffer data;  // what came behind it last, where both ends keep that
};

class Heads {
 public:
  [[nodiscard]] const Head& at(std::size_t slot) const { return heads_[slot]; }
  // The data in this slot stay.
  void put(std::size_t slot, View bytes);
  // Replaces the data in this slot; by none where it would be too much.
  void keep(std::size_t slot, View data);

 private:
  std::array<Head, kHeads> heads_;
  std::size_t data_bytes_ = 0;
};

// Where `bytes` differ from `base`, which is as long.
void write_changes(View base, View bytes, Writer& out);
// Applies them; false: they are not changes of so many bytes.
bool read_changes(Reader& in, Bytes bytes);

// The encoder's side: what is in which slot, and for how long nobody asked for it.
class HeadIndex {
 public:
  struct Place {
    std::size_t slot;
    std::size_t base;  // slot of the most similar head known; kNoBase: none
  };
  [[nodiscard]] Place find(View head) const;
  void used(std::size_t slot, View head);

 private:
  struct Entry {
    std::uint64_t key = 0;
    std::uint64_t used = 0;  // 0: never
    std::uint8_t id = 0;
  };
  static std::uint64_t key_of(View head);

  std::array<Entry, kHeads> entries_;
  std::uint64_t clock_ = 0;
};

}  // namespace dllm::lean
