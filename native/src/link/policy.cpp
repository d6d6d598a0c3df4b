#include "policy.h"

#include <utility>

#include "protocol/commands.h"

namespace dllm {

namespace {

bool is_answered(std::uint8_t id) {
  return ReplyCache::covers(id) || is_one_of(id, {kGetDeviceMemory, kBufferGetBase});
}

}  // namespace

bool Policy::may_answer(std::uint8_t id) const {
  if (id == kHello) return answering_ && !protocol_ && !greeted_;
  const bool known = answering_ && is_answered(id);
  return protocol_ && (known || (guarding_ && id == kCommInit));
}

std::string Policy::key(const Rule& rule, View fields) const {
  const bool kept = answering_ && is_answered(rule.id);
  return kept ? ReplyCache::key(rule, fields) : std::string();
}

std::optional<std::string> Policy::answer(const Rule& rule, const std::string& key) const {
  // No: the worker would open a way around us, to wherever the client says.
  if (rule.id == kCommInit) return std::string(1, '\0');
  const bool is_own = rule.id == kBufferGetBase || (rule.id == kGetDeviceMemory && allocates_);
  return (is_own ? own_replies_ : replies_).find(key);
}

void Policy::keep_prefetched(const PrefetchedReply& prefetched, Nanos now) {
  const auto id = static_cast<std::uint8_t>(prefetched.key[0]);
  if (id == kGetDeviceMemory && computes_) return;
  // The latest of this connection alone: of a device that shares its memory nobody told.
  if (id == kGetDeviceMemory && allocates_) {
    return own_replies_.begin_start(prefetched.key, view(prefetched.reply), now);
  }
  // What a start was told first, it is told until it allocates.
  if (id == kGetDeviceMemory && (replies_.find(prefetched.key) || !replies_.is_starting(now)))
    return;
  (id == kBufferGetBase ? own_replies_ : replies_).keep(prefetched.key, view(prefetched.reply));
}

void Policy::begin_start(const std::string& greeting, View payload, Nanos now) {
  if (answering_ && protocol_->is_exact()) replies_.begin_start(greeting, payload, now);
}

bool Policy::is_starting(Nanos now) const {
  return answering_ && (allocates_ ? own_replies_ : replies_).is_starting(now);
}

void Policy::crosses(std::uint8_t id) {
  const bool computes = is_one_of(id, {kGraphCompute, kGraphRecompute});
  if (computes && !std::exchange(computes_, true)) end_start();
}

bool Policy::contradicts(const PrefetchedReply& prefetched) const {
  if (!ReplyCache::covers(static_cast<std::uint8_t>(prefetched.key[0]))) return false;
  const std::optional<std::string> before = replies_.find(prefetched.key);
  return before && *before != prefetched.reply;
}

void Policy::end_start() {
  replies_.end_start();
  own_replies_.end_start();
}

void Policy::passed(const Request& request, View fields) {
  guard_.passed(request, fields);
  const std::uint8_t id = request.rule->id;
  allocates_ = allocates_ || id == kAllocBuffer;
  if (id == kFreeBuffer) own_replies_.forget(ReplyCache::base(fields));
  // No figure of memory outlives what changes it.
  if (is_one_of(id, {kAllocBuffer, kFreeBuffer})) end_start();
}

const char* Policy::refuses_header(const Rule* rule, std::uint64_t size,
                                   std::size_t open_questions) const {
  if (!guarding_) return nullptr;
  if (rule && greeted_ && !protocol_) return "request before the HELLO reply";
  if (rule) return guard_.refuses_header(*rule, size, open_questions);
  // A worker that knows HELLO takes nothing before it; what one says that does not, nobody knows.
  if (!protocol_) return greeted_ ? "request before the HELLO reply" : nullptr;
  // Only the worker says which version is passed on unread. One of a minor version beyond the table
  // may have this command: nobody can tell where it ends, so what follows would be unguarded.
  return protocol_->is_exact() ? "command that this version does not have"
                               : "command of a later version";
}

const char* Policy::refuses_fields(const Request& request, View fields,
                                   std::size_t open_questions) {
  const std::uint8_t id = request.rule->id;
  // To be answered here, in its turn.
  const bool too_early = id == kCommInit && may_answer(id) && open_questions > 0;
  if (too_early) return "asked before a reply came";
  return guarding_ ? guard_.refuses_fields(request, fields) : nullptr;
}

const char* Policy::refuses_node(std::uint64_t id) {
  return guarding_ ? guard_.refuses_node(id) : nullptr;
}

const char* Policy::refuses_tensor(Tensor tensor) {
  return guarding_ ? guard_.refuses_tensor(tensor) : nullptr;
}

bool Policy::learn(Version version, bool changed) {
  if (changed) replies_.forget();
  guard_.learn(version);
  if (Protocol::covers(version)) protocol_.emplace(version);
  return protocol_.has_value();
}

bool Policy::guards_ops(Version version) const {
  return guarding_ && knows_ops(version);
}

void Policy::replied(std::uint8_t id, std::uint64_t buffer, const std::string& key, View payload) {
  if (!key.empty() && ReplyCache::covers(id)) replies_.keep(key, payload);
  guard_.replied(id, buffer, payload);
}

}  // namespace dllm
