#include "head_end.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "session.h"
#include "sockets.h"

namespace dllm::link {

namespace {

// Read of a client in one step of the loop.
constexpr std::size_t kStepBytes = 1 << 20;
// Between the pieces of a token the loop stays awake for so long, see `Forwarder`.
constexpr Nanos kAwake = 20 * kNanosPerMicro;
constexpr std::size_t kBurstBytes = 32 << 10;
constexpr Nanos kPublishEvery = 100 * kNanosPerMilli;
constexpr std::chrono::seconds kEndGrace{1};
constexpr const char* kContradicted =
    "its rpc-server is another one than a moment ago: start llama-server again";

Hello own_hello(const std::string& name, bool answers) {
  const std::uint64_t features =
      kHome | (answers ? kAhead : 0) | (has_compression() ? kCompression : 0);
  return {Role::kHead, features, LinkEnd::kWindowBytes, new_id(), name, 0};
}

}  // namespace

// A client, from its first byte to its last.
struct HeadEnd::Served {
  Served(Link& link, HeadWeights& weights, UniqueFd client_fd)
      : client(std::move(client_fd)), up(weights), session(link, &up) {}

  LocalSocket client;
  RequestSender up;
  Session session;
  bool begun = false;    // the link is up
  std::uint32_t id = 0;  // of its session; 0: nothing has to cross yet
  std::uint64_t number = 0;  // of all clients
  Nanos since = monotonic_now();
  bool told_version = false;  // to `up`
  bool up_ended = false;      // the client sends no more, or may not
  bool worker_ended = false;  // before or behind
  bool worker_left = false;   // before
  Nanos moved = 0;            // when the client was last heard, or took something
};

HeadEnd::HeadEnd(Link& link, const LinkAddress& place, const std::string& own_name,
                 const weights::ResidentWeights& home)
    : link_(link),
      connections_(place, own_hello(own_name, link.answering), *this, link.lab, link.gone_after),
      weights_{home, {}, {}},
      block_(LinkConnection::kBlockBytes) {
  set_blocking(wake_.reader.get(), false);
  set_blocking(wake_.writer.get(), false);
}

HeadEnd::~HeadEnd() {
  stop();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ended_; });
}

WorkerTransport::Outcome HeadEnd::carry(UniqueFd client) {
  set_blocking(client.get(), false);
  std::unique_lock lock(mutex_);
  asked_ = std::move(client);
  outcome_.reset();
  static_cast<void>(!::write(wake_.writer.get(), "c", 1));
  changed_.wait(lock, [this] { return outcome_.has_value(); });
  return *outcome_;
}

void HeadEnd::stop() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  static_cast<void>(!::write(wake_.writer.get(), "s", 1));
}

bool HeadEnd::is_stopping() {
  const std::lock_guard lock(mutex_);
  return stopping_;
}

void HeadEnd::start() {
  ended_ = false;
  std::thread([this] { run(); }).detach();
}

void HeadEnd::await_end() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kEndGrace, [this] { return ended_; });
}

void HeadEnd::run() {
  sleep_precisely();
  Nanos now = monotonic_now();
  while (!is_stopping() || served_) {
    connections_.step(now);
    take_client(now);
    try {
      take_looked();
      if (served_) serve(now);
    } catch (const std::exception& error) {
      give_up(error.what());
    }
    connections_.give_out(now);
    publish(now);
    wait(now);
    now = monotonic_now();
  }
  connections_.end("the head's relay was told to end", now);
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

void HeadEnd::wait(Nanos now) {
  std::vector<pollfd> waits{{wake_.reader.get(), POLLIN, 0}, {reader_.fd(), POLLIN, 0}};
  connections_.add_waits(waits);
  Nanos due = connections_.due(now);
  if (served_) {
    LiveLink* link = connections_.link();
    const bool reads = link && served_->begun && !served_->up_ended && served_->up.room(*link) > 0;
    const int events = (reads ? POLLIN : 0) | (served_->client.waiting() ? POLLOUT : 0);
    const bool looks = events != 0 && !served_->client.broken();
    waits.push_back({looks ? served_->client.fd() : -1, static_cast<short>(events), 0});
    if (!served_->begun || served_->worker_ended) due = std::min(due, now + kSilence / 8);
    // What was just sent has made room.
    const bool goes_on = link && served_->id && served_->up.can_push(*link);
    if (goes_on) due = now;
  }
  wait_until(waits, due - now);
  char taken[64];
  while (waits[0].revents && ::read(wake_.reader.get(), taken, sizeof taken) > 0) continue;
}

void HeadEnd::take_client(Nanos now) {
  const std::lock_guard lock(mutex_);
  if (asked_ && !served_) {
    served_ = std::make_unique<Served>(link_, weights_, std::move(asked_));
    served_->number = ++taken_;
    note_call(now);
  }
  if (stopping_ && served_) ::shutdown(served_->client.fd(), SHUT_RDWR);
}

void HeadEnd::note_call(std::optional<Nanos> since) {
  const std::lock_guard lock(link_.mutex);
  link_.unanswered_since = since;
}

void HeadEnd::serve(Nanos now) {
  LiveLink* link = connections_.link();
  if (!served_->begun) {
    if (!link) return wait_for_link(now);
    begin(now);
  }
  const std::size_t waiting = served_->client.waiting();
  served_->client.flush();
  if (served_->client.waiting() < waiting) served_->moved = now;
  if (link) {
    link->end().grant(served_->id, served_->client.waiting());
    read_client(*link, now);
    look();
    push_up(*link);
  }
  judge_end(now);
}

void HeadEnd::begin(Nanos now) {
  served_->begun = true;
  LinkEnd& end = connections_.link()->end();
  served_->up.begin(end);
  if (!served_->session.may_stay_here(now)) open(end);
  served_->moved = now;
  note_call({});
  const std::lock_guard lock(link_.mutex);
  link_.tally.connected = true;
  ++link_.revision;
}

// What belongs together is read together, so that it leaves in one piece.
void HeadEnd::read_client(LiveLink& link, Nanos now) {
  Served& served = *served_;
  bool more_follows = false;
  std::size_t taken = 0;
  while (!served.up_ended && taken < kStepBytes && served.up.room(link) > 0) {
    const std::size_t most = std::min(block_.size(), served.up.room(link));
    const std::size_t count =
        served.client.read(Bytes(block_).first(most), more_follows ? kAwake : 0);
    if (count == 0) break;
    now = more_follows ? monotonic_now() : now;
    taken += count;
    served.moved = now;
    const Outgoing out = served.session.requests(Bytes(block_).first(count), now);
    served.client.send(view(out.answers));
    send_up(out, link);
    more_follows = out.more_follows && count <= kBurstBytes;
    served.up_ended = out.refused;
  }
  if (served.id) served.up.flush(link);
  const bool gone = served.client.ended() || served.client.broken();
  if (!gone || served.up_ended) return;
  served.up_ended = true;
  send_up(served.session.requests_end(), link);
  if (served.id) served.up.flush(link);
}

// A session is opened for what has to cross: many a client asks only what is known.
void HeadEnd::send_up(const Outgoing& out, LiveLink& link) {
  tell_version();
  if (out.worker.empty()) return;
  if (!served_->id) open(link.end());
  served_->up.take(out, link);
}

void HeadEnd::open(LinkEnd& end) {
  served_->id = end.open();
  served_->up.open(served_->id);
}

void HeadEnd::look() {
  while (served_->up.can_look() && reader_.has_room()) {
    weights::Look next = served_->up.next_look();
    next.asker = served_->number;
    reader_.ask(std::move(next));
  }
}

// What a client that is gone asked for goes nowhere.
void HeadEnd::take_looked() {
  while (std::optional<weights::Look> look = reader_.take()) {
    if (served_ && served_->number == look->asker) served_->up.looked(std::move(*look));
  }
}

void HeadEnd::push_up(LiveLink& link) {
  RequestSender& up = served_->up;
  up.push(link);
  const bool waits = !up.is_done() || (up.room(link) == 0 && !served_->up_ended);
  if (!waits) link_.sending_since = 0;
  if (waits && link_.sending_since == 0) link_.sending_since = monotonic_now();
  if (served_->up_ended && up.is_done()) link.end().finish(served_->id);
}

// The client is served to the end when its worker has finished, and it has, or does nothing more.
void HeadEnd::judge_end(Nanos now) {
  Served& served = *served_;
  const bool is_unheard_of = !served.id && served.up_ended;
  if (!served.worker_ended && !is_unheard_of) return;
  const bool all_taken = served.client.waiting() == 0 || served.client.broken();
  if (!all_taken || !served.up_ended) {
    if (now - served.moved < kSilence) return;
  }
  over(served.worker_left ? Outcome::kWorkerLeft : Outcome::kEnded);
}

// A client that came before the link waits for it, for a while.
void HeadEnd::wait_for_link(Nanos now) {
  const Nanos patience = kLinkMax + pretended(link_.lab.get());
  const bool in_vain = now - served_->since > patience;
  if (!connections_.is_refused() && !in_vain && !is_stopping()) return;
  const std::string& reason = connections_.reason();
  close_client(reason.empty() ? "its relay does not come" : reason);
}

void HeadEnd::over(Outcome outcome) {
  if (LiveLink* link = connections_.link(); link && served_->id) {
    link->end().finish(served_->id);
    // It may still send: nobody waits for that.
    link->end().reset(served_->id, "the client is gone");
  }
  served_.reset();
  link_.sending_since = 0;
  note_call({});
  {
    const std::lock_guard lock(link_.mutex);
    link_.tally.connected = false;
    ++link_.revision;
  }
  const std::lock_guard lock(mutex_);
  outcome_ = outcome;
  changed_.notify_all();
}

void HeadEnd::greeted(const Hello& other) {
  const std::lock_guard lock(link_.mutex);
  link_.tell("linked with the relay of " + other.name);
}

void HeadEnd::arrived(std::uint32_t session, Bytes data) {
  if (!served_ || served_->id != session) return;
  const Bytes replies = served_->session.replies(data, monotonic_now());
  if (served_->session.is_contradicted()) return give_up(kContradicted);
  tell_version();
  const std::size_t before = served_->client.waiting();
  served_->client.send(replies);
  if (before == 0 && served_->client.waiting() == 0) served_->moved = monotonic_now();
}

void HeadEnd::tell_version() {
  if (served_->told_version || !served_->session.version()) return;
  served_->told_version = true;
  served_->up.learned(*served_->session.version());
}

void HeadEnd::finished(std::uint32_t session) {
  if (!served_ || served_->id != session) return;
  served_->worker_ended = true;
  served_->worker_left = !served_->up_ended;
  served_->moved = monotonic_now();
  served_->client.finish();
}

void HeadEnd::was_reset(std::uint32_t session, const std::string& reason) {
  if (!served_ || served_->id != session) return;
  give_up("its relay closed the connection: " + reason);
}

void HeadEnd::give_up(const std::string& reason) {
  {
    const std::lock_guard lock(link_.mutex);
    ++link_.tally.refused;
    link_.tally.refused_reason = reason;
  }
  close_client(reason);
}

void HeadEnd::close_client(const std::string& reason) {
  {
    const std::lock_guard lock(link_.mutex);
    link_.tell(reason, Level::kError);
  }
  served_->client.reset();
  over(Outcome::kWorkerLeft);
}

void HeadEnd::told(std::uint32_t session, Bytes message) {
  told_shares_[kSetTensor] += message.size();
  if (!served_ || served_->id != session) return;
  try {
    served_->up.told(message);
    // It takes what it is sent.
    link_.sending_since = 0;
  } catch (const std::runtime_error& error) {
    give_up(error.what());
  }
}

void HeadEnd::listed(Bytes message) {
  weights_.listing.add(message);
}

void HeadEnd::prefetched(std::uint32_t session, const std::vector<PrefetchedReply>& replies) {
  for (const PrefetchedReply& each : replies) {
    if (const auto id = id_of(each); id < kCommands) told_shares_[id] += encoded_bytes(each);
  }
  if (!served_ || served_->id != session) return;
  for (const PrefetchedReply& each : replies) {
    if (!served_->session.keep_prefetched(each))
      return give_up("what its relay answers ahead makes no sense");
  }
  if (served_->session.is_contradicted()) give_up(kContradicted);
}

void HeadEnd::timed(std::uint32_t session, Trip trip) {
  if (!served_ || served_->id != session) return;
  served_->session.timed(trip);
}

void HeadEnd::resumed(const std::string& news) {
  const std::lock_guard lock(link_.mutex);
  link_.tell(news, Level::kWarning);
}

void HeadEnd::lost(const std::string& reason) {
  weights_.listing.clear();
  {
    const std::lock_guard lock(link_.mutex);
    link_.tell("the link broke: " + reason, Level::kError);
    link_.reply_cache.forget();
  }
  if (!served_ || !served_->begun) return;
  served_->client.reset();
  over(Outcome::kWorkerLeft);
}

void HeadEnd::publish(Nanos now) {
  if (now - published_ < kPublishEvery) return;
  published_ = now;
  LiveLink* link = connections_.link();
  const Nanos silent = link ? link->end().silence(now) : 0;
  const bool unheard = silent - pretended(link_.lab.get()) >= kUnheardMin;
  const std::lock_guard lock(link_.mutex);
  PairTally& tally = link_.tally.pair;
  const PairTally before = tally;
  connections_.note(tally);
  tally.unheard = unheard ? silent : 0;
  link_.tally.note_shares(connections_.sent_shares(), told_shares_);
  note(weights_.counts, tally);
  const bool refers = link && link->end().uses(kHome);
  if (const auto news = report_.news(weights_.counts, now); news && refers) link_.tell(*news);
  if (std::exchange(unheard_, unheard) != unheard && unheard) {
    link_.tell("its machine has not been heard for " + std::to_string(silent / kNanosPerMilli) +
               " ms",
               Level::kWarning);
  }
  if (tally != before) ++link_.revision;
}

}  // namespace dllm::link
