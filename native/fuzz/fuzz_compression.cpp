// Both ends of the compression between two relays. The input as what a client says comes out as it
// went in, however it is cut; as what another relay says, changed or made up, it is taken or
// refused, within the bounds.
#include <algorithm>
#include <cstdlib>
#include <span>

#include "compressed.h"

namespace {

using dllm::View;
using dllm::link::Compressor;
using dllm::link::Decompressor;

void demand(bool holds) {
  if (!holds) std::abort();
}

// Requests that resemble each other as real ones do, with the input in them.
std::string requests_by(View input) {
  const dllm::Version version = transcript::kVersions[input[0] % transcript::kVersions.size()];
  transcript::TensorSpec spec;
  spec.type = input[0] % 3 == 0 ? 26 : input[0] % 3;
  spec.name = input[0] % 2 == 0 ? "KQ_mask" : "l_out";
  const std::string data(text_of(input));
  const std::string set = transcript::set_tensor(version, spec, data + data);
  return set + transcript::graph(version, {transcript::tensor(spec)}) + data + set;
}

Compressor::Buffer compress(const std::string& requests, std::size_t seed) {
  transcript::Random random(seed);
  Compressor compressor;
  Compressor::Buffer wire;
  for (const std::string& piece : compressed::cut(random, requests)) {
    compressor.requests(compressed::view(piece), wire);
    if (random() % 4 == 0) compressor.flush(wire);
  }
  compressor.flush(wire);
  dllm::Shares shares{};
  compressor.runs().take(wire.size(), shares);
  return wire;
}

// What comes out, of whatever came; of junk what was before it.
std::string decompress(View wire, bool& is_lost) {
  Decompressor decompressor;
  std::string received;
  // What stands for more than that is not waited for.
  constexpr std::size_t kEnough = 1 << 20;
  while ((!wire.empty() || decompressor.has_more()) && !decompressor.is_lost()) {
    Decompressor::Buffer out;
    wire =
        wire.subspan(decompressor.take(wire.first(std::min<std::size_t>(wire.size(), 999)), out));
    demand(out.size() <= 2 * Decompressor::kMostBytes);
    received += text_of(out);
    if (received.size() > kEnough) break;
  }
  is_lost = decompressor.is_lost();
  return received;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const View input{data, size};
  bool is_lost = false;
  const std::string requests = requests_by(input.first(std::min<std::size_t>(size, 4096)));
  Compressor::Buffer wire = compress(requests, size);
  demand(decompress(wire, is_lost) == requests && !is_lost);
  std::size_t at = 0;
  for (const std::uint8_t each : input) at = at * 31 + each;
  wire[at % wire.size()] ^= static_cast<std::uint8_t>(1 + at / 7 % 255);
  decompress(wire, is_lost);
  decompress(input, is_lost);
  return 0;
}
