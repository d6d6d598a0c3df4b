// Both ends of the encodings for whoever has streams of bytes, cut anywhere: a Sender takes the
// requests of one session as a client sends them, a Receiver what a Sender wrote, and gives the
// same requests. Whatever a client sends comes out, be it no requests at all.
#pragma once

#include <optional>

#include "decoder.h"
#include "encoder.h"
#include "relay/shares.h"

namespace dllm::lean {

class Sender {
 public:
  // The worker told its version. What follows the present request is encoded; until then nothing
  // is.
  void learned(Version version) { learned_ = version; }
  // Appends to `out` what may leave. Held back is what begin() or block() must see whole, so at
  // most kGraphRequestBytes of a request that is not complete.
  void requests(View bytes, Buffer& out);
  // Between requests: the head of a SET_TENSOR of this version whose data are sent in another way.
  void head(View head, Buffer& out);
  // The client sends no more: what was held back.
  void end(Buffer& out);
  // The commands of all that was appended, until it is taken from there.
  Runs& runs() { return runs_; }

 private:
  std::size_t step(View bytes, Buffer& out);
  std::size_t pass(View bytes, Buffer& out);
  std::size_t gather(View bytes, Buffer& out);
  void learn(Buffer& out);
  [[nodiscard]] std::size_t wanted(View beginning) const;
  std::size_t consume(View gathered, Buffer& out);

  std::optional<Version> learned_;
  std::optional<Encoder> encoder_{std::in_place, Version{}};
  Buffer held_;
  Buffer message_;
  std::uint64_t left_ = 0;  // bytes of the present request behind what the messages stand for
  bool in_blocks_ = false;  // they go through block()
  std::uint8_t id_ = kCommands;  // of the present request
  Runs runs_;
};

class Receiver {
 public:
  // Takes bytes from the front of `in`, and appends requests to `out` until it has appended
  // kMostBytes or `in` is empty: a few bytes may stand for many. Returns how many it took. Between
  // calls `out` may be emptied.
  std::size_t take(View in, Buffer& out);
  static constexpr std::size_t kMostBytes = 64 << 10;
  // What came was written by no Sender: nothing more is taken, and the session is over.
  [[nodiscard]] bool is_lost() const { return is_lost_; }

 private:
  std::size_t step(View in, Buffer& out);
  std::size_t pass(View in, Buffer& out);
  std::size_t gather(View in, Buffer& out);
  void open(View message, Buffer& out);
  bool read(View message, Buffer& out);

  std::optional<Decoder> decoder_{std::in_place, Version{}};
  Buffer held_;              // of a message that is not complete, with its length
  std::uint64_t as_is_ = 0;  // bytes that come next as they are
  bool is_lost_ = false;
};

}  // namespace dllm::lean
