#include "decoder.h"

#include <algorithm>

namespace dllm {

namespace {

constexpr const char* kNoHello = "no HELLO first: RPC from before 1.0, or none";

}  // namespace

bool size_fits(const Rule& rule, std::uint64_t size) {
  if (&rule == &hello_rule()) return size == 0 || size == kHelloCapsBytes;
  return rule.data_follows ? size >= rule.fields : size == rule.fields;
}

void RequestDecoder::feed(Bytes bytes) {
  while (!bytes.empty() && step_ != Step::kEnded) {
    bytes = bytes.subspan(take(bytes));
  }
}

void RequestDecoder::give_up() {
  if (step_ == Step::kEnded) return;
  const bool may_greet = step_ == Step::kHeader && is_first_;
  const bool is_greeting = is_in_caps() && got_ < wanted_;
  step_ = may_greet ? Step::kLastHeader : is_greeting ? Step::kLastCaps : Step::kPipe;
}

bool RequestDecoder::is_in_caps() const {
  const bool is_hello = step_ == Step::kRest && request_.rule->id == kHello;
  return is_hello || step_ == Step::kLastCaps;
}

bool RequestDecoder::skip(std::uint64_t bytes) {
  if (step_ == Step::kPipe) return true;
  // The capabilities of a HELLO are not passed as they are.
  const bool is_payload = step_ == Step::kRest && !is_in_caps();
  if (!is_payload || wanted_ - got_ <= bytes) return false;
  got_ += bytes;
  return true;
}

// Takes what belongs to the present step.
std::size_t RequestDecoder::take(Bytes bytes) {
  if (step_ == Step::kPipe) {
    sink_.passed(bytes);
    return bytes.size();
  }
  if (step_ == Step::kHeader && got_ == 0) sink_.opened(bytes[0]);
  const Bytes part = bytes.first(std::min<std::uint64_t>(bytes.size(), wanted_ - got_));
  const bool is_read = step_ != Step::kRest && step_ != Step::kLastCaps;
  if (is_in_caps()) std::ranges::fill(part, std::uint8_t{0});
  if (is_read) std::ranges::copy(part, gathered_.data() + got_);
  sink_.passed(part);
  got_ += part.size();
  if (got_ == wanted_) finish_step();
  return part.size();
}

void RequestDecoder::enter(Step step, std::uint64_t bytes) {
  if (step != Step::kHeader) left_ -= bytes;
  step_ = step;
  wanted_ = bytes;
  got_ = 0;
  if (bytes == 0) finish_step();
}

void RequestDecoder::finish_step() {
  switch (step_) {
    case Step::kHeader:
      return read_header();
    case Step::kFields:
      return read_fields();
    case Step::kNode:
      return read_node();
    case Step::kTensorCount:
      return read_tensor_count();
    case Step::kTensor:
      return read_tensor();
    case Step::kRest:
      return close();
    case Step::kLastHeader:
      return read_last_header();
    case Step::kLastCaps:
      step_ = Step::kPipe;
      return;
    case Step::kPipe:
    case Step::kEnded:
      return;
  }
}

const Rule* RequestDecoder::find_rule(std::uint8_t id) {
  const Protocol* protocol = sink_.protocol();
  if (protocol) return protocol->rule(id);
  return id == kHello ? &hello_rule() : nullptr;
}

void RequestDecoder::read_header() {
  const std::uint8_t id = gathered_[0];
  request_ = {find_rule(id), load<std::uint64_t>(&gathered_[1])};
  if (!sink_.announced(id, request_.rule, request_.size)) {
    step_ = Step::kEnded;
    return;
  }
  if (!request_.rule) return lose(sink_.protocol() ? "unknown command" : kNoHello);
  const Rule& rule = *request_.rule;
  if (!size_fits(rule, request_.size)) return lose("impossible request size");
  left_ = request_.size;
  enter(Step::kFields, rule.fields);
}

void RequestDecoder::read_last_header() {
  const auto size = load<std::uint64_t>(&gathered_[1]);
  const bool has_caps = gathered_[0] == kHello && size == kHelloCapsBytes;
  has_caps ? enter(Step::kLastCaps, size) : give_up();
}

void RequestDecoder::read_fields() {
  const std::uint32_t fields = request_.rule->fields;
  if (!sink_.fields(request_, View(gathered_).first(fields))) {
    step_ = Step::kEnded;
    return;
  }
  if (request_.rule->id != kGraphCompute) return enter(Step::kRest, left_);
  nodes_ = load<std::uint32_t>(&gathered_[fields - kGraphCountBytes]);
  const std::uint64_t least = kGraphNodeBytes * nodes_ + kGraphCountBytes;
  return left_ < least ? lose("graph shorter than its nodes") : next_node();
}

void RequestDecoder::next_node() {
  if (nodes_ == 0) return enter(Step::kTensorCount, kGraphCountBytes);
  --nodes_;
  enter(Step::kNode, kGraphNodeBytes);
}

void RequestDecoder::read_node() {
  if (sink_.node(request_, load<std::uint64_t>(gathered_.data()))) return next_node();
  step_ = Step::kEnded;
}

void RequestDecoder::read_tensor_count() {
  tensors_ = load<std::uint32_t>(gathered_.data());
  const std::uint64_t bytes = std::uint64_t{tensors_} * kTensorBytes;
  if (left_ < bytes) return lose("graph shorter than its tensors");
  if (left_ > bytes) return lose("graph longer than its tensors");
  next_tensor();
}

void RequestDecoder::next_tensor() {
  if (tensors_ == 0) return close();
  --tensors_;
  enter(Step::kTensor, kTensorBytes);
}

void RequestDecoder::read_tensor() {
  if (sink_.tensor(request_, Tensor(gathered_.data()))) return next_tensor();
  step_ = Step::kEnded;
}

void RequestDecoder::close() {
  is_first_ = false;
  sink_.closed(request_);
  if (step_ != Step::kPipe) enter(Step::kHeader, kRequestHeaderBytes);
}

void RequestDecoder::lose(const char* reason) {
  step_ = sink_.lost(reason) ? Step::kPipe : Step::kEnded;
}

void ReplyDecoder::feed(Bytes bytes) {
  while (!bytes.empty() && !pipe_) {
    bytes = bytes.subspan(take(bytes));
  }
}

std::size_t ReplyDecoder::take(Bytes bytes) {
  if (!awaited_ && !begin()) return bytes.size();
  const Bytes part = bytes.first(std::min<std::uint64_t>(bytes.size(), wanted_ - got_));
  for (std::size_t i = 0; i < part.size(); ++i) {
    const std::uint64_t at = got_ + i;
    if (at >= gathered_.size()) break;
    const bool is_caps = in_payload_ && awaited_->rule->id == kHello && at >= kHelloReplyCaps;
    if (is_caps) part[i] = 0;
    gathered_[at] = part[i];
  }
  got_ += part.size();
  sink_.counted(part.size());
  if (got_ == wanted_) in_payload_ ? finish() : read_header();
  return part.size();
}

bool ReplyDecoder::begin() {
  awaited_ = sink_.begun();
  if (!awaited_) lose("a reply nobody asked for");
  return awaited_ != nullptr;
}

void ReplyDecoder::read_header() {
  const auto size = load<std::uint64_t>(gathered_.data());
  const bool fits = awaited_->rule->reply_kind == Reply::kHello
                        ? size == kShortHelloReply || size == kLongHelloReply
                        : size == awaited_->reply;
  if (!fits) return lose("unexpected reply size");
  in_payload_ = true;
  wanted_ = size;
  got_ = 0;
  if (size == 0) finish();
}

void ReplyDecoder::finish() {
  const std::size_t kept = wanted_ <= gathered_.size() ? wanted_ : 0;
  awaited_ = nullptr;
  in_payload_ = false;
  wanted_ = kReplyHeaderBytes;
  got_ = 0;
  if (!sink_.answered(View(gathered_).first(kept))) pipe_ = true;
}

void ReplyDecoder::lose(const char* reason) {
  pipe_ = true;
  sink_.reply_lost(reason);
}

// It follows the tensor; in SET_TENSOR it is the last field, behind a flag since 7.0.
std::uint64_t tensor_offset(std::uint8_t id, View fields) {
  const bool is_last = id == kSetTensor;
  return load<std::uint64_t>(
      &fields[is_last ? fields.size() - sizeof(std::uint64_t) : kTensorBytes]);
}

std::uint64_t reply_bytes(const Rule& rule, View fields) {
  switch (rule.reply_kind) {
    case Reply::kTensor:
      return load<std::uint64_t>(&fields[kTensorBytes + 8]);
    case Reply::kTensorRows:
      return load<std::uint64_t>(&fields[kTensorBytes + 8]) *
             load<std::uint64_t>(&fields[kTensorBytes + 16]);
    case Reply::kFixed:
      return rule.reply;
    case Reply::kNone:
    case Reply::kHello:
      break;
  }
  return 0;
}

}  // namespace dllm
