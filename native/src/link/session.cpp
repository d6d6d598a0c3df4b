#include "session.h"

#include <algorithm>
#include <utility>

namespace dllm {

namespace {

// Since then a SET_TENSOR may say that the worker is not to keep it in a cache of its own, so that
// what it gets from a file beside it leaves no second copy there. Before, it is asked itself.
constexpr Version kCacheFlag{7, 0, 0};
constexpr std::size_t kFlagBytes = 1;

// A connection begins under the mutex of its link.
Meter begin_metering(Link& link) {
  const std::lock_guard lock(link.mutex);
  return Meter(link);
}

}  // namespace

Session::Session(Link& link, Weights* weights)
    : link_(link),
      weights_(weights),
      policy_(link.guarding, link.answering, link.reply_cache),
      meter_(begin_metering(link)) {}

Session::~Session() {
  const std::lock_guard lock(link_.mutex);
  for (const Due& due : dues_) {
    if (!due.is_own) meter_.left_unanswered(due.awaited.rule->id);
  }
  meter_.ended();
}

std::size_t Session::awaited() {
  const std::lock_guard lock(link_.mutex);
  return dues_.size();
}

// Of the client.
std::size_t Session::open_questions() const {
  return dues_.size() - own_open_ - late_;
}

Outgoing Session::requests(Bytes bytes, Nanos now) {
  const std::lock_guard lock(link_.mutex);
  forget_sent();
  set_time(now);
  if (pending_.empty() && request_decoder_.skip(bytes.size())) {
    meter_.count_up(bytes.size(), !is_detached_);
    attribute();
    return {bytes, {}, false, false, {}};
  }
  request_decoder_.feed(bytes);
  attribute();
  return outgoing();
}

Outgoing Session::requests_end() {
  const std::lock_guard lock(link_.mutex);
  prefetches_ = false;
  forget_sent();
  holding_ = false;
  return outgoing();
}

Bytes Session::replies(Bytes bytes, Nanos now) {
  const std::lock_guard lock(link_.mutex);
  set_time(now);
  meter_.count_down(bytes.size());
  replies_ = bytes;
  seen_ = kept_ = 0;
  held_from_ = holds_replies() ? 0 : bytes.size();
  reply_decoder_.feed(bytes);
  // What is not followed.
  pass_reply(bytes.size() - seen_, false);
  meter_.waits(open_questions() > 0 && !passthrough_);
  return released(bytes.first(kept_));
}

void Session::timed(Trip trip) {
  // What another end says it took may be no time at all.
  if (trip.began <= 0 || trip.ended < trip.began) return;
  const std::lock_guard lock(link_.mutex);
  link_.passes.computed(trip.ended - trip.began);
}

std::optional<Version> Session::version() const {
  const Protocol* protocol = policy_.protocol();
  return protocol ? std::optional(protocol->version()) : std::nullopt;
}

std::optional<Trip> Session::take_trip() {
  return std::exchange(trip_, std::nullopt);
}

void Session::set_time(Nanos now) {
  now_ = now;
  meter_.set_time(now);
  ++link_.revision;
}

void Session::forget_sent() {
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(sent_));
  held_at_ -= std::min(held_at_, sent_);
  sent_ = 0;
  detached_.clear();
}

Outgoing Session::outgoing() {
  sent_ = holding_ ? held_at_ : pending_.size();
  if (owed_ > 0 && sent_ > owed_) greet_late();
  // Alone it goes nowhere.
  if (owed_ > 0) sent_ = 0;
  const bool more_follows = protocol() && !passthrough_ && !asked_;
  return {Bytes(pending_).first(sent_), std::exchange(answers_, {}), refused_, more_follows,
          detached_};
}

void Session::opened(std::uint8_t id) {
  asked_ = false;
  is_detached_ = false;
  due_ = {};
  meter_.opened();
  be_answerable(id);
  if (policy_.guards() || protocol() || answerable_) hold();
}

// Whatever may be answered here is held back until it is complete.
void Session::be_answerable(std::uint8_t id) {
  answerable_ = policy_.may_answer(id) || may_recall(id);
}

bool Session::may_recall(std::uint8_t id) {
  return weights_ && id == kSetTensorHash && protocol() && protocol()->version() >= kCacheFlag;
}

// What comes from here on waits to be judged.
void Session::hold() {
  held_at_ = pending_.size();
  holding_ = true;
}

bool Session::announced(std::uint8_t id, const Rule* rule, std::uint64_t size) {
  if (rule) meter_.named(id);
  const char* reason = policy_.refuses_header(rule, size, open_questions());
  if (reason) return refuse(reason);
  if (!rule) {
    if (weights_) weights_->unread();
    return true;
  }
  if (id == kHello) {
    policy_.greeted();
    greeting_ = ReplyCache::greeting(size);
  }
  if (!answerable_) meter_.crosses(*rule);
  return true;
}

bool Session::fields(const Request& request, View fields) {
  const Rule& rule = *request.rule;
  if (const char* reason = policy_.refuses_fields(request, fields, open_questions())) {
    return refuse(reason);
  }
  policy_.passed(request, fields);
  due_.key = policy_.key(rule, fields);
  if (rule.id == kBufferGetBase) due_.buffer = load<std::uint64_t>(fields.data());
  const bool may_lead_on = prefetches_ && is_one_of(rule.id, {kAllocBuffer, kGetAllocSize});
  if (may_lead_on) due_.asked.assign(fields.begin(), fields.end());
  due_.awaited = {&rule, reply_bytes(rule, fields)};
  due_.from_pass = meter_.fields(request, fields, due_.awaited.reply);
  is_detached_ = detaches(request, fields);
  if (is_detached_) detached_.push_back({held_at_, pending_.size()});
  if (!answerable_) holding_ = false;
  if (policy_.guards() && rule.id == kGraphCompute) hold();
  return true;
}

// The data of a tensor. The head must be here in one piece: it is not where the version came in the
// middle of it.
bool Session::detaches(const Request& request, View fields) {
  if (!weights_ || !is_one_of(request.rule->id, {kSetTensor, kSetTensor2d})) return false;
  if (!protocol() || !holding_ || request.rule->id != kSetTensor) {
    weights_->passes(Tensor(fields.data()));
    return false;
  }
  const std::uint64_t offset = tensor_offset(request.rule->id, fields);
  return weights_->takes(Tensor(fields.data()), offset, request.size - fields.size());
}

bool Session::node(const Request&, std::uint64_t id) {
  return judged(policy_.refuses_node(id));
}

bool Session::tensor(const Request&, Tensor tensor) {
  return judged(policy_.refuses_tensor(tensor));
}

// A part of a graph.
bool Session::judged(const char* reason) {
  if (reason) return refuse(reason);
  if (policy_.guards()) hold();
  return true;
}

void Session::closed(const Request& request) {
  link_.client_has_spoken = true;
  const Rule& rule = *request.rule;
  if (answerable_ && answer(rule)) return;
  if (answerable_) meter_.crosses(rule);
  policy_.crosses(rule.id);
  holding_ = false;
  attribute();
  asked_ = rule.reply_kind != Reply::kNone;
  Due due = std::exchange(due_, {});
  due.sent = now_;
  if (!asking_.empty()) return own_closed(std::move(due));
  if (asked_) dues_.push_back(std::move(due));
  const bool is_graph = is_one_of(rule.id, {kGraphCompute, kGraphRecompute});
  if (trip_begun_ == 0 && (asked_ || is_graph)) trip_begun_ = now_;
  meter_.closed(rule, open_questions());
  if (open_questions() > Guard::kAwaitedMax) go_passthrough("too many requests without a reply");
}

// Only when no reply is due, so that the order of replies stays.
bool Session::answer(const Rule& rule) {
  if (open_questions() > 0) return false;
  if (rule.id == kSetTensorHash) return answer_hash(rule);
  if (ReplyCache::is_of_start(rule.id) && !policy_.is_starting(now_)) return false;
  if (rule.id == kHello) return answer_greeting(rule);
  const std::optional<std::string> known = policy_.answer(rule, due_.key);
  if (!known) return false;
  answer_here(rule, *known);
  if (rule.id == kBufferGetBase) policy_.replied(rule.id, due_.buffer, {}, view(*known));
  return true;
}

void Session::answer_here(const Rule& rule, const std::string& payload) {
  say(payload);
  meter_.answered_here(rule, view(payload));
  drop_held();
}

void Session::say(const std::string& payload) {
  const std::uint64_t size = payload.size();
  answers_.append(reinterpret_cast<const char*>(&size), sizeof size);
  answers_ += payload;
}

bool Session::answer_hash(const Rule& rule) {
  const View asked = View(pending_).subspan(held_at_ + kRequestHeaderBytes);
  const std::vector<std::uint8_t> fields(asked.begin(), asked.end());
  const std::uint64_t offset = tensor_offset(rule.id, fields);
  const auto hash = load<std::uint64_t>(&fields[kTensorBytes + sizeof offset]);
  if (offset != 0) return false;
  const std::optional<std::uint64_t> bytes = weights_->recalls(Tensor(fields.data()), hash);
  if (!bytes) return false;
  answer_here(rule, std::string(1, *bytes > 0 ? '\1' : '\0'));
  if (*bytes > 0) recall(fields, *bytes);
  return true;
}

// The head of a SET_TENSOR, as the client would have sent it.
void Session::recall(View fields, std::uint64_t bytes) {
  const std::size_t begin = pending_.size();
  const std::uint64_t size = protocol()->rule(kSetTensor)->fields + bytes;
  const auto* at = reinterpret_cast<const std::uint8_t*>(&size);
  pending_.push_back(kSetTensor);
  pending_.insert(pending_.end(), at, at + sizeof size);
  pending_.insert(pending_.end(), fields.begin(), fields.begin() + kTensorBytes);
  pending_.resize(pending_.size() + kFlagBytes + sizeof(std::uint64_t));
  detached_.push_back({begin, pending_.size()});
}

void Session::passed(View bytes) {
  meter_.count_up(bytes.size(), !is_detached_);
  pending_.insert(pending_.end(), bytes.begin(), bytes.end());
}

// Not before the fixed fields have told what the request belongs to.
void Session::attribute() {
  if (!holding_ && due_.awaited.rule) meter_.book();
}

// What is held back goes nowhere.
void Session::drop_held() {
  meter_.drop_up(pending_.size() - held_at_);
  pending_.resize(held_at_);
  holding_ = false;
}

bool Session::refuse(const char* reason) {
  refused_ = true;
  meter_.refused(reason);
  drop_held();
  meter_.book();
  return false;
}

// Under guard only what no table covers passes unread; all else that cannot be followed is refused.
bool Session::lost(const char* reason) {
  if (policy_.guards() && meter_.knows_request()) return refuse(reason);
  go_passthrough(meter_.named_reason(reason));
  return true;
}

void Session::go_passthrough(const std::string& reason) {
  if (passthrough_) return;
  passthrough_ = true;
  link_.client_has_spoken = true;
  // Nobody could tell any more which replies are ours.
  is_contradicted_ = is_contradicted_ || owed_ > 0 || open_questions() < dues_.size();
  if (weights_) weights_->unread();
  request_decoder_.give_up();
  reply_decoder_.give_up();
  meter_.went_passthrough(reason);
  holding_ = false;
  is_detached_ = false;
  due_ = {};
}

const Awaited* Session::begun() {
  if (dues_.empty()) return nullptr;
  if (dues_.front().is_own) return &dues_.front().awaited;
  trip_ = {std::exchange(trip_begun_, 0), now_};
  if (dues_.front().from_pass) meter_.reply_begun();
  return &dues_.front().awaited;
}

void Session::counted(std::uint64_t bytes) {
  const Due& due = dues_.front();
  meter_.count_reply(due.awaited.rule->id, bytes);
  pass_reply(bytes, due.is_own);
}

bool Session::answered(View payload) {
  const Due due = std::move(dues_.front());
  dues_.pop_front();
  const Rule& rule = *due.awaited.rule;
  if (due.is_own) return own_answered(due, payload);
  meter_.replied(rule, due.sent, due.from_pass, open_questions() > 0, payload);
  policy_.replied(rule.id, due.buffer, due.key, payload);
  if (rule.id == kHello && !learn_version(payload)) return false;
  follow(due, payload);
  return !passthrough_;
}

void Session::reply_lost(const char* reason) {
  const char* asked = dues_.empty() ? "" : command_name(dues_.front().awaited.rule->id);
  go_passthrough(std::string(reason) + (*asked ? " to " : "") + asked);
}

bool Session::learn_version(View payload) {
  const Version version{payload[0], payload[1], payload[2]};
  const bool covered = policy_.learn(version, version.text() != link_.tally.protocol);
  meter_.learned(version, policy_.guards_ops(version));
  if (!covered) go_passthrough("protocol " + version.text() + " is not in the table");
  if (covered && !early_.empty()) policy_.begin_start(greeting_, payload, now_);
  for (const PrefetchedReply& prefetched : std::exchange(early_, {})) {
    if (covered) policy_.keep_prefetched(prefetched, now_);
  }
  return !passthrough_;
}

}  // namespace dllm
