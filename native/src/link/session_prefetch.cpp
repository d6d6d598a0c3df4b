// What a session of a pair does so that a client need not wait: at the worker's end it prefetches
// replies, at the head's it answers with them.
#include <algorithm>
#include <iterator>
#include <utility>

#include "session.h"

namespace dllm {

namespace {

// Told before the version is known, of every device.
constexpr std::size_t kEarlyMax = 256;

std::string text_of(View bytes) {
  return {bytes.begin(), bytes.end()};
}

}  // namespace

bool Session::may_stay_here(Nanos now) {
  const std::lock_guard lock(link_.mutex);
  return policy_.is_starting(now);
}

bool Session::keep_prefetched(const PrefetchedReply& prefetched) {
  if (!ReplyCache::makes_sense(prefetched)) return false;
  const std::lock_guard lock(link_.mutex);
  if (protocol()) {
    is_contradicted_ = is_contradicted_ || (greets_late_ && policy_.contradicts(prefetched));
    // Behind the question that led to it nothing was asked that could have changed it.
    if (open_questions() <= 1) policy_.keep_prefetched(prefetched, now_);
  } else if (early_.size() < kEarlyMax) {
    early_.push_back(prefetched);
  }
  return true;
}

// The worker gets it right before whatever it is asked first, and what it replies is compared.
bool Session::answer_greeting(const Rule& rule) {
  const std::optional<std::string> known = policy_.answer(rule, greeting_);
  if (!known) return false;
  told_ = *known;
  say(told_);
  meter_.answered_here(rule, view(told_));
  meter_.drop_up(pending_.size());
  owed_ = pending_.size();
  holding_ = false;
  learn_version(view(told_));
  return true;
}

void Session::greet_late() {
  meter_.count_late(kHello, std::exchange(owed_, 0));
  Due due;
  due.awaited = {&hello_rule(), 0};
  due.is_own = greets_late_ = true;
  due.told = told_;
  ++late_;
  dues_.push_front(std::move(due));
}

// Whatever the client may ask next is asked where the worker is near. Not where it waits for no
// reply: it knows what it asks next, and ours would come after that.
void Session::follow(const Due& due, View payload) {
  const Rule& rule = *due.awaited.rule;
  const bool can_ask = prefetches_ && !passthrough_ && protocol() && protocol()->is_exact() &&
                       request_decoder_.is_between() && open_questions() == 0;
  if (!can_ask) return;
  const bool held = holds_replies();
  std::ranges::move(prefetches(*protocol(), rule, view(due.asked), payload),
                    std::back_inserter(to_ask_));
  if (!held && holds_replies()) held_from_ = kept_ - part_;
}

Outgoing Session::own_requests(Nanos now) {
  const std::lock_guard lock(link_.mutex);
  forget_sent();
  set_time(now);
  for (Prefetch& each : std::exchange(to_ask_, {})) {
    asking_ = std::move(each.key);
    request_decoder_.feed({reinterpret_cast<std::uint8_t*>(each.request.data()),
                           each.request.size()});
  }
  asking_.clear();
  return outgoing();
}

void Session::own_closed(Due due) {
  due.is_own = true;
  due.wanted = asking_;
  dues_.push_back(std::move(due));
  ++own_open_;
}

// With what the client has been told.
bool Session::compare(const Due& due, View payload) {
  --late_;
  if (due.awaited.rule->id == kHello) greets_late_ = false;
  is_contradicted_ = is_contradicted_ || !std::ranges::equal(payload, view(*due.told));
  return !is_contradicted_;
}

bool Session::own_answered(const Due& due, View payload) {
  if (due.told) return compare(due, payload);
  const Rule& rule = *due.awaited.rule;
  --own_open_;
  policy_.replied(rule.id, due.buffer, {}, payload);
  found_.push_back({due.wanted, text_of(payload)});
  const bool can_ask = prefetches_ && !passthrough_ && request_decoder_.is_between();
  if (can_ask && open_questions() == 0) lead_on(due, payload);
  return !passthrough_;
}

// What our own question leads to.
void Session::lead_on(const Due& due, View payload) {
  const Rule& rule = *due.awaited.rule;
  std::vector<Prefetch> more = prefetches(*protocol(), rule, view(due.asked), payload);
  // Who brings its greeting along has been told of memory, for this start.
  const auto is_memory = [](const Prefetch& each) { return each.key[0] == kGetDeviceMemory; };
  if (is_hurried_) std::erase_if(more, is_memory);
  std::ranges::move(more, std::back_inserter(to_ask_));
}

std::vector<std::uint8_t> Session::take_held() {
  const std::lock_guard lock(link_.mutex);
  return std::exchange(held_replies_, {});
}

std::size_t Session::ready(View bytes) {
  const std::lock_guard lock(link_.mutex);
  if (!prefetches_ || passthrough_ || bytes.empty()) return bytes.size();
  if (holds_replies() && request_decoder_.is_between()) return 0;
  if (protocol()) return bytes.size();
  if (!request_decoder_.is_between()) return 1;
  is_hurried_ = policy_.awaits_version();
  if (is_hurried_) return 0;
  if (bytes[0] != kHello || bytes.size() < kRequestHeaderBytes) return bytes.size();
  const auto size = load<std::uint64_t>(&bytes[1]);
  const std::uint64_t whole = kRequestHeaderBytes + std::min(size, kHelloCapsBytes);
  return std::min<std::uint64_t>(bytes.size(), whole);
}

// The next bytes, of one reply.
void Session::pass_reply(std::size_t count, bool is_own) {
  const Bytes part = replies_.subspan(seen_, count);
  seen_ += count;
  part_ = is_own ? 0 : count;
  if (is_own || count == 0) return;
  if (kept_ + count < seen_) std::ranges::copy(part, &replies_[kept_]);
  kept_ += count;
}

// What goes on now.
Bytes Session::released(Bytes bytes) {
  if (is_contradicted_) return {};
  if (!holds_replies() && held_replies_.empty()) return bytes;
  const std::size_t at = std::min(held_from_, bytes.size());
  held_replies_.insert(held_replies_.end(), bytes.begin() + static_cast<std::ptrdiff_t>(at),
                       bytes.end());
  if (holds_replies()) return bytes.first(at);
  released_ = std::exchange(held_replies_, {});
  return released_;
}

}  // namespace dllm
