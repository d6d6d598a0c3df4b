#include "graphs.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "tensors.h"

namespace dllm::lean {

namespace {

constexpr std::size_t kSampled = 8;  // tensors of a graph that stand for all
// Of the words of a sample, so many alike of so many: the same graph a little later.
constexpr std::size_t kAlike = 31, kOf = 32;

// The parts of a request.
struct Parts {
  GraphFrame frame;
  View nodes;
  View tensors;
};

std::size_t request_bytes(const Rule& rule, std::uint64_t nodes, std::uint64_t tensors) {
  return kRequestHeaderBytes + rule.fields + nodes * kGraphNodeBytes + kGraphCountBytes +
         tensors * kTensorBytes;
}

bool has_device(const Rule& rule) {
  return rule.fields > kGraphCountBytes;
}
bool has_uid(const Rule& rule) {
  return rule.fields > 2 * kGraphCountBytes;
}

// False: its size is not what its counts say.
bool take_apart(const Rule& rule, View request, Parts& parts) {
  if (request.size() < request_bytes(rule, 0, 0)) return false;
  const std::uint8_t* at = request.data() + kRequestHeaderBytes;
  GraphFrame& frame = parts.frame;
  if (has_device(rule)) frame.device = load<std::uint32_t>(at);
  if (has_uid(rule)) frame.uid = load<std::uint64_t>(at + 4);
  frame.nodes = load<std::uint32_t>(at + rule.fields - kGraphCountBytes);
  if (request.size() < request_bytes(rule, frame.nodes, 0)) return false;
  const std::size_t head = request_bytes(rule, frame.nodes, 0);
  frame.tensors = load<std::uint32_t>(request.data() + head - kGraphCountBytes);
  if (request.size() != request_bytes(rule, frame.nodes, frame.tensors)) return false;
  parts.nodes = request.subspan(kRequestHeaderBytes + rule.fields, frame.nodes * kGraphNodeBytes);
  parts.tensors = request.subspan(head);
  return true;
}

void write_frame(const Rule& rule, const GraphFrame& frame, const GraphFrame& base, Writer& out) {
  if (has_device(rule)) out.number(frame.device);
  if (has_uid(rule)) out.difference(frame.uid - base.uid);
  out.number(frame.nodes);
  out.number(frame.tensors);
}

bool read_frame(const Rule& rule, Reader& in, const GraphFrame& base, GraphFrame& frame) {
  const std::uint64_t device = has_device(rule) ? in.number() : 0;
  frame.uid = has_uid(rule) ? base.uid + in.difference() : 0;
  const std::uint64_t nodes = in.number(), tensors = in.number();
  if (in.failed() || device > UINT32_MAX) return false;
  if (nodes > kGraphRequestBytes || tensors > kGraphRequestBytes) return false;
  frame.device = static_cast<std::uint32_t>(device);
  frame.nodes = static_cast<std::uint32_t>(nodes);
  frame.tensors = static_cast<std::uint32_t>(tensors);
  return request_bytes(rule, nodes, tensors) <= kGraphRequestBytes;
}

// Everything of a request but its nodes and tensors.
void store_frame(const Rule& rule, const GraphFrame& frame, Bytes request) {
  const auto store = [&request](std::size_t at, auto value) {
    std::memcpy(request.data() + at, &value, sizeof value);
  };
  request[0] = rule.id;
  store(1, std::uint64_t{request.size() - kRequestHeaderBytes});
  if (has_device(rule)) store(kRequestHeaderBytes, frame.device);
  if (has_uid(rule)) store(kRequestHeaderBytes + 4, frame.uid);
  store(kRequestHeaderBytes + rule.fields - kGraphCountBytes, frame.nodes);
  store(request_bytes(rule, frame.nodes, 0) - kGraphCountBytes, frame.tensors);
}

// The tensors that are computed, in their order.
class Computed {
 public:
  explicit Computed(View tensors) : tensors_(tensors) {}
  // Null behind the last.
  const std::uint8_t* next() {
    while (at_ + kTensorBytes <= tensors_.size()) {
      const std::uint8_t* tensor = tensors_.data() + at_;
      at_ += kTensorBytes;
      if (Tensor(tensor).op() != Tensor::kNoOp) return tensor;
    }
    return nullptr;
  }

 private:
  View tensors_;
  std::size_t at_ = 0;
};

void write_pair(std::uint64_t passed, std::uint64_t taken, Writer& out) {
  if ((passed | taken) == 0) return;
  out.number(passed);
  out.number(taken);
}

// Nodes as so many computed tensors passed over, then so many taken, and so on. False: they are
// not computed tensors in their order.
bool write_nodes(View nodes, View tensors, Writer& out) {
  Computed computed(tensors);
  std::uint64_t passed = 0, taken = 0;
  for (std::size_t at = 0; at < nodes.size(); at += kGraphNodeBytes) {
    const std::uint8_t* tensor = computed.next();
    if (tensor && std::memcmp(tensor, nodes.data() + at, kGraphNodeBytes) == 0) {
      ++taken;
      continue;
    }
    write_pair(passed, taken, out);
    for (passed = 0, taken = 1; tensor; tensor = computed.next()) {
      if (std::memcmp(tensor, nodes.data() + at, kGraphNodeBytes) == 0) break;
      ++passed;
    }
    if (!tensor) return false;
  }
  write_pair(passed, taken, out);
  return true;
}

bool read_nodes(Reader& in, View tensors, Bytes nodes) {
  Computed computed(tensors);
  std::size_t at = 0;
  while (at < nodes.size()) {
    const std::uint64_t passed = in.number(), taken = in.number();
    if (in.failed() || (passed | taken) == 0) return false;
    for (std::uint64_t i = 0; i < passed; ++i) {
      if (!computed.next()) return false;
    }
    for (std::uint64_t i = 0; i < taken; ++i, at += kGraphNodeBytes) {
      const std::uint8_t* tensor = computed.next();
      if (!tensor || at == nodes.size()) return false;
      std::memcpy(nodes.data() + at, tensor, kGraphNodeBytes);
    }
  }
  return true;
}

void write_tensors(const Base* base, View tensors, Writer& out, Base& kept) {
  TensorEncoder encoder(out);
  std::optional<Base::Cursor> cursor;
  if (base) cursor.emplace(*base);
  ByOperation last;
  for (std::size_t at = 0; at < tensors.size(); at += kTensorBytes) {
    const std::uint8_t* tensor = tensors.data() + at;
    encoder.add(cursor ? cursor->next() : last.at(tensor[Tensor::kOpAt]), tensor, !cursor);
    if (!cursor) last.put(tensor);
    kept.add(tensor);
  }
  encoder.end();
}

bool read_tensors(Reader& in, const Base* base, Bytes tensors, Base& kept) {
  TensorDecoder decoder(in);
  std::optional<Base::Cursor> cursor;
  if (base) cursor.emplace(*base);
  ByOperation last;
  for (std::size_t at = 0; at < tensors.size(); at += kTensorBytes) {
    std::uint8_t* tensor = tensors.data() + at;
    std::memcpy(tensor, cursor ? cursor->next() : last.at(in.byte()), kTensorBytes);
    FieldSet set = 0;
    if (!decoder.next(set) || !decoder.apply(set, tensor)) return false;
    if (!cursor) last.put(tensor);
    kept.add(tensor);
  }
  return true;
}

Buffer sample(View tensors) {
  Buffer taken;
  taken.reserve(kSampled * kTensorBytes);
  Writer out(taken);
  const std::size_t count = tensors.size() / kTensorBytes;
  for (std::size_t i = 0; count > 0 && i < kSampled; ++i) {
    out.bytes(tensors.subspan(i * count / kSampled * kTensorBytes, kTensorBytes));
  }
  return taken;
}

std::size_t words_alike(View one, View other) {
  std::size_t alike = 0;
  for (std::size_t at = 0; at < one.size() && at < other.size(); at += 8) {
    alike += load<std::uint64_t>(&one[at]) == load<std::uint64_t>(&other[at]);
  }
  return alike;
}

}  // namespace

void Base::begin(const GraphFrame& frame) {
  frame_ = frame;
  packed_.clear();
  too_large_ = false;
}

void Base::add(const std::uint8_t* tensor) {
  if (too_large_) return;
  FieldSet set = 0;
  const std::size_t start = packed_.size();
  packed_.resize(start + sizeof set + kTensorBytes);
  std::uint8_t* at = packed_.data() + start + sizeof set;
  for (std::size_t i = 0; i < kFields; ++i) {
    const Field& field = kTensorFields[i];
    const std::uint64_t value = load_field(tensor, field);
    if (value == 0) continue;
    set |= std::uint64_t{1} << i;
    std::memcpy(at, &value, field.is_long ? 8 : 4);
    at += field.is_long ? 8 : 4;
  }
  std::memcpy(packed_.data() + start, &set, sizeof set);
  packed_.resize(static_cast<std::size_t>(at - packed_.data()));
  too_large_ = packed_.size() > kBaseBytes;
  if (too_large_) Buffer().swap(packed_);
}

const std::uint8_t* Base::Cursor::next() {
  auto set = load<FieldSet>(packed_.data() + at_);
  at_ += sizeof set;
  tensor_.fill(0);
  for (; set != 0; set &= set - 1) {
    const Field& field = kTensorFields[static_cast<std::size_t>(std::countr_zero(set))];
    std::memcpy(tensor_.data() + field.at, packed_.data() + at_, field.is_long ? 8 : 4);
    at_ += field.is_long ? 8 : 4;
  }
  return tensor_.data();
}

GraphEncoder::Choice GraphEncoder::choose(const GraphFrame& frame, View sample) const {
  Choice choice;
  std::size_t most = 0, oldest = 0;
  for (std::size_t i = 0; i < kGraphs; ++i) {
    if (samples_[i].used < samples_[oldest].used) oldest = i;
    const GraphFrame& other = bases_[i].frame();
    if (bases_[i].empty() || other.device != frame.device || other.tensors != frame.tensors) {
      continue;
    }
    const std::size_t alike = words_alike(sample, samples_[i].tensors);
    if (alike > most) choice.base = i, most = alike;
  }
  const bool same = choice.base != kNoBase && most * kOf >= sample.size() / 8 * kAlike;
  choice.target = same ? choice.base : oldest;
  return choice;
}

bool GraphEncoder::encode(View request, Buffer& out) {
  const Rule* rule = protocol_.rule(kGraphCompute);
  Parts parts;
  if (!rule || !take_apart(*rule, request, parts)) return false;
  Buffer taken = sample(parts.tensors);
  const Choice choice = choose(parts.frame, taken);
  const Base* base = choice.base == kNoBase ? nullptr : &bases_[choice.base];
  const std::size_t start = out.size();
  Writer writer(out);
  writer.byte(kGraph);
  writer.byte(static_cast<std::uint8_t>(choice.base));
  writer.byte(static_cast<std::uint8_t>(choice.target));
  write_frame(*rule, parts.frame, base ? base->frame() : GraphFrame{}, writer);
  scratch_.begin(parts.frame);
  write_tensors(base, parts.tensors, writer, scratch_);
  if (!write_nodes(parts.nodes, parts.tensors, writer) || out.size() - start >= request.size()) {
    out.resize(start);
    return false;
  }
  if (base) samples_[choice.base].used = ++clock_;
  std::swap(scratch_, bases_[choice.target]);
  samples_[choice.target] = {std::move(taken), ++clock_};
  return true;
}

bool GraphDecoder::decode(Reader& in, Buffer& out) {
  const Rule* rule = protocol_.rule(kGraphCompute);
  const std::size_t base_at = in.byte(), target = in.byte();
  if (!rule || target >= kGraphs || (base_at >= kGraphs && base_at != kNoBase)) return false;
  const Base* base = base_at == kNoBase ? nullptr : &bases_[base_at];
  GraphFrame frame;
  if (!read_frame(*rule, in, base ? base->frame() : frame, frame)) return false;
  if (base && (base->empty() || base->frame().tensors != frame.tensors)) return false;
  const std::size_t start = out.size(), size = request_bytes(*rule, frame.nodes, frame.tensors);
  out.resize(start + size);
  const Bytes request = Bytes(out).subspan(start);
  store_frame(*rule, frame, request);
  const Bytes tensors = request.last(frame.tensors * kTensorBytes);
  scratch_.begin(frame);
  if (!read_tensors(in, base, tensors, scratch_)) return false;
  const std::size_t nodes_at = kRequestHeaderBytes + rule->fields;
  if (!read_nodes(in, tensors, request.subspan(nodes_at, frame.nodes * kGraphNodeBytes))) {
    return false;
  }
  std::swap(scratch_, bases_[target]);
  return true;
}

}  // namespace dllm::lean
