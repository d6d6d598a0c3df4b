#include "decoder.h"

namespace dllm::lean {

Decoded Decoder::decode(View message, Buffer& out) {
  if (is_lost_) return {};
  const std::size_t start = out.size();
  Reader in(message);
  std::uint64_t follows = 0;
  if (read(in, out, follows) && !in.failed()) return {in.taken(), follows};
  is_lost_ = true;
  out.resize(start);
  return {};
}

bool Decoder::read(Reader& in, Buffer& out, std::uint64_t& follows) {
  const std::uint8_t first = in.byte();
  if (in.failed()) return false;
  if (blocks_.next() > 0) return first == kBlock && read_block(in, out);
  if (first == kGraph) return graphs_.decode(in, out);
  if (first == kPlain) return read_plain(in, out, follows);
  return (first & kFormMask) != kFormMask && read_request(in, first, out, follows);
}

bool Decoder::read_block(Reader& in, Buffer& out) {
  const std::size_t start = out.size();
  if (!read_data(in, blocks_.before(), blocks_.unit(), blocks_.next(), out)) return false;
  blocks_.crossed(View(out).subspan(start));
  return true;
}

bool Decoder::read_plain(Reader& in, Buffer& out, std::uint64_t& follows) {
  const View header = in.bytes(kRequestHeaderBytes);
  if (in.failed()) return false;
  follows = load<std::uint64_t>(header.data() + 1);
  Writer(out).bytes(header);
  return true;
}

bool Decoder::read_request(Reader& in, std::uint8_t first, Buffer& out, std::uint64_t& follows) {
  if (!read_head(in, first)) return false;
  const Rule* rule = protocol_.rule(head_[0]);
  const auto size = load<std::uint64_t>(head_.data() + 1);
  if (!rule || rule->id == kGraphCompute || rule->id == kHello || !size_fits(*rule, size) ||
      head_.size() != kRequestHeaderBytes + rule->fields) {
    return false;
  }
  const std::size_t slot = first & ~kFormMask;
  heads_.put(slot, head_);
  Writer(out).bytes(head_);
  return size == rule->fields || read_data_of(in, *rule, slot, out, follows);
}

// Into head_; `first` tells of the slot, and how its head is to be had.
bool Decoder::read_head(Reader& in, std::uint8_t first) {
  if ((first & kFormMask) == kNewHead) {
    if (!read_new_head(in)) return false;
  } else {
    head_ = heads_.at(first & ~kFormMask).bytes;
  }
  if (head_.empty()) return false;
  return (first & kFormMask) == kSameHead || read_changes(in, head_);
}

bool Decoder::read_new_head(Reader& in) {
  const std::uint8_t base = in.byte();
  if (base < kHeads) {
    head_ = heads_.at(base).bytes;
    return true;
  }
  const Rule* rule = base == kNoBase ? protocol_.rule(in.byte()) : nullptr;
  if (!rule) return false;
  head_.assign(kRequestHeaderBytes + rule->fields, 0);
  return true;
}

bool Decoder::read_data_of(Reader& in, const Rule& rule, std::size_t slot, Buffer& out,
                           std::uint64_t& follows) {
  const std::uint64_t bytes = load<std::uint64_t>(head_.data() + 1) - rule.fields;
  const auto how = static_cast<Data>(in.byte());
  if (how == Data::kVerbatim) return follows = bytes, true;
  if (how > Data::kElsewhere || rule.id != kSetTensor) return false;
  if (how == Data::kElsewhere) return true;
  if (how == Data::kHere && bytes > kSmallDataBytes) return false;
  blocks_.begin(heads_, slot, head_, bytes);
  if (blocks_.unit() == 0) return false;
  return how == Data::kInBlocks || read_block(in, out);
}

}  // namespace dllm::lean
