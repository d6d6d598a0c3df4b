// The requests of one session, compressed: a zstd stream in chunks, and between them, as they are,
// data that do not compress. PROTOCOL.md has the format. Bytes may be cut anywhere at either end.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "meter/rates.h"
#include "protocol/decoder.h"

struct ZSTD_CCtx_s;
struct ZSTD_DCtx_s;

namespace dllm::link {

// Whether this build can. Without, a Compressor or Decompressor must not be made.
bool has_compression();

// A window finds the graph of the pass before at 8 k of context, and bounds what either end keeps:
// 10 MiB where it is compressed, 9 MiB where it is decompressed.
inline constexpr int kWindowLog = 23;

class Compressor {
 public:
  using Buffer = std::vector<std::uint8_t>;

  Compressor();
  ~Compressor();
  // Appends to `out` what may leave. What a client said last may be held back until `flush`.
  void requests(View bytes, Buffer& out);
  // Between requests: the head of a SET_TENSOR whose data are sent in another way.
  void head(View head, Buffer& out);
  void flush(Buffer& out);
  // The commands of all that was appended, until it is taken from there. Those in one chunk share
  // its bytes by what they said.
  Runs& runs() { return runs_; }

 private:
  std::size_t step(View bytes, Buffer& out);
  void begin_data(Buffer& out);
  void compress(View bytes, bool flushes, Buffer& out);
  void write_chunk(Buffer& out);

  struct Free {
    void operator()(ZSTD_CCtx_s* context) const;
  };
  std::unique_ptr<ZSTD_CCtx_s, Free> context_;
  Buffer block_;
  Buffer chunk_;            // compressed, not yet appended
  bool is_flushed_ = true;  // nothing is held back in the context
  Buffer head_;             // of the present request, as far as it is looked at
  std::size_t wanted_ = kRequestHeaderBytes;
  std::uint8_t id_ = kCommands;  // of the present or latest request
  std::uint64_t left_ = 0;  // bytes of the present request behind that
  bool is_verbatim_ = false;
  Shares said_{};  // since the last chunk
  Runs runs_;
};

class Decompressor {
 public:
  using Buffer = std::vector<std::uint8_t>;
  // Appended at a time, twice this at most: a few bytes may stand for many.
  static constexpr std::size_t kMostBytes = 64 << 10;

  Decompressor();
  ~Decompressor();
  // Takes bytes from the front of `in`, and appends requests to `out` until that is enough or `in`
  // is empty. Returns how many it took.
  std::size_t take(View in, Buffer& out);
  // What was taken may stand for more than was appended.
  [[nodiscard]] bool has_more() const { return has_more_; }
  // What came was written by no Compressor: nothing more is taken.
  [[nodiscard]] bool is_lost() const { return is_lost_; }

 private:
  std::size_t step(View in, Buffer& out);
  void read_length(std::uint8_t byte);
  std::size_t decompress(View in, Buffer& out);

  struct Free {
    void operator()(ZSTD_DCtx_s* context) const;
  };
  std::unique_ptr<ZSTD_DCtx_s, Free> context_;
  Buffer block_;
  std::uint64_t length_ = 0;  // of a chunk, as far as it came
  unsigned length_bits_ = 0;
  std::uint64_t left_ = 0;  // bytes of the present chunk
  bool is_verbatim_ = false;
  bool has_more_ = false;
  bool is_lost_ = false;
};

}  // namespace dllm::link
