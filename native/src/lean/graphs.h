// GRAPH_COMPUTE as what differs from a graph both ends know: numbers move together, so each
// difference is said once. A graph that resembles none is said by its own tensors, each by the
// last one of the same operation.
#pragma once

#include <array>

#include "bytes.h"
#include "limits.h"

namespace dllm::lean {

// What stands before the nodes of a graph, and how many of both there are.
struct GraphFrame {
  std::uint32_t device = 0;
  std::uint64_t uid = 0;
  std::uint32_t nodes = 0;
  std::uint32_t tensors = 0;
};

// A graph as it is kept: tensors without their zeros.
class Base {
 public:
  [[nodiscard]] bool empty() const { return packed_.empty(); }
  [[nodiscard]] const GraphFrame& frame() const { return frame_; }
  void begin(const GraphFrame& frame);
  // Of a graph that is too large nothing is kept.
  void add(const std::uint8_t* tensor);

  // Gives the tensors one after the other, as often as there are any.
  class Cursor {
   public:
    explicit Cursor(const Base& base) : packed_(base.packed_) {}
    const std::uint8_t* next();

   private:
    const Buffer& packed_;
    std::size_t at_ = 0;
    std::array<std::uint8_t, kTensorBytes> tensor_;
  };

 private:
  GraphFrame frame_;
  Buffer packed_;
  bool too_large_ = false;
};

using Bases = std::array<Base, kGraphs>;

// Appends the message to `out`, `bytes` being a whole request; false, with `out` and the bases as
// they were: it is longer that way, or no graph as stock clients make them.
class GraphEncoder {
 public:
  explicit GraphEncoder(const Protocol& protocol) : protocol_(protocol) {}
  bool encode(View request, Buffer& out);

 private:
  // Some tensors of a base, to tell at once how much a graph is like it.
  struct Sample {
    Buffer tensors;
    std::uint64_t used = 0;
  };
  struct Choice {
    std::size_t base = kNoBase;
    std::size_t target = 0;
  };
  [[nodiscard]] Choice choose(const GraphFrame& frame, View sample) const;

  const Protocol& protocol_;
  Bases bases_;
  Base scratch_;
  std::array<Sample, kGraphs> samples_;
  std::uint64_t clock_ = 0;
};

class GraphDecoder {
 public:
  explicit GraphDecoder(const Protocol& protocol) : protocol_(protocol) {}
  // Appends the request; false: no message of such an encoder.
  bool decode(Reader& in, Buffer& out);

 private:
  const Protocol& protocol_;
  Bases bases_;
  Base scratch_;
};

}  // namespace dllm::lean
