#include "placement.h"

#include <charconv>
#include <iterator>
#include <utility>
#include <vector>

#include "json.h"

namespace dllm {

namespace {

constexpr std::size_t kDeviceBytes = 4;  // of ALLOC_BUFFER, which has no device before 3.0
constexpr std::size_t kSizeBytes = 8;

bool drop_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// Of a tensor as a file holds it, row after row. The stride of a row never exceeds its 32 bits on
// the wire, those of the higher dimensions may.
std::uint64_t stored_bytes(Tensor tensor) {
  std::uint64_t bytes = tensor.nb(1);
  for (int i = 1; i < Tensor::kDims; ++i) bytes *= tensor.ne(i);
  return bytes;
}

std::string held_list(const Placement::Held& held) {
  return json::list({std::to_string(held.tensors), std::to_string(held.bytes)});
}

std::string range_list(std::int32_t first, std::int32_t last, const Placement::Held& held) {
  return json::list({std::to_string(first), std::to_string(last), std::to_string(held.tensors),
                     std::to_string(held.bytes)});
}

// Neighbours that hold the same become one range.
std::string layers_list(const Placement::Parts& parts) {
  std::vector<std::string> ranges;
  const auto end = parts.lower_bound(Placement::kOutput);
  for (auto at = parts.begin(); at != end;) {
    auto last = at;
    auto next = std::next(at);
    while (next != end && next->first == last->first + 1 && next->second == at->second) {
      last = next++;
    }
    ranges.push_back(range_list(at->first, last->first, at->second));
    at = next;
  }
  return json::list(ranges);
}

Placement::Held held_of(const Placement::Parts& parts, std::int32_t part) {
  const auto found = parts.find(part);
  return found == parts.end() ? Placement::Held{} : found->second;
}

std::string device_object(std::uint32_t device, const Placement::Parts& parts) {
  return json::Object()
      .number("device", device)
      .raw("layers", layers_list(parts))
      .raw("embedding", held_list(held_of(parts, Placement::kEmbedding)))
      .raw("output", held_list(held_of(parts, Placement::kOutput)))
      .str();
}

}  // namespace

std::optional<std::int32_t> Placement::part_of(std::string_view name) {
  const bool is_adapter = name.ends_with(".lora_a") || name.ends_with(".lora_b");
  if (is_adapter) return std::nullopt;
  for (const char* embedding :
       {"token_embd", "token_types", "position_embd", "per_layer_token_embd"}) {
    if (name.starts_with(embedding)) return kEmbedding;
  }
  if (name.starts_with("output")) return kOutput;
  // T5 has enc.blk.N and dec.blk.N.
  if (!drop_prefix(name, "enc.")) drop_prefix(name, "dec.");
  if (!drop_prefix(name, "blk.")) return std::nullopt;
  std::int32_t layer = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  const bool is_named = error == std::errc{} && end != name.data() + name.size() && *end == '.';
  if (!is_named || layer < 0 || layer >= kLayersMax) return std::nullopt;
  return layer;
}

void Placement::request(const Request& request, View fields) {
  const std::uint8_t id = request.rule->id;
  if (id == kAllocBuffer) {
    const bool has_device = fields.size() == kDeviceBytes + kSizeBytes;
    return open({id, has_device ? load<std::uint32_t>(fields.data()) : 0, std::nullopt});
  }
  if (id == kFreeBuffer) return freed(load<std::uint64_t>(fields.data()));
  if (!is_one_of(id, {kSetTensor, kSetTensor2d, kSetTensorHash})) return;
  const Tensor tensor(fields.data());
  const auto part = tensor.op() == Tensor::kNoOp ? part_of(tensor.name()) : std::nullopt;
  // A tensor that comes in slices counts with the first.
  const bool is_hash = id == kSetTensorHash;
  const bool begins = tensor_offset(id, fields) == 0;
  const std::uint64_t bytes = is_hash ? stored_bytes(tensor) : request.size - fields.size();
  std::optional<Weight> weight;
  if (part) weight = Weight{tensor.buffer(), *part, {begins ? 1U : 0U, bytes}};
  if (is_hash) return open({id, 0, weight});
  if (weight) put(*weight);
}

void Placement::reply(std::uint8_t id, View payload) {
  if (open_.empty() || open_.front().id != id) return;
  const Open asked = std::move(open_.front());
  open_.pop_front();
  if (id == kAllocBuffer) return allocated(asked.device, payload);
  // What the worker does not know yet is sent to it afterwards.
  const bool has_it = !payload.empty() && payload[0] != 0;
  if (asked.weight && has_it) put(*asked.weight);
}

void Placement::forget() {
  buffers_.clear();
  open_.clear();
  parts_ = 0;
  complete_ = true;
}

std::map<std::uint32_t, Placement::Parts> Placement::devices() const {
  std::map<std::uint32_t, Parts> devices;
  for (const auto& [_, buffer] : buffers_) {
    for (const auto& [part, held] : buffer.parts) {
      Held& sum = devices[buffer.device][part];
      sum.tensors += held.tensors;
      sum.bytes += held.bytes;
    }
  }
  return devices;
}

void Placement::open(Open asked) {
  if (open_.size() < kOpenMax) {
    open_.push_back(std::move(asked));
  } else {
    complete_ = false;
  }
}

void Placement::allocated(std::uint32_t device, View payload) {
  const bool is_filled = parts_ > 0;
  const auto buffer = load<std::uint64_t>(payload.data());
  if (buffer == 0 || is_filled) return;
  freed(buffer);
  if (buffers_.size() < kBuffersMax) {
    buffers_[buffer] = {device, {}};
  } else {
    complete_ = false;
  }
}

void Placement::put(const Weight& weight) {
  const auto buffer = buffers_.find(weight.buffer);
  if (buffer == buffers_.end()) return;
  Parts& parts = buffer->second.parts;
  const bool is_new = !parts.contains(weight.part);
  if (is_new && parts_ == kPartsMax) {
    complete_ = false;
    return;
  }
  parts_ += is_new;
  Held& held = parts[weight.part];
  held.tensors += weight.held.tensors;
  held.bytes += weight.held.bytes;
}

void Placement::freed(std::uint64_t buffer) {
  const auto found = buffers_.find(buffer);
  if (found == buffers_.end()) return;
  parts_ -= found->second.parts.size();
  buffers_.erase(found);
}

std::string placement_line(const std::string& worker, const Placement& placement, bool understood) {
  std::vector<std::string> devices;
  for (const auto& [device, parts] : placement.devices()) {
    devices.push_back(device_object(device, parts));
  }
  return json::Object()
      .text("type", "placement")
      .text("worker", worker)
      .flag("complete", understood && placement.complete())
      .raw("devices", json::list(devices))
      .line();
}

}  // namespace dllm
