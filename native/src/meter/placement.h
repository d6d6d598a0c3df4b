// Which weights each device of one worker holds: what its client put there, tensor by tensor.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "protocol/decoder.h"

namespace dllm {

// Fed with the requests and replies of one connection, in order. A stock client allocates all
// buffers of a model before it fills the first, so what is allocated after that belongs to another
// model (a draft) or to none (KV cache, graphs) and is left out. Names are the client's word: those
// that are no weight's are passed over, and what is kept is bounded whatever they say.
class Placement {
 public:
  static constexpr std::size_t kBuffersMax = 1024;
  static constexpr std::size_t kOpenMax = 1024;  // questions without a reply
  static constexpr std::size_t kPartsMax = 4096;
  static constexpr std::int32_t kLayersMax = 4096;

  struct Held {
    std::uint64_t tensors = 0;
    std::uint64_t bytes = 0;
    bool operator==(const Held&) const = default;
  };
  // Layers by their number, and behind them what is none.
  using Parts = std::map<std::int32_t, Held>;
  static constexpr std::int32_t kOutput = kLayersMax;
  static constexpr std::int32_t kEmbedding = kLayersMax + 1;

  // Where a tensor of this name belongs; none for what is no model weight.
  static std::optional<std::int32_t> part_of(std::string_view name);

  // A request goes to the worker.
  void request(const Request& request, View fields);
  // Its reply has come.
  void reply(std::uint8_t id, View payload);
  // The connection begins or ends: a worker without a client holds nothing.
  void forget();

  // False when not everything could be kept account of.
  [[nodiscard]] bool complete() const { return complete_; }
  [[nodiscard]] std::map<std::uint32_t, Parts> devices() const;

 private:
  struct Buffer {
    std::uint32_t device = 0;
    Parts parts;
  };
  // A tensor on its way into a buffer.
  struct Weight {
    std::uint64_t buffer = 0;
    std::int32_t part = 0;
    Held held;
  };
  struct Open {
    std::uint8_t id = 0;
    std::uint32_t device = 0;      // of ALLOC_BUFFER
    std::optional<Weight> weight;  // of SET_TENSOR_HASH
  };

  void open(Open asked);
  void allocated(std::uint32_t device, View payload);
  void put(const Weight& weight);
  void freed(std::uint64_t buffer);

  std::map<std::uint64_t, Buffer> buffers_;
  std::deque<Open> open_;
  std::size_t parts_ = 0;  // of all buffers
  bool complete_ = true;
};

// {"type": "placement", …}: per device its layers as [first, last, tensors, bytes], both of each
// layer from first to last, and embedding and output as [tensors, bytes].
std::string placement_line(const std::string& worker, const Placement& placement, bool understood);

}  // namespace dllm
