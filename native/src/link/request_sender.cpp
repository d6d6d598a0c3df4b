#include "request_sender.h"

#include <algorithm>
#include <utility>

#include "meter/placement.h"
#include "protocol/tensor.h"

namespace dllm::link {

namespace {

// Of the client's bytes, waiting for credit; beyond, it is not read.
constexpr std::size_t kHeldMax = 64 << 10;

weights::TensorKey key_of(Tensor tensor, std::uint64_t bytes) {
  weights::TensorKey key;
  key.name = tensor.name();
  key.type = tensor.type();
  for (int i = 0; i < Tensor::kDims; ++i) key.shape[static_cast<std::size_t>(i)] = tensor.ne(i);
  key.size_bytes = bytes;
  return key;
}

// With a sparse file: what the client says before the worker has told its version, just HELLO.
constexpr std::size_t kGreetingMax = 64;
// Since then llama-server and relay understand each other about every weight.
constexpr Version kSparseLeast{7, 0, 0};

// By its name; what is computed is none.
bool is_weight(Tensor tensor) {
  return tensor.op() == Tensor::kNoOp && Placement::part_of(tensor.name());
}

}  // namespace

void RequestSender::begin(const LinkEnd& end) {
  if (end.uses(kCompression)) compressor_.emplace();
  if (end.uses(kHome)) sender_.emplace(weights_.counts, &weights_.own);
}

std::size_t RequestSender::room(const LiveLink& link) const {
  if (up_.size() >= kHeldMax) return 0;
  const std::size_t room = session_ ? link.room(session_) : LinkEnd::kWindowBytes;
  if (!sender_) return room;
  // Data that are referred to cross as next to nothing.
  if (sender_->lacks_bytes() > 0) return link.has_room() ? sender_->room() : 0;
  return std::min(room, sender_->spare_bytes());
}

// What is not understood could be a hole of a sparse file, sent as a weight.
void RequestSender::check_read(std::size_t bytes) {
  if (!weights_.own.has_holes()) return;
  unversioned_bytes_ += version_ ? 0 : bytes;
  const bool is_known = version_ ? *version_ >= kSparseLeast : unversioned_bytes_ <= kGreetingMax;
  if (is_read_ && is_known) return;
  throw weights::ModelError(
      "its worker speaks an RPC protocol that is not understood here, and with a sparse model file "
      "everything must be");
}

void RequestSender::take(const Outgoing& out, LiveLink& link) {
  check_read(out.worker.size());
  std::size_t at = 0;
  for (const Detached& each : out.detached) {
    pass(out.worker.subspan(at, each.begin - at), link);
    head(out.worker.subspan(each.begin, each.end - each.begin));
    at = each.end;
  }
  pass(out.worker.subspan(at), link);
}

// Data of a tensor that is referred to, and requests behind them.
void RequestSender::pass(View bytes, LiveLink& link) {
  if (sender_ && sender_->lacks_bytes() > 0) {
    const View data = bytes.first(std::min<std::uint64_t>(bytes.size(), sender_->lacks_bytes()));
    sender_->add(data);
    collect();
    bytes = bytes.subspan(data.size());
  }
  if (!bytes.empty()) requests(bytes, link);
}

void RequestSender::requests(View bytes, LiveLink& link) {
  if (!compressor_) return send_or_hold(bytes, link);
  compressed_.clear();
  compressor_->requests(bytes, compressed_);
  send_or_hold(compressed_, link);
}

void RequestSender::flush(LiveLink& link) {
  if (!compressor_) return;
  compressed_.clear();
  compressor_->flush(compressed_);
  send_or_hold(compressed_, link);
}

void RequestSender::send_or_hold(View bytes, LiveLink& link) {
  if (bytes.empty()) return;
  up_.empty() && link.room(session_) >= bytes.size() ? send(bytes, link) : up_.append(bytes);
}

void RequestSender::send(View bytes, LiveLink& link) {
  link.end().send(session_, bytes);
  if (compressor_) compressor_->runs().take(bytes.size(), link.given());
}

// Whatever led to it, it is about the data of a SET_TENSOR.
void RequestSender::send_home(View message, LiveLink& link) {
  if (!link.end().has(session_)) return;
  link.end().send_home(session_, message);
  link.given()[kSetTensor] += message.size();
}

void RequestSender::head(View head) {
  compressed_.clear();
  if (compressor_) compressor_->head(head, compressed_);
  up_.append(compressor_ ? View(compressed_) : head);
  refer(decided_.front());
  decided_.pop_front();
  collect();
}

void RequestSender::refer(const Decided& decided) {
  if (decided.hole != nullptr) return sender_->begin(*decided.hole);
  decided.recalled ? sender_->recall(decided.key, *decided.recalled) : sender_->begin(decided.key);
}

// What the chunk sender has to say keeps its place.
void RequestSender::collect() {
  while (sender_->has_message()) up_.append_message(encode(sender_->next()));
}

void RequestSender::push(LiveLink& link) {
  while (push_next(link)) continue;
}

bool RequestSender::can_push(const LiveLink& link) const {
  if (!link.has_room()) return false;
  const bool is_needed = sender_ && sender_->has_next();
  return is_needed || up_.message_is_next() || (up_.size() > 0 && link.room(session_) > 0);
}

// What is needed goes first: all else may wait for it at the other end.
bool RequestSender::push_next(LiveLink& link) {
  if (!can_push(link)) return false;
  if (sender_ && sender_->has_next()) {
    send_home(encode(sender_->next()), link);
  } else if (up_.message_is_next()) {
    send_home(up_.take_message(), link);
  } else {
    const View bytes = up_.bytes();
    const std::size_t count = std::min(link.room(session_), bytes.size());
    send(bytes.first(count), link);
    up_.drop(count);
  }
  return true;
}

bool RequestSender::is_done() const {
  return up_.empty() && (!sender_ || sender_->is_done());
}

void RequestSender::told(View message) {
  const weights::Message answer = weights::decode(message);
  const bool is_answer = sender_ && answer.kind == weights::Message::Kind::kAnswer;
  if (!is_answer) throw weights::BadMessage("the worker's relay says what only a head says");
  sender_->answered(answer.have);
}

// A hole goes by what it stands for, whole, or not at all.
void RequestSender::check_hole(const weights::TensorPlace& hole, const weights::TensorKey& key,
                               std::uint64_t offset) const {
  const std::string& name = hole.key.name;
  if (offset != 0 || key != hole.key) {
    throw weights::ModelError(name +
                              " is a hole in the sparse model file here, and llama-server sends "
                              "another tensor of that name, or a part of it");
  }
  if (!sender_ || !weights_.listing.has(key)) {
    throw weights::ModelError(name +
                              " is a hole in the sparse model file here, and in no file of the "
                              "worker's machine");
  }
  if (!sender_->can_begin()) {
    throw weights::ModelError("the worker's machine reads its files too slowly for " + name);
  }
}

// llama-server reads what lies at the path now: that may have other holes than what we know of.
void RequestSender::check_files(Tensor tensor) const {
  if (weights_.own.has_holes() && is_weight(tensor)) weights_.own.check_sparse();
}

void RequestSender::passes(Tensor tensor) {
  check_files(tensor);
  if (weights_.own.hole(tensor.name()) == nullptr) return;
  throw weights::ModelError(
      std::string(tensor.name()) +
      " is a hole in the sparse model file here, and llama-server sends it in a "
      "way in which nothing can stand in for it");
}

bool RequestSender::takes(Tensor tensor, std::uint64_t offset, std::uint64_t bytes) {
  check_files(tensor);
  weights::TensorKey key = key_of(tensor, bytes);
  if (const weights::TensorPlace* const hole = weights_.own.hole(key.name)) {
    check_hole(*hole, key, offset);
    decided_.push_back({std::move(key), {}, hole});
    return true;
  }
  if (offset != 0) return false;
  const bool is_listed = sender_ && weights_.listing.has(key);
  if (is_listed && bytes > 0 && tensor.op() == Tensor::kNoOp && sender_->can_begin()) {
    decided_.push_back({std::move(key), {}, nullptr});
    return true;
  }
  if (is_weight(tensor) && extent(tensor) == bytes) {
    ++weights_.counts.tensors;
    weights_.counts.tensors_missing += is_listed ? 0 : 1;
    weights_.counts.needed_bytes += bytes;
  }
  return false;
}

// What is not listed the worker may still have in a cache of its own; a hole it has not.
std::optional<std::uint64_t> RequestSender::recalls(Tensor tensor, std::uint64_t hash) {
  if (weights_.own.hole(tensor.name()) != nullptr) return 0;
  weights::TensorKey key = key_of(tensor, extent(tensor).value_or(0));
  if (!sender_ || !weights_.listing.has(key)) return std::nullopt;
  if (!weights_.listing.has(key, hash) || !sender_->can_recall(key, hash)) return 0;
  const std::uint64_t bytes = key.size_bytes;
  if (bytes == 0) return 0;
  decided_.push_back({std::move(key), hash, nullptr});
  return bytes;
}

}  // namespace dllm::link
