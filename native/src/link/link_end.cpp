#include "link_end.h"

#include <algorithm>
#include <utility>

namespace dllm::link {

namespace {

struct Ping {
  std::int64_t sent_ns;
  std::uint32_t patience_ms;
  std::uint32_t received;  // of all bytes the lower half
};
static_assert(sizeof(Ping) == 16 && sizeof(Trip) == 16);

// A loop that runs comes by at least every kPingEvery; what is beyond, it was not run.
constexpr Nanos kLoopPauseMax = LinkEnd::kPingEvery + 100 * kNanosPerMilli;
constexpr Nanos kPatienceMax = 600 * kNanosPerSecond;

template <typename Value>
View bytes_of(const Value& value) {
  return {reinterpret_cast<const std::uint8_t*>(&value), sizeof value};
}

template <typename Value>
Value payload_as(View payload) {
  if (payload.size() != sizeof(Value)) throw LinkBroken("the other end sent a damaged frame");
  return load<Value>(payload.data());
}

}  // namespace

LinkEnd::LinkEnd(const Hello& own, LinkOwner& owner, Nanos now, Nanos patience)
    : own_(own),
      owner_(owner),
      heard_(now),
      ticked_(now),
      patience_(patience),
      others_patience_(patience),
      next_ping_(now + kPingEvery) {
  out_.append(encode(own));
}

void LinkEnd::received(ByteQueue& in, Nanos now) {
  heard_ = now;
  if (!greeted_) {
    const std::optional<Hello> hello = take_hello(in, own_.role);
    if (!hello) return;
    window_ = hello->credit;
    features_ = own_.features & hello->features;
    token_ = own_.role == Role::kHead ? own_.link : hello->link;
    greeted_ = true;
    owner_.greeted(*hello);
    // Sent away, or it goes on with an older link: what follows is not for this one.
    if (!welcomed_) return;
  }
  while (const std::optional<Frame> frame = first_frame(in)) {
    const bool counts = is_up_ && !resumes_;
    handle(*frame, now);
    in.drop(frame->bytes());
    if (counts) received_ += frame->bytes();
  }
  if (!flows_now_ || received_ - told_ < kTellEvery) return;
  const std::uint32_t count = tell_received();
  say(FrameType::kReceived, 0, bytes_of(count));
}

// Whatever is said to one that is welcome is kept until it has it.
void LinkEnd::say(FrameType type, std::uint32_t session, View payload) {
  if (may_resume()) append_frame(unacked_, type, session, payload);
  if (flows_now_ || !welcomed_) append_frame(out_, type, session, payload);
}

void LinkEnd::welcome() {
  append_frame(out_, FrameType::kWelcome, 0, {});
  welcomed_ = flows_now_ = true;
}

void LinkEnd::detach() {
  out_.clear();
  flows_now_ = resumes_ = false;
}

void LinkEnd::resume(ByteQueue& said) {
  detach();
  out_.swap(said);
  resumes_ = true;
  told_ = received_;
  append_frame(out_, FrameType::kWelcome, 0, bytes_of(received_));
}

void LinkEnd::take_welcome(const Frame& frame, Nanos now) {
  if (std::exchange(resumes_, false)) {
    retransmit(payload_as<std::uint64_t>(frame.payload));
  } else if (is_up_ || !frame.payload.empty()) {
    throw LinkBroken("the other end welcomed us out of turn");
  }
  next_ping_ = now;
  if (!std::exchange(is_up_, true)) owner_.welcomed();
}

// All it has not received is sent again.
void LinkEnd::retransmit(std::uint64_t count) {
  drop_acked(count);
  out_.append(unacked_.all());
  flows_now_ = true;
}

void LinkEnd::take_received(std::uint32_t count) {
  const auto more = static_cast<std::int32_t>(count - static_cast<std::uint32_t>(acked_));
  // What is sent again tells of an earlier time.
  if (more > 0) drop_acked(acked_ + static_cast<std::uint32_t>(more));
}

void LinkEnd::drop_acked(std::uint64_t count) {
  if (count < acked_ || count - acked_ > unacked_.size()) {
    throw LinkBroken("the other end received what was never sent");
  }
  unacked_.drop(count - acked_);
  acked_ = count;
}

std::uint32_t LinkEnd::tell_received() {
  told_ = received_;
  return static_cast<std::uint32_t>(received_);
}

void LinkEnd::handle(const Frame& frame, Nanos now) {
  if (resumes_ && frame.type != FrameType::kWelcome && frame.type != FrameType::kGoodbye) {
    throw LinkBroken("the other end does not say what it has received");
  }
  switch (frame.type) {
    case FrameType::kPing: {
      const auto ping = payload_as<Ping>(frame.payload);
      others_patience_ = std::min(ping.patience_ms * kNanosPerMilli, kPatienceMax);
      take_received(ping.received);
      return say(FrameType::kPong, 0, frame.payload);
    }
    case FrameType::kReceived:
      return take_received(payload_as<std::uint32_t>(frame.payload));
    case FrameType::kPong:
      return pong(frame.payload, now);
    case FrameType::kGoodbye:
      throw LinkRefused(printable(frame.payload, kReasonMaxBytes));
    case FrameType::kWelcome:
      return take_welcome(frame, now);
    case FrameType::kOpen:
      return take_open(frame.session);
    case FrameType::kData:
    case FrameType::kCredit:
    case FrameType::kFinish:
    case FrameType::kReset:
    case FrameType::kTrip:
    case FrameType::kHome:
    case FrameType::kKnown:
      return handle_in_session(frame);
    case FrameType::kList:
      return take_list(frame);
  }
  throw LinkBroken("the other end sent a frame of unknown type");
}

void LinkEnd::pong(View payload, Nanos now) {
  const Nanos sent = payload_as<Ping>(payload).sent_ns;
  if (sent <= 0 || sent > now) throw LinkBroken("the other end answered a ping nobody sent");
  rtts_[rtts_known_++ % kRtts] = now - sent;
}

Nanos LinkEnd::rtt() const {
  if (rtts_known_ == 0) return 0;
  return *std::min_element(rtts_.begin(), rtts_.begin() + std::min(rtts_known_, kRtts));
}

void LinkEnd::take_open(std::uint32_t session) {
  const bool in_turn = is_up_ && own_.role == Role::kWorker && session == latest_ + 1;
  if (!in_turn) throw LinkBroken("the other end opened a session out of turn");
  if (flows_.size() == kSessionsMax) throw LinkBroken("the other end opened too many sessions");
  add_flow(session);
  owner_.opened(session);
}

std::uint32_t LinkEnd::open() {
  const std::uint32_t session = latest_ + 1;
  add_flow(session);
  say(FrameType::kOpen, session, {});
  return session;
}

LinkEnd::Flow& LinkEnd::add_flow(std::uint32_t session) {
  latest_ = session;
  Flow& flow = flows_[session];
  flow.may_send = window_;
  return flow;
}

// A session that is over here may not yet be over there.
void LinkEnd::handle_in_session(const Frame& frame) {
  if (frame.session == 0 || frame.session > latest_) {
    throw LinkBroken("the other end sent something in a session that was never opened");
  }
  const auto found = flows_.find(frame.session);
  if (found == flows_.end()) return;
  Flow& flow = found->second;
  switch (frame.type) {
    case FrameType::kData:
      return take_data(frame, flow);
    case FrameType::kCredit:
      return take_credit(frame, flow);
    case FrameType::kTrip:
      return owner_.timed(frame.session, payload_as<Trip>(frame.payload));
    case FrameType::kHome:
      return take_home(frame, flow);
    case FrameType::kKnown:
      return take_prefetched(frame);
    case FrameType::kReset:
      flows_.erase(found);
      return owner_.was_reset(frame.session, printable(frame.payload, kReasonMaxBytes));
    default:
      if (flow.other_finished) throw LinkBroken("the other end finished a session twice");
      flow.other_finished = true;
      forget_if_over(frame.session);
      return owner_.finished(frame.session);
  }
}

void LinkEnd::take_home(const Frame& frame, const Flow& flow) {
  if (!uses(kHome)) throw LinkBroken("the other end speaks of weights, and was not asked to");
  if (flow.other_finished) throw LinkBroken("the other end sent more behind the end of a session");
  owner_.told(frame.session, frame.payload);
}

void LinkEnd::take_list(const Frame& frame) {
  const bool is_due = is_up_ && own_.role == Role::kHead && frame.session == 0 && uses(kHome);
  if (!is_due) throw LinkBroken("the other end lists tensors, and was not asked to");
  owner_.listed(frame.payload);
}

void LinkEnd::take_prefetched(const Frame& frame) {
  const bool is_due = own_.role == Role::kHead && uses(kAhead);
  if (!is_due) throw LinkBroken("the other end answers ahead, and was not asked to");
  owner_.prefetched(frame.session, decode_prefetched(frame.payload));
}

void LinkEnd::take_data(const Frame& frame, Flow& flow) {
  flow.arrived += frame.payload.size();
  if (flow.other_finished) throw LinkBroken("the other end sent more behind the end of a session");
  if (flow.arrived > flow.granted) throw LinkBroken("the other end sent more than it was allowed");
  owner_.arrived(frame.session, frame.payload);
}

void LinkEnd::take_credit(const Frame& frame, Flow& flow) {
  flow.may_send += payload_as<std::uint32_t>(frame.payload);
}

void LinkEnd::tick(Nanos now) {
  const Nanos missed = now - std::exchange(ticked_, now) - kLoopPauseMax;
  heard_ += std::max<Nanos>(missed, 0);
  heard_ = std::min(heard_, now);
  if (now < next_ping_) return;
  next_ping_ = now + kPingEvery;
  if (!is_up_ || !flows_now_) return;
  const auto patience_ms = static_cast<std::uint32_t>(patience_ / kNanosPerMilli);
  const Ping ping{now, patience_ms, tell_received()};
  say(FrameType::kPing, 0, bytes_of(ping));
  if (++pings_ < kFirstPings) next_ping_ = now + kFirstPingsEvery;
}

std::size_t LinkEnd::credit(std::uint32_t session) const {
  const auto found = flows_.find(session);
  if (found == flows_.end() || found->second.own_finished) return 0;
  return found->second.may_send;
}

void LinkEnd::send(std::uint32_t session, View data) {
  flows_.at(session).may_send -= data.size();
  while (!data.empty()) {
    const View part = data.first(std::min(data.size(), kPayloadMaxBytes));
    say(FrameType::kData, session, part);
    data = data.subspan(part.size());
  }
}

void LinkEnd::send_trip(std::uint32_t session, Trip trip) {
  say(FrameType::kTrip, session, bytes_of(trip));
}

void LinkEnd::send_home(std::uint32_t session, View message) {
  if (has(session)) say(FrameType::kHome, session, message);
}

void LinkEnd::send_list(View message) {
  say(FrameType::kList, 0, message);
}

void LinkEnd::send_prefetched(std::uint32_t session, const std::vector<PrefetchedReply>& replies) {
  for (const auto& payload : encode_prefetched(replies)) {
    say(FrameType::kKnown, session, payload);
  }
}

void LinkEnd::finish(std::uint32_t session) {
  const auto found = flows_.find(session);
  if (found == flows_.end() || std::exchange(found->second.own_finished, true)) return;
  say(FrameType::kFinish, session, {});
  forget_if_over(session);
}

void LinkEnd::forget_if_over(std::uint32_t session) {
  const Flow& flow = flows_.at(session);
  if (flow.own_finished && flow.other_finished) flows_.erase(session);
}

void LinkEnd::reset(std::uint32_t session, const std::string& reason) {
  if (flows_.erase(session) == 0) return;
  say(FrameType::kReset, session, view(reason.substr(0, kReasonMaxBytes)));
}

void LinkEnd::grant(std::uint32_t session, std::size_t waiting) {
  const auto found = flows_.find(session);
  if (found == flows_.end() || found->second.other_finished) return;
  Flow& flow = found->second;
  const std::uint64_t taken = flow.arrived - std::min<std::uint64_t>(waiting, flow.arrived);
  const std::uint64_t more = taken + kWindowBytes - flow.granted;
  if (taken + kWindowBytes <= flow.granted || more < kWindowBytes / 4) return;
  flow.granted += more;
  const auto count = static_cast<std::uint32_t>(more);
  say(FrameType::kCredit, session, bytes_of(count));
}

void LinkEnd::goodbye(const std::string& reason) {
  say(FrameType::kGoodbye, 0, view(reason.substr(0, kReasonMaxBytes)));
}

}  // namespace dllm::link
