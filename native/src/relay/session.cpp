#include "session.h"

#include "guard.h"
#include "posix.h"

namespace dllm {

namespace {

// Requests that feed a forward pass.
bool feeds_pass(std::uint8_t id) {
  return is_one_of(id, {kSetTensor, kSetTensor2d, kGetAllocSize, kCopyTensor, kGraphCompute,
                        kGraphRecompute, kCommAllreduce});
}

// Requests that only occur around passes: what was sent before them fed none.
bool sets_up(std::uint8_t id) {
  return is_one_of(
      id, {kAllocBuffer, kFreeBuffer, kBufferClear, kBufferGetBase, kInitTensor, kSetTensorHash});
}

std::string framed(const std::string& payload) {
  const std::uint64_t size = payload.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof size) + payload;
}

}  // namespace

Session::Session(Link& link) : link_(link) {
  const std::lock_guard lock(link_.mutex);
  ++link_.tally.connections;
  ++link_.revision;
  link_.tally.plain = false;
  link_.passes.discard();
}

Session::~Session() {
  const std::lock_guard lock(link_.mutex);
  link_.passes.discard();
  link_.unanswered_since.reset();
  for (const Due& due : dues_) ++link_.tally.commands[due.awaited.rule->id].errors;
  ++link_.revision;
}

std::size_t Session::awaited() {
  const std::lock_guard lock(link_.mutex);
  return dues_.size();
}

Outgoing Session::requests(Bytes bytes, Nanos now) {
  const std::lock_guard lock(link_.mutex);
  forget_sent();
  now_ = now;
  if (plain_) holding_ = false;
  ++link_.revision;
  if (pending_.empty() && request_decoder_.skip(bytes.size())) {
    count_up(bytes.size());
    attribute();
    return {bytes, {}, false, false};
  }
  request_decoder_.feed(bytes);
  attribute();
  return outgoing();
}

Outgoing Session::requests_end() {
  const std::lock_guard lock(link_.mutex);
  forget_sent();
  holding_ = false;
  return outgoing();
}

void Session::forget_sent() {
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(sent_));
  opened_at_ -= std::min(opened_at_, sent_);
  sent_ = 0;
}

Outgoing Session::outgoing() {
  sent_ = holding_ ? opened_at_ : pending_.size();
  const bool more_follows = protocol_ && !plain_ && !asked_;
  return {Bytes(pending_).first(sent_), std::exchange(answers_, {}), refused_, more_follows};
}

void Session::replies(Bytes bytes, Nanos now) {
  const std::lock_guard lock(link_.mutex);
  now_ = now;
  link_.unanswered_since.reset();
  link_.tally.bytes_down += bytes.size();
  reply_decoder_.feed(bytes);
  ++link_.revision;
}

void Session::opened(std::uint8_t id) {
  id_ = kCommands;
  asked_ = false;
  opened_at_ = pending_.size();
  opened_time_ = now_;
  due_ = {};
  holding_ = protocol_.has_value();
  answerable_ = holding_ && link_.answering && Answers::covers(id);
}

bool Session::announced(std::uint8_t id, const Rule* rule, std::uint64_t size) {
  const char* reason = link_.guarding ? guard::refuses_size(rule, size) : nullptr;
  if (rule) id_ = id;
  if (reason) return refuse(reason);
  if (link_.guarding && greeted_ && !protocol_) return refuse("request before the HELLO reply");
  if (!rule) return true;
  greeted_ = greeted_ || id == kHello;
  if (!answerable_) cross(*rule);
  return true;
}

bool Session::fields(const Request& request, View fields) {
  const Rule& rule = *request.rule;
  const char* reason = link_.guarding ? guard::refuses_fields(request, fields) : nullptr;
  if (reason) return refuse(reason);
  if (link_.answering && Answers::covers(rule.id)) due_.key = Answers::key(rule, fields);
  due_.awaited = {&rule, reply_bytes(rule, fields)};
  note_pass_fields(request, fields);
  if (!answerable_) holding_ = false;
  return true;
}

bool Session::tensor(const Request&, Tensor tensor) {
  if (!link_.guarding || !protocol_) return true;
  const char* reason = guard::refuses_tensor(protocol_->version(), tensor);
  return reason ? refuse(reason) : true;
}

void Session::closed(const Request& request) {
  const Rule& rule = *request.rule;
  if (answerable_ && answer(rule)) return;
  if (answerable_) cross(rule);
  holding_ = false;
  attribute();
  id_ = kCommands;
  if (is_one_of(rule.id, {kGraphCompute, kGraphRecompute})) link_.passes.graph(now_);
  if (rule.id == kHello) link_.unanswered_since = now_;
  const Due due = std::exchange(due_, {});
  asked_ = rule.reply_kind != Reply::kNone;
  if (!asked_) return;
  link_.passes.add_trip();
  dues_.push_back(due);
  dues_.back().sent = now_;
  if (dues_.size() > kAwaitedMax) go_plain("too many requests without a reply");
}

// The present request goes to the worker.
void Session::cross(const Rule& rule) {
  ++link_.tally.commands[rule.id].count;
  if (sets_up(rule.id)) link_.passes.discard();
  if (feeds_pass(rule.id)) link_.passes.open(opened_time_);
}

// Only when no reply is due, so that the order of replies stays.
bool Session::answer(const Rule& rule) {
  if (!dues_.empty()) return false;
  const std::optional<std::string> known = link_.answers.find(due_.key);
  if (!known) return false;
  answers_ += framed(*known);
  CommandTally& tally = link_.tally.commands[rule.id];
  ++tally.count;
  ++tally.answered;
  link_.tally.bytes_up -= pending_.size() - opened_at_;
  pending_.resize(opened_at_);
  unattributed_ = 0;
  holding_ = false;
  return true;
}

void Session::note_pass_fields(const Request& request, View fields) {
  const std::uint8_t id = request.rule->id;
  if (is_one_of(id, {kSetTensor, kSetTensor2d})) link_.passes.input(Tensor(fields.data()));
  if (is_one_of(id, {kGetTensor, kGetTensor2d})) note_fetch(Tensor(fields.data()));
  if (id == kFreeBuffer) state_buffers_.erase(load<std::uint64_t>(fields.data()));
  const bool has_room = state_buffers_.size() < kStateBuffersMax;
  if (id == kBufferClear && has_room) state_buffers_.insert(load<std::uint64_t>(fields.data()));
}

// Only what was computed comes from a pass; a save of the KV cache, for example, does not.
void Session::note_fetch(Tensor tensor) {
  due_.from_pass = tensor.op() != Tensor::kNoOp && !state_buffers_.contains(tensor.buffer());
  if (due_.from_pass) {
    link_.passes.ask(now_, tensor);
  } else {
    link_.passes.discard();
  }
}

void Session::passed(View bytes) {
  count_up(bytes.size());
  pending_.insert(pending_.end(), bytes.begin(), bytes.end());
}

void Session::count_up(std::uint64_t bytes) {
  link_.tally.bytes_up += bytes;
  unattributed_ += bytes;
}

// Not before the fixed fields have told what the request belongs to.
void Session::attribute() {
  if (holding_ || !due_.awaited.rule) return;
  link_.tally.commands[id_].bytes_up += unattributed_;
  link_.passes.add_up(unattributed_);
  unattributed_ = 0;
}

bool Session::refuse(const char* reason) {
  refused_ = true;
  ++link_.tally.refused;
  link_.tally.refused_reason = std::string(command_name(id_)) + ": " + reason;
  if (id_ != kCommands) ++link_.tally.commands[id_].errors;
  complain(link_.name + ": refused " + link_.tally.refused_reason + "; connection closed");
  pending_.resize(opened_at_);
  holding_ = false;
  return false;
}

bool Session::lost(const char* reason) {
  go_plain(id_ == kCommands ? reason : std::string(command_name(id_)) + ": " + reason);
  holding_ = false;
  return true;
}

void Session::go_plain(const std::string& reason) {
  if (plain_) return;
  plain_ = true;
  request_decoder_.give_up();
  reply_decoder_.give_up();
  link_.passes.discard();
  ++link_.tally.plain_connections;
  link_.tally.plain = true;
  link_.tally.plain_reason = reason;
  complain(link_.name + ": connection passed on unread: " + reason);
}

const Awaited* Session::begun() {
  if (dues_.empty()) return nullptr;
  if (dues_.front().from_pass) link_.passes.reply_begun(now_);
  return &dues_.front().awaited;
}

void Session::counted(std::uint64_t bytes) {
  link_.tally.commands[dues_.front().awaited.rule->id].bytes_down += bytes;
  link_.passes.add_down(bytes);
}

bool Session::answered(View payload) {
  const Due due = std::move(dues_.front());
  dues_.pop_front();
  const std::uint8_t id = due.awaited.rule->id;
  link_.tally.commands[id].round_trip.add(static_cast<std::uint64_t>(now_ - due.sent));
  if (due.from_pass) link_.passes.reply_ended(now_, link_.tally.estimate);
  if (!due.key.empty()) link_.answers.keep(due.key, payload);
  return id == kHello ? learn_version(payload) : !plain_;
}

void Session::reply_lost(const char* reason) {
  const char* asked = dues_.empty() ? "" : command_name(dues_.front().awaited.rule->id);
  go_plain(std::string(reason) + (*asked ? " to " : "") + asked);
}

bool Session::learn_version(View payload) {
  const Version version{payload[0], payload[1], payload[2]};
  if (version.text() != link_.tally.protocol) link_.answers.forget();
  link_.tally.protocol = version.text();
  link_.tally.ops_guarded = link_.guarding && guard::knows_ops(version);
  if (Protocol::covers(version)) {
    protocol_.emplace(version);
  } else {
    go_plain("protocol " + version.text() + " is not in the table");
  }
  return !plain_;
}

}  // namespace dllm
