// Requests from what an Encoder wrote: the worker's end. Whatever it is given, it neither reads nor
// writes beyond bounds, keeps little and makes at most kGraphRequestBytes at a time.
#pragma once

#include "blocks.h"
#include "bytes.h"
#include "graphs.h"
#include "heads.h"

namespace dllm::lean {

struct Decoded {
  std::size_t taken = 0;      // bytes of the message; 0: it is junk, and so is all behind it
  std::uint64_t follows = 0;  // bytes of the request that come next as they are
};

class Decoder {
 public:
  explicit Decoder(Version version) : protocol_(version) {}
  // One message, whole, is at the front of `message`. Appends what it stands for to `out`: the
  // beginning of a request, all of it, or its next piece.
  Decoded decode(View message, Buffer& out);
  // After junk the session is over: nothing is understood any more.
  [[nodiscard]] bool is_lost() const { return is_lost_; }

  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

 private:
  bool read(Reader& in, Buffer& out, std::uint64_t& follows);
  bool read_block(Reader& in, Buffer& out);
  static bool read_plain(Reader& in, Buffer& out, std::uint64_t& follows);
  bool read_request(Reader& in, std::uint8_t first, Buffer& out, std::uint64_t& follows);
  bool read_head(Reader& in, std::uint8_t first);
  bool read_new_head(Reader& in);
  bool read_data_of(Reader& in, const Rule& rule, std::size_t slot, Buffer& out,
                    std::uint64_t& follows);

  Protocol protocol_;
  Heads heads_;
  GraphDecoder graphs_{protocol_};
  Blocks blocks_;
  Buffer head_;
  bool is_lost_ = false;
};

}  // namespace dllm::lean
