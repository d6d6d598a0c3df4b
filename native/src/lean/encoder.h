// Requests of one session as few bytes, without loss: the head's end. ENCODINGS.md describes what
// is written. The other end's Decoder sees every message, in order; both start empty together with
// the session, once its version is known, and end with it.
//
// How to drive it, request by request:
//
//   gather at least wants() bytes of the request (its first kRequestHeaderBytes tell how many);
//   begun = encoder.begin(gathered, out);          // `out` gets one message, appended
//   then what `begun` did not take of the request, as it comes:
//     in_blocks   every kBlockBytes of it, the last ones fewer: encoder.block(piece, out), each
//                 one message. So much is gathered at either end, never a whole mask.
//     otherwise   as it is, right behind the message: it is not looked at, needs no gathering and
//                 no order with anything but itself.
//
// Messages and such bytes say themselves where they end, so that any number of them may stand in
// one frame. Of data that the caller sends in another way (weights by reference) only head() is
// told.
#pragma once

#include "blocks.h"
#include "bytes.h"
#include "graphs.h"
#include "heads.h"
#include "limits.h"

namespace dllm::lean {

struct Begun {
  std::size_t taken = 0;   // bytes of the request, from its first, that the message stands for
  bool in_blocks = false;  // the rest goes through block()
  bool is_plain = false;   // none but the header was taken, and nothing remembered
};

class Encoder {
 public:
  // A version that the table of protocols does not have: everything goes plain.
  explicit Encoder(Version version);
  // So many bytes of a request, from its first, begin() must see; at most kGraphRequestBytes.
  // `beginning`: at least kRequestHeaderBytes.
  [[nodiscard]] std::size_t wants(View beginning) const;
  Begun begin(View beginning, Buffer& out);
  // The whole head of a SET_TENSOR whose data are sent in another way and do not come here.
  void head(View head, Buffer& out);
  void block(View data, Buffer& out);

  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

 private:
  // Null for what goes plain.
  [[nodiscard]] const Rule* rule_of(View beginning) const;
  static Begun plain(View beginning, Buffer& out);
  Begun with_head(const Rule& rule, View seen, Buffer& out);
  void write_head(HeadIndex::Place place, View head, Writer& out) const;
  void keep_head(HeadIndex::Place place, View head);
  Begun with_data(const Rule& rule, std::size_t slot, View seen, Buffer& out);
  bool write_here(View data, Buffer& out);

  Protocol protocol_;
  Heads heads_;
  HeadIndex index_;
  GraphEncoder graphs_{protocol_};
  Blocks blocks_;
};

}  // namespace dllm::lean
