// Both ends of the lean encodings with nothing between them: requests in, the same requests out.
#pragma once

#include <string>

#include "check.h"
#include "lean/decoder.h"
#include "lean/encoder.h"

namespace lean_pair {

using dllm::View;
namespace lean = dllm::lean;

inline View view(const std::string& bytes) {
  return {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
}

// What crosses for one request.
struct Crossing {
  std::vector<lean::Buffer> messages;
  std::string as_is;  // bytes of the request behind the first message
  lean::Begun begun;

  [[nodiscard]] std::size_t encoded_bytes() const {
    std::size_t sum = 0;
    for (const lean::Buffer& message : messages) sum += message.size();
    return sum;
  }
  [[nodiscard]] std::size_t bytes() const { return encoded_bytes() + as_is.size(); }
};

inline Crossing encode(lean::Encoder& encoder, const std::string& request) {
  Crossing made;
  const View whole = view(request);
  const std::size_t wanted = encoder.wants(whole.first(dllm::kRequestHeaderBytes));
  made.begun = encoder.begin(whole.first(wanted), made.messages.emplace_back());
  View rest = whole.subspan(made.begun.taken);
  if (!made.begun.in_blocks) {
    made.as_is.assign(rest.begin(), rest.end());
    return made;
  }
  while (!rest.empty()) {
    const View piece = rest.first(std::min(rest.size(), lean::kBlockBytes));
    encoder.block(piece, made.messages.emplace_back());
    rest = rest.subspan(piece.size());
  }
  return made;
}

// Empty for junk; what a message says of bytes behind it must be so.
inline std::string decode(lean::Decoder& decoder, const Crossing& crossing) {
  std::string out;
  for (const lean::Buffer& message : crossing.messages) {
    lean::Buffer piece;
    const lean::Decoded decoded = decoder.decode(message, piece);
    if (decoded.taken != message.size()) return {};
    if (decoded.follows != crossing.as_is.size()) return {};
    out.append(piece.begin(), piece.end());
  }
  return out + crossing.as_is;
}

struct Pair {
  explicit Pair(dllm::Version version) : encoder(version), decoder(version) {}
  lean::Encoder encoder;
  lean::Decoder decoder;

  // What crossed; CHECKs that the same came out.
  Crossing pass(const std::string& request) {
    Crossing crossing = encode(encoder, request);
    CHECK(decode(decoder, crossing) == request);
    return crossing;
  }
};

}  // namespace lean_pair
