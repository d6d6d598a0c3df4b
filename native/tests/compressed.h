// Both ends of the compression of requests, and between them bytes that are cut anywhere.
#pragma once

#include <string>
#include <vector>

#include "link/compression.h"
#include "transcript.h"

namespace compressed {

using dllm::View;
using dllm::link::Compressor;
using dllm::link::Decompressor;

inline View view(const std::string& bytes) {
  return {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
}

// Pieces of all lengths; of long streams most are long.
inline std::vector<std::string> cut(transcript::Random& random, const std::string& bytes) {
  std::vector<std::string> pieces;
  const std::size_t longest = bytes.size() > 100000 ? 17 : 11;
  for (std::size_t at = 0; at < bytes.size(); at += pieces.back().size()) {
    pieces.push_back(bytes.substr(at, 1 + random() % (std::size_t{1} << (1 + random() % longest))));
  }
  return pieces;
}

struct Stream {
  explicit Stream(std::uint32_t seed = 1) : random(seed) {}

  void send(const std::string& requests) {
    for (const std::string& piece : cut(random, requests)) {
      Compressor::Buffer wire;
      compressor.requests(view(piece), wire);
      if (random() % 4 == 0) compressor.flush(wire);
      carry(wire);
    }
    flush();
  }
  // What a client says between two pauses, all at once.
  void pass(const std::string& requests) {
    Compressor::Buffer wire;
    compressor.requests(view(requests), wire);
    compressor.flush(wire);
    carry(wire);
  }
  void head(const std::string& head) {
    Compressor::Buffer wire;
    compressor.head(view(head), wire);
    carry(wire);
  }
  void flush() {
    Compressor::Buffer wire;
    compressor.flush(wire);
    carry(wire);
  }
  void carry(const Compressor::Buffer& wire) {
    wire_bytes += wire.size();
    for (const std::string& frame : cut(random, std::string(text_of(wire)))) take(view(frame));
  }
  void take(View frame) {
    while ((!frame.empty() || decompressor.has_more()) && !decompressor.is_lost()) {
      Decompressor::Buffer out;
      frame = frame.subspan(decompressor.take(frame, out));
      most_at_once = std::max(most_at_once, out.size());
      received += text_of(out);
    }
  }

  transcript::Random random;
  Compressor compressor;
  Decompressor decompressor;
  std::string received;
  std::size_t wire_bytes = 0;
  std::size_t most_at_once = 0;
};

}  // namespace compressed
