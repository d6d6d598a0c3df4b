#include "encoder.h"

#include <algorithm>
#include <array>

namespace dllm::lean {

namespace {

std::uint64_t payload_bytes(View beginning) {
  return load<std::uint64_t>(beginning.data() + 1);
}

std::size_t head_bytes(const Rule& rule) {
  return kRequestHeaderBytes + rule.fields;
}

constexpr std::array<std::uint8_t, kRequestHeaderBytes + kFieldsMax> kNothing{};
constexpr std::size_t kTypeAt = kRequestHeaderBytes + Tensor::kTypeAt;
constexpr std::uint32_t kNoType = UINT32_MAX;

}  // namespace

Encoder::Encoder(Version version) : protocol_(version) {}

const Rule* Encoder::rule_of(View beginning) const {
  const Rule* rule = protocol_.rule(beginning[0]);
  const std::uint64_t size = payload_bytes(beginning);
  if (!rule || rule->id == kHello || !size_fits(*rule, size)) return nullptr;
  const bool is_large = size > kGraphRequestBytes - kRequestHeaderBytes;
  return rule->id == kGraphCompute && is_large ? nullptr : rule;
}

std::size_t Encoder::wants(View beginning) const {
  const Rule* rule = rule_of(beginning);
  if (!rule) return kRequestHeaderBytes;
  const std::uint64_t data = payload_bytes(beginning) - rule->fields;
  if (rule->id == kGraphCompute || data == 0) return head_bytes(*rule) + data;
  if (rule->id != kSetTensor) return head_bytes(*rule);
  return head_bytes(*rule) + (data <= kSmallDataBytes ? data : kProbeBytes);
}

Begun Encoder::begin(View beginning, Buffer& out) {
  const Rule* rule = rule_of(beginning);
  if (!rule) return plain(beginning, out);
  const View seen = beginning.first(wants(beginning));
  if (rule->id != kGraphCompute) return with_head(*rule, seen, out);
  return graphs_.encode(seen, out) ? Begun{seen.size()} : plain(seen, out);
}

Begun Encoder::plain(View beginning, Buffer& out) {
  Writer writer(out);
  writer.byte(kPlain);
  writer.bytes(beginning.first(kRequestHeaderBytes));
  return {.taken = kRequestHeaderBytes, .is_plain = true};
}

Begun Encoder::with_head(const Rule& rule, View seen, Buffer& out) {
  const View head = seen.first(head_bytes(rule));
  const HeadIndex::Place place = index_.find(head);
  const std::size_t start = out.size();
  Writer writer(out);
  write_head(place, head, writer);
  if (out.size() - start > head.size()) {
    out.resize(start);
    return plain(seen, out);
  }
  keep_head(place, head);
  if (payload_bytes(head) == rule.fields) return {head.size()};
  return with_data(rule, place.slot, seen, out);
}

void Encoder::keep_head(HeadIndex::Place place, View head) {
  heads_.put(place.slot, head);
  index_.used(place.slot, head);
}

void Encoder::head(View head, Buffer& out) {
  const HeadIndex::Place place = index_.find(head);
  Writer writer(out);
  write_head(place, head, writer);
  keep_head(place, head);
  writer.byte(static_cast<std::uint8_t>(Data::kElsewhere));
}

void Encoder::write_head(HeadIndex::Place place, View head, Writer& out) const {
  const auto slot = static_cast<std::uint8_t>(place.slot);
  const View base =
      place.base == kNoBase ? View(kNothing).first(head.size()) : View(heads_.at(place.base).bytes);
  if (place.base == place.slot) {
    if (std::ranges::equal(base, head)) return out.byte(kSameHead | slot);
    out.byte(kChangedHead | slot);
  } else {
    out.byte(kNewHead | slot);
    out.byte(static_cast<std::uint8_t>(place.base));
    if (place.base == kNoBase) out.byte(head[0]);
  }
  write_changes(base, head, out);
}

Begun Encoder::with_data(const Rule& rule, std::size_t slot, View seen, Buffer& out) {
  const auto say = [&out](Data how) { out.push_back(static_cast<std::uint8_t>(how)); };
  const View head = seen.first(head_bytes(rule)), data = seen.subspan(head.size());
  const auto type = rule.id == kSetTensor ? load<std::uint32_t>(&head[kTypeAt]) : kNoType;
  if (!is_worth_encoding(type, data)) return say(Data::kVerbatim), Begun{head.size()};
  const std::uint64_t bytes = payload_bytes(head) - rule.fields;
  blocks_.begin(heads_, slot, head, bytes);
  if (data.size() < bytes) return say(Data::kInBlocks), Begun{head.size(), true};
  say(Data::kHere);
  if (write_here(data, out)) return {seen.size()};
  return say(Data::kVerbatim), Begun{head.size()};
}

bool Encoder::write_here(View data, Buffer& out) {
  const std::size_t start = out.size();
  Writer writer(out);
  write_data({blocks_.before(), data, blocks_.unit(), blocks_.row()}, writer);
  if (out.size() - start > data.size()) {
    out.resize(start - 1);
    return false;
  }
  blocks_.crossed(data);
  return true;
}

void Encoder::block(View data, Buffer& out) {
  Writer writer(out);
  writer.byte(kBlock);
  write_data({blocks_.before(), data, blocks_.unit(), blocks_.row()}, writer);
  blocks_.crossed(data);
}

}  // namespace dllm::lean
