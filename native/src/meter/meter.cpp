#include "meter.h"

#include <utility>

namespace dllm {

namespace {

// Requests that feed a forward pass, beside its inputs.
bool feeds_pass(std::uint8_t id) {
  return is_one_of(id, {kCopyTensor, kGraphCompute, kGraphRecompute, kCommAllreduce});
}

// Requests that only occur around passes: what was sent before them fed none.
bool sets_up(std::uint8_t id) {
  return is_one_of(id, {kAllocBuffer, kFreeBuffer, kBufferGetBase, kInitTensor, kSetTensorHash});
}

}  // namespace

Meter::Meter(Link& link) : link_(link) {
  ++link_.tally.connections;
  ++link_.revision;
  link_.tally.passthrough = false;
  link_.passes.meet();
  link_.bulk = {};
  link_.placement.forget();
}

void Meter::ended() {
  link_.passes.discard();
  link_.placement.forget();
  link_.unanswered_since.reset();
  link_.waiting_since.reset();
  ++link_.revision;
}

void Meter::opened() {
  id_ = kCommands;
  opened_time_ = now_;
}

void Meter::crosses(const Rule& rule) {
  ++link_.tally.commands[rule.id].count;
  if (sets_up(rule.id)) link_.passes.discard();
  if (rule.id == kBufferClear) link_.passes.forget();
  if (rule.id == kGetAllocSize) link_.passes.prepare(opened_time_);
  if (feeds_pass(rule.id)) link_.passes.feed(opened_time_);
}

void Meter::answered_here(const Rule& rule, View payload) {
  CommandTally& tally = link_.tally.commands[rule.id];
  ++tally.count;
  ++tally.answered;
  if (sets_up(rule.id)) link_.passes.discard();
  link_.placement.reply(rule.id, payload);
}

bool Meter::fields(const Request& request, View fields, std::uint64_t reply) {
  const std::uint8_t id = request.rule->id;
  bool from_pass = false;
  if (is_one_of(id, {kSetTensor, kSetTensor2d})) note_input(request, fields);
  if (is_one_of(id, {kGetTensor, kGetTensor2d})) {
    from_pass = note_fetch(Tensor(fields.data()), reply);
  }
  if (id == kFreeBuffer) state_buffers_.erase(load<std::uint64_t>(fields.data()));
  const bool has_room = state_buffers_.size() < kStateBuffersMax;
  if (id == kBufferClear && has_room) state_buffers_.insert(load<std::uint64_t>(fields.data()));
  link_.placement.request(request, fields);
  return from_pass;
}

// What is set in the KV cache, as when a conversation is restored, feeds no pass.
void Meter::note_input(const Request& request, View fields) {
  const Tensor tensor(fields.data());
  if (state_buffers_.contains(tensor.buffer())) return link_.passes.discard();
  link_.passes.set(opened_time_, tensor, tensor_offset(request.rule->id, fields),
                   request.size - fields.size());
}

// Only what was computed comes from a pass; a save of the KV cache, for example, does not.
bool Meter::note_fetch(Tensor tensor, std::uint64_t reply) {
  const bool from_pass = tensor.op() != Tensor::kNoOp && !state_buffers_.contains(tensor.buffer());
  from_pass ? link_.passes.ask(tensor, reply) : link_.passes.discard();
  return from_pass;
}

void Meter::closed(const Rule& rule, std::size_t replies) {
  id_ = kCommands;
  if (is_one_of(rule.id, {kGraphCompute, kGraphRecompute})) {
    link_.passes.graph(now_);
    link_.bulk.computes();
  }
  if (rule.id == kHello) link_.unanswered_since = now_;
  if (rule.reply_kind == Reply::kNone) return;
  link_.passes.add_trip();
  if (replies == 1) waits(true);
}

void Meter::waits(bool for_reply) {
  link_.waiting_since.reset();
  if (for_reply) link_.waiting_since = now_;
}

void Meter::count_up(std::uint64_t bytes, bool crosses) {
  link_.tally.bytes_up += bytes;
  if (crosses) link_.bulk.sent(bytes, now_);
  unattributed_ += bytes;
}

void Meter::drop_up(std::uint64_t bytes) {
  link_.tally.bytes_up -= bytes;
  unattributed_ -= bytes;
}

void Meter::count_late(std::uint8_t id, std::uint64_t bytes) {
  link_.tally.bytes_up += bytes;
  link_.tally.commands[id].bytes_up += bytes;
}

void Meter::book() {
  if (knows_request()) link_.tally.commands[id_].bytes_up += unattributed_;
  link_.passes.add_up(unattributed_);
  unattributed_ = 0;
}

std::string Meter::named_reason(const char* reason) const {
  return knows_request() ? command_name(id_) + (": " + std::string(reason)) : reason;
}

void Meter::refused(const char* reason) {
  ++link_.tally.refused;
  link_.tally.refused_reason = named_reason(reason);
  if (knows_request()) ++link_.tally.commands[id_].errors;
  link_.tell("refused " + link_.tally.refused_reason + "; connection closed", Level::kError);
}

void Meter::went_passthrough(const std::string& reason) {
  link_.passes.discard();
  ++link_.tally.passthrough_connections;
  link_.tally.passthrough = true;
  link_.tally.passthrough_reason = reason;
  link_.tell("connection passed on unread: " + reason, Level::kWarning);
  book();
  // What follows belongs to nothing.
  id_ = kCommands;
}

void Meter::count_down(std::uint64_t bytes) {
  link_.unanswered_since.reset();
  link_.tally.bytes_down += bytes;
}

void Meter::count_reply(std::uint8_t id, std::uint64_t bytes) {
  link_.tally.commands[id].bytes_down += bytes;
  link_.passes.add_down(bytes);
}

void Meter::replied(const Rule& rule, Nanos asked, bool from_pass, bool more, View payload) {
  link_.placement.reply(rule.id, payload);
  link_.tally.commands[rule.id].round_trip.add(static_cast<std::uint64_t>(now_ - asked));
  if (!more) link_.bulk.arrived(now_, link_.lab.on());
  if (from_pass) link_.passes.reply_ended(now_, link_.tally.estimate);
}

void Meter::learned(Version version, bool ops_guarded) {
  link_.tally.protocol = version.text();
  link_.tally.ops_guarded = ops_guarded;
}

}  // namespace dllm
