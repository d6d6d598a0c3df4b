// Attention masks as llama.cpp makes them: 0 where a token looks, -inf where it does not.
#pragma once

#include <string>

#include "transcript.h"

namespace masks {

constexpr std::uint32_t kF32 = 0, kF16 = 1, kI32 = 26, kI64 = 27;

struct Mask {
  std::uint32_t type = kF16;
  std::uint32_t cells = 0;   // memory in use, a row of the mask
  std::uint32_t tokens = 1;  // rows
  std::uint32_t before = 0;  // cells that every token sees
  std::uint32_t others = 0;  // sequences that take turns with this one in those cells
};

inline std::string data(const Mask& mask) {
  const std::string none(mask.type == kF16 ? 2 : 4, '\0');
  const std::string minus_infinity =
      mask.type == kF16 ? std::string("\x00\xfc", 2) : std::string("\x00\x00\x80\xff", 4);
  std::string bytes;
  bytes.reserve(std::size_t{mask.cells} * mask.tokens * none.size());
  for (std::uint32_t token = 0; token < mask.tokens; ++token) {
    for (std::uint32_t cell = 0; cell < mask.cells; ++cell) {
      const bool own = cell >= mask.before || cell % (mask.others + 1) == 0;
      bytes += own && cell <= mask.before + token ? none : minus_infinity;
    }
  }
  return bytes;
}

inline std::string request(dllm::Version version, const Mask& mask) {
  transcript::TensorSpec spec;
  spec.type = mask.type;
  spec.ne = {mask.cells, mask.tokens, 1, 1};
  spec.name = "RPC0[127.0.0.1:50052]#attn_inp_kq_mask#0";
  return transcript::set_tensor(version, spec, data(mask));
}

}  // namespace masks
