#include "reconnect.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <map>
#include <system_error>

#include "sockets.h"

namespace dllm::link {

// A connection whose other end may become the link's, or is.
struct Reconnector::Caller final : LinkOwner {
  Caller(Reconnector& reconnector_of, UniqueFd fd)
      : reconnector(reconnector_of),
        name(peer_name(fd.get())),
        said(reconnector_of.hello()),
        link(std::move(fd), make_security(reconnector_of.place_), said, *this, reconnector_of.lab_,
             reconnector_of.patience_) {}

  [[nodiscard]] bool holds() const { return reconnector.holder_ == this; }
  void greeted(const Hello& hello) override { reconnector.greeted(*this, hello); }
  void welcomed() override {
    if (holds()) reconnector.welcomed();
  }
  void opened(std::uint32_t session) override {
    if (holds()) reconnector.owner_.opened(session);
  }
  void arrived(std::uint32_t session, Bytes data) override {
    if (holds()) reconnector.owner_.arrived(session, data);
  }
  void finished(std::uint32_t session) override {
    if (holds()) reconnector.owner_.finished(session);
  }
  void was_reset(std::uint32_t session, const std::string& reason) override {
    if (holds()) reconnector.owner_.was_reset(session, reason);
  }
  void timed(std::uint32_t session, Trip trip) override {
    if (holds()) reconnector.owner_.timed(session, trip);
  }
  void told(std::uint32_t session, Bytes message) override {
    if (holds()) reconnector.owner_.told(session, message);
  }
  void listed(Bytes message) override {
    if (holds()) reconnector.owner_.listed(message);
  }
  void prefetched(std::uint32_t session, const std::vector<PrefetchedReply>& replies) override {
    if (holds()) reconnector.owner_.prefetched(session, replies);
  }

  // What is still to be said is said, then the other end closes, in time. False when it is over.
  bool leave(Nanos now) {
    if (!link.broken().empty()) return false;
    std::uint8_t block[1 << 12];
    link.give_out(now);
    if (link.is_said()) ::shutdown(link.fd(), SHUT_WR);
    ssize_t count = 1;
    for (int i = 0; i < kBlocksAtOnce && count > 0; ++i) count = receive(link.fd(), block);
    const bool over = count == 0 || (count < 0 && errno != EAGAIN);
    return !over && now < leaving_until;
  }

  // One that goes on sending must not keep the loop.
  static constexpr int kBlocksAtOnce = 64;

  Reconnector& reconnector;
  const std::string name;
  const Hello said;
  LiveLink link;
  bool has_greeted = false;
  bool resumes = false;    // its connection is for the link that we hold
  Nanos leaving_until = 0;  // told to go; 0: it was not
};

namespace {

constexpr Nanos kDialMax = kConnectMax;
// For one that is sent away.
constexpr Nanos kLeavingMax = 2 * kNanosPerSecond;
constexpr const char* kReplaced = "a newer link takes its place";
constexpr const char* kForgotten = "the relay that answers there does not know the link any more";

void unwatched(std::vector<pollfd>& waits, int fd, short events) {
  waits.push_back({events == 0 ? -1 : fd, events, 0});
}

std::uint64_t new_token() {
  std::random_device random;
  return std::uint64_t{random()} << 32 | random() | 1;
}

Hello as(const LinkAddress& place, Hello own) {
  if (place.id) own.id = *place.id;
  return own;
}

}  // namespace

Reconnector::Reconnector(const LinkAddress& place, Hello own, ReconnectorOwner& owner,
                         const Lab& lab, Nanos patience)
    : place_(place),
      own_(as(place, std::move(own))),
      owner_(owner),
      lab_(lab),
      patience_(patience) {
  judge(place_);
  if (!place_.dials) listen();
}

void Reconnector::listen() {
  const auto add = [this](const Endpoint& at) {
    listeners_.push_back(at.path.empty() ? listen_tcp(at) : listen_unix(at.path));
    set_blocking(listeners_.back().get(), false);
  };
  add(place_.endpoint);
  for (const Endpoint& other : place_.others) {
    try {
      add(other);
    } catch (const std::exception& error) {
      log(Level::kWarning, own_.name + ": " + error.what());
    }
  }
}

Reconnector::~Reconnector() = default;

std::uint16_t Reconnector::port() const {
  const bool has_port = !listeners_.empty() && place_.endpoint.path.empty();
  return has_port ? bound_port(listeners_.front().get()) : place_.endpoint.port;
}

LiveLink* Reconnector::link() {
  return holder_ && holder_->link.end().is_up() ? &holder_->link : nullptr;
}

void Reconnector::add_waits(std::vector<pollfd>& waits) {
  for (const UniqueFd& listener : listeners_) waits.push_back({listener.get(), POLLIN, 0});
  if (dialing_) waits.push_back({dialing_.get(), POLLOUT, 0});
  for (Caller& caller : callers_) unwatched(waits, caller.link.fd(), caller.link.events());
}

Nanos Reconnector::due(Nanos now) {
  Nanos first = kNever;
  if (dials()) first = dialing_ ? dialed_at_ + dial_max() : dial_at_;
  for (Caller& caller : callers_) {
    const bool leaves = caller.leaving_until > 0;
    first = std::min(first, leaves ? caller.leaving_until : caller.link.due(now));
  }
  return first;
}

void Reconnector::step(Nanos now) {
  for (const UniqueFd& listener : listeners_) accept(listener.get(), now);
  // A connection that works again leaves none half made: nothing would take that up.
  if (dials()) {
    dial(now);
  } else {
    dialing_.reset();
  }
  std::erase_if(callers_, [&](Caller& caller) { return !attend(caller, now); });
  watch(now);
}

// Those that were told to leave are no hindrance.
bool Reconnector::dials() const {
  if (!place_.dials) return false;
  if (!holder_) return callers_.empty();
  const auto is_on_trial = [](const Caller& caller) {
    return !caller.holds() && caller.leaving_until == 0;
  };
  return broken_since_ && std::ranges::none_of(callers_, is_on_trial);
}

void Reconnector::watch(Nanos now) {
  if (!holder_ || !holder_->link.end().may_resume()) return;
  LiveLink& link = holder_->link;
  const Nanos silence = link.end().silence(now);
  const bool is_silent = silence >= kSilentMax + pretended(lab_.get());
  const bool works = link.broken().empty() && link.end().flows() && !is_silent;
  if (works != broken_since_.has_value()) return;
  if (!works) {
    broken_since_ = link.broken().empty() ? now - silence : now;
    broken_why_ = link.broken().empty() ? "nothing came any more" : link.broken();
    at_ = 0;
    dial_at_ = now;
    return;
  }
  if (std::exchange(has_resumed_, false)) {
    ++reconnects_;
    pause_ = now - *broken_since_;
    owner_.resumed("its connection broke, and the link went on over another after " +
                   std::to_string(pause_ / kNanosPerMilli) + " ms: " + broken_why_);
  }
  broken_since_.reset();
  absent_since_.reset();
  retry_ = kRetryFirst;
}

void Reconnector::accept(int listener, Nanos now) {
  // Those that go on coming must not keep the loop.
  for (std::size_t i = 0; i < kCallersMax; ++i) {
    UniqueFd fd = accept_client(listener);
    if (!fd) return;
    if (callers_.size() >= kCallersMax) make_room();
    set_blocking(fd.get(), false);
    tune(fd.get());
    try {
      add_caller(std::move(fd));
    } catch (const std::exception& error) {
      fail(error.what(), now);
    }
  }
}

// Of those that have no link one at random goes, of those that have said nothing if there are any,
// from the address that has most of them: neither a flood nor silent callers keep the other end
// out, which speaks at once and needs a few round trips. The oldest or the newest would always be
// it.
void Reconnector::make_room() {
  const auto is_mute = [](Caller& caller) {
    return !caller.holds() && caller.link.received_bytes() == 0;
  };
  const bool has_mute = std::ranges::any_of(callers_, is_mute);
  std::map<std::string, std::vector<std::list<Caller>::iterator>> by_address;
  for (auto caller = callers_.begin(); caller != callers_.end(); ++caller) {
    const std::string address = caller->name.substr(0, caller->name.rfind(':'));
    if (has_mute ? is_mute(*caller) : !caller->holds()) by_address[address].push_back(caller);
  }
  const auto count = [](const auto& each) { return each.second.size(); };
  const auto& most = std::ranges::max_element(by_address, {}, count)->second;
  callers_.erase(most[random_() % most.size()]);
}

const Endpoint& Reconnector::there() const {
  return at_ == 0 ? place_.endpoint : place_.others[at_ - 1];
}

Nanos Reconnector::dial_max() const {
  return is_last() && !holder_ ? kDialMax : kTryMax;
}

bool Reconnector::is_mute(Caller& caller, Nanos now) const {
  const bool waits_long = is_last() && (!holder_ || caller.holds());
  if (!place_.dials || waits_long || caller.link.end().is_up()) return false;
  return now - dialed_at_ > kTryMax + pretended(lab_.get());
}

void Reconnector::dial(Nanos now) {
  try {
    if (!dialing_) {
      if (now < dial_at_) return;
      dialed_at_ = now;
      dialing_ = begin_connect(there());
    }
    pollfd question{dialing_.get(), POLLOUT, 0};
    if (::poll(&question, 1, 0) == 0) {
      if (now - dialed_at_ > dial_max()) throw LinkBroken("nobody answers");
      return;
    }
    if (const int error = connect_error(dialing_.get())) {
      throw std::system_error(error, std::generic_category());
    }
    add_caller(std::move(dialing_));
  } catch (const std::exception& error) {
    dialing_.reset();
    const auto* told = dynamic_cast<const std::system_error*>(&error);
    const bool refuses = told && (told->code() == std::errc::connection_refused ||
                                  told->code() == std::errc::no_such_file_or_directory);
    const std::string reason = "cannot reach " + text(there()) + ": " + error.what();
    if (holder_) refuses ? note_absent(reason, now) : absent_since_.reset();
    fail(reason, now);
  }
}

void Reconnector::add_caller(UniqueFd fd) {
  callers_.emplace_back(*this, std::move(fd));
}

// What this end says of itself and of the link it holds.
Hello Reconnector::hello() {
  Hello own = own_;
  if (holder_ && holder_->link.end().may_resume()) {
    own.link = holder_->link.end().token();
  } else if (own.role == Role::kHead) {
    own.link = new_token();
  }
  return own;
}

// A relay that comes again goes on with its link, or takes the place of what it was; any other is
// told who is there.
void Reconnector::greeted(Caller& caller, const Hello& hello) {
  const Nanos now = monotonic_now();
  caller.has_greeted = true;
  caller.resumes = is_of_link(caller, hello);
  if (caller.resumes) return;
  if (holder_ && !gives_way(hello, now)) return send_away(caller, who_holds(now));
  if (holder_) {
    send_away(*holder_, kReplaced);
    lose(place_.dials ? kForgotten : kReplaced);
  }
  holder_ = &caller;
  other_ = hello;
  other_place_ = caller.name;
  linked_since_ = now;
  caller.link.end().welcome();
}

// Both ends have just said so.
bool Reconnector::is_of_link(const Caller& caller, const Hello& hello) {
  if (!holder_ || !holder_->link.end().may_resume()) return false;
  const std::uint64_t token = holder_->link.end().token();
  return hello.link == token && caller.said.link == token;
}

// Whom we called ourselves knows of no link, and one without a connection is not kept for ever.
bool Reconnector::gives_way(const Hello& hello, Nanos now) const {
  if (hello.id == other_.id || place_.dials) return true;
  return !holder_->link.broken().empty() && now - broken_since_.value_or(now) >= kSilentMax;
}

void Reconnector::welcomed() {
  note_place();
  owner_.greeted(other_);
}

void Reconnector::note_place() {
  met_at_ = place_.dials ? text(there()) : "";
  if (at_ == 0) detour_.clear();
  retry_ = kRetryFirst;
  reason_.clear();
  refused_ = false;
}

void Reconnector::send_away(Caller& caller, const std::string& reason) {
  caller.link.end().goodbye(reason);
  caller.leaving_until = monotonic_now() + kLeavingMax;
}

// What crossed with the holder stays counted.
void Reconnector::release() {
  sent_before_ += holder_->link.sent_bytes();
  received_before_ += holder_->link.received_bytes();
  shares_before_ += holder_->link.sent();
  broken_since_.reset();
  absent_since_.reset();
  has_resumed_ = false;
  holder_ = nullptr;
}

// Its connection, if it has one still, ends by itself.
void Reconnector::lose(const std::string& reason) {
  const bool was_up = link() != nullptr;
  if (holder_->leaving_until == 0) holder_->leaving_until = monotonic_now();
  release();
  if (was_up) owner_.lost(reason);
}

void Reconnector::resume(Caller& caller, Nanos now) {
  holder_->link.resume(caller.link);
  other_place_ = caller.name;
  note_place();
  if (!broken_since_) broken_since_ = now;
  has_resumed_ = true;
  // Where it breaks again at once.
  dial_at_ = now + kRetryFirst / 2;
}

// Whether it stays.
bool Reconnector::attend(Caller& caller, Nanos now) {
  try {
    if (caller.leaving_until > 0) return caller.leave(now);
    caller.link.take_in(now);
    if (is_mute(caller, now)) throw LinkBroken("whoever is there does not say who it is");
    if (caller.resumes) resume(caller, now);
    return !caller.resumes;
  } catch (const LinkRefused& refusal) {
    // By our hello the other end knows why.
    give_out(caller, now);
    ended(caller, refusal.what(), true, now);
  } catch (const std::exception& error) {
    ended(caller, error.what(), false, now);
  }
  return false;
}

void Reconnector::ended(Caller& caller, const std::string& reason, bool refused, Nanos now) {
  const bool held = caller.holds();
  const bool was_up = held && caller.link.end().is_up();
  if (held) release();
  // A link that was is sought from the best place on.
  if (was_up) at_ = place_.others.size();
  if (holder_ && place_.dials) {
    if (refused) {
      lose(reason);
    } else if (!caller.has_greeted) {
      is_mute(caller, now) ? absent_since_.reset() : note_absent(reason, now);
    }
  }
  if (!holder_ || place_.dials) {
    fail(reason, now);
    refused_ = refused;
  }
  if (was_up) owner_.lost(reason);
}

// A machine that cannot be reached may come back; where nobody listens nobody knows the link.
void Reconnector::note_absent(const std::string& reason, Nanos now) {
  if (!absent_since_) absent_since_ = now;
  if (now - *absent_since_ >= kAbsentMax) lose(reason);
}

void Reconnector::fail(const std::string& reason, Nanos now) {
  if (!holder_) reason_ = reason;
  refused_ = false;
  if (place_.dials && !is_last()) {
    if (at_++ == 0) detour_ = reason;
    dial_at_ = now;
    return;
  }
  at_ = 0;
  dial_at_ = now + retry_;
  retry_ = std::min(2 * retry_, holder_ ? kRetryMostHeld : kRetryMost);
}

void Reconnector::give_out(Nanos now) {
  for (Caller& caller : callers_) give_out(caller, now);
}

void Reconnector::give_out(Caller& caller, Nanos now) {
  try {
    caller.link.give_out(now);
  } catch (const std::exception&) {
    // Reading tells the same, at the next step, and then it is taken care of.
    ::shutdown(caller.link.fd(), SHUT_RDWR);
  }
}

std::uint64_t Reconnector::sent_bytes() const {
  return sent_before_ + (holder_ ? holder_->link.sent_bytes() : 0);
}

std::uint64_t Reconnector::received_bytes() const {
  return received_before_ + (holder_ ? holder_->link.received_bytes() : 0);
}

std::string Reconnector::who_holds(Nanos now) const {
  const std::string since = std::to_string((now - linked_since_) / kNanosPerSecond);
  const bool by_head = other_.role == Role::kHead;
  const bool has_place = place_.endpoint.path.empty();
  return own_.name + (by_head ? " is held by the head " : " has a worker already: ") + other_.name +
         (has_place ? " (" + other_place_ + ")" : "") + " for " + since + " s";
}

Shares Reconnector::sent_shares() const {
  Shares shares = shares_before_;
  if (holder_) shares += holder_->link.sent();
  return shares;
}

void Reconnector::note(PairTally& tally) {
  LiveLink* live = link();
  const bool is_head = own_.role == Role::kHead;
  tally.is_on = true;
  tally.is_up = live != nullptr;
  tally.is_sealed = place_.key.has_value();
  tally.reason = reason_;
  tally.place = live ? met_at_ : "";
  tally.detour = live && met_at_ != text(place_.endpoint) ? detour_ : "";
  tally.reconnects = reconnects_;
  tally.pause = pause_;
  tally.wire_bytes_up = is_head ? sent_bytes() : received_bytes();
  tally.wire_bytes_down = is_head ? received_bytes() : sent_bytes();
  tally.rtt = live ? live->end().rtt() : 0;
}

void Reconnector::end(const std::string& reason, Nanos now) {
  if (!holder_) return;
  holder_->link.end().goodbye(reason);
  give_out(now);
}

}  // namespace dllm::link
