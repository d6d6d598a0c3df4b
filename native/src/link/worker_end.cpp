#include "worker_end.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "sockets.h"

namespace dllm::link {

namespace {

// Of the rpc-server's bytes, waiting for credit; beyond, it is not read.
constexpr std::size_t kHeldMax = 64 << 10;
constexpr std::size_t kStepBytes = 1 << 20;
// Handed to the rpc-server and not taken; beyond, what arrives waits.
constexpr std::size_t kUntakenMax = 256 << 10;
constexpr Nanos kPublishEvery = 100 * kNanosPerMilli;
// For what the rpc-server still owes when we are told to end.
constexpr Nanos kEndGrace = 2 * kNanosPerSecond;

Hello own_hello(const std::string& name, bool has_models) {
  const std::uint64_t features =
      kAhead | (has_models ? kHome : 0) | (has_compression() ? kCompression : 0);
  return {Role::kWorker, features, LinkEnd::kWindowBytes, new_id(), name, 0};
}

}  // namespace

WorkerEnd::WorkerEnd(Link& link, const LinkAddress& place, Endpoint worker,
                     const weights::ResidentWeights& home)
    : link_(link),
      worker_(std::move(worker)),
      connections_(place, own_hello(link.name, !home.empty()), *this, link.lab, link.gone_after),
      block_(LinkConnection::kBlockBytes),
      home_(home) {}

void WorkerEnd::run(int stop) {
  sleep_precisely();
  Nanos now = monotonic_now();
  do {
    connections_.step(now);
    take_looked();
    if (!served_.empty() && !serve_safely(served_.front(), now)) served_.pop_front();
    connections_.give_out(now);
    publish(!served_.empty() && served_.front().connected, now);
  } while (wait(stop, now) && (now = monotonic_now()));
  connections_.end("the worker's relay was told to end", now);
  read_to_end();
}

// What is under way with the rpc-server, for a while.
void WorkerEnd::read_to_end() {
  abandon_all();
  const Nanos until = monotonic_now() + kEndGrace;
  for (Nanos now = monotonic_now(); !served_.empty() && now < until; now = monotonic_now()) {
    Served& first = served_.front();
    if (!first.connected || !serve(first, now)) return;
    pollfd waits[] = {{first.worker->fd(), POLLIN, 0}};
    wait_until(waits, until - now);
  }
}

bool WorkerEnd::wait(int stop, Nanos now) {
  std::vector<pollfd> waits{{stop, POLLIN, 0}};
  waits.push_back({reader_.fd(), POLLIN, 0});
  connections_.add_waits(waits);
  Nanos due = connections_.due(now);
  if (!served_.empty()) {
    Served& first = served_.front();
    LiveLink* link = connections_.link();
    const bool has_room =
        first.id == 0 || (link && link->room(first.id) > 0 && first.back.size() < kHeldMax);
    int events = 0;
    if (first.worker && !first.connected) events = POLLOUT;
    if (first.connected) {
      events = (has_room ? POLLIN : 0) | (first.worker->waiting() > 0 ? POLLOUT : 0);
    } else {
      due = std::min(due, now + kPublishEvery);
    }
    waits.push_back({events ? first.worker->fd() : -1, static_cast<short>(events), 0});
    // What was just sent has made room, or the one before has.
    const bool sends = link && !first.back.empty() && link->room(first.id) > 0;
    const bool goes_on =
        sends || (first.connected && first.receiver.can_look() && reader_.has_room());
    if (goes_on || !first.worker) due = now;
  }
  wait_until(waits, due - now);
  return waits[0].revents == 0;
}

WorkerEnd::Served* WorkerEnd::find(std::uint32_t session) {
  const auto found = std::ranges::find(served_, session, &Served::id);
  return found == served_.end() ? nullptr : &*found;
}

void WorkerEnd::opened(std::uint32_t session) {
  RequestReceiver& receiver = served_.emplace_back(session, ++opened_).receiver;
  const LinkEnd& end = connections_.link()->end();
  if (end.uses(kCompression)) receiver.use_compression();
  if (end.uses(kHome)) receiver.use_models(home_, counts_);
}

void WorkerEnd::arrived(std::uint32_t session, Bytes data) {
  if (Served* served = find(session)) served->receiver.arrived(data);
}

void WorkerEnd::told(std::uint32_t session, Bytes message) {
  Served* served = find(session);
  if (!served) return;
  try {
    served->receiver.told(message);
  } catch (const weights::BadMessage& error) {
    refuse(*served, error.what());
    forget_uncalled();
  }
}

void WorkerEnd::finished(std::uint32_t session) {
  if (Served* served = find(session)) served->receiver.finish();
}

void WorkerEnd::was_reset(std::uint32_t session, const std::string&) {
  if (Served* served = find(session)) abandon(*served);
  forget_uncalled();
}

void WorkerEnd::resumed(const std::string& news) {
  tell(news, Level::kWarning);
}

void WorkerEnd::lost(const std::string& reason) {
  tell("the link broke: " + reason, Level::kError);
  abandon_all();
}

void WorkerEnd::abandon_all() {
  for (Served& served : served_) abandon(served);
  forget_uncalled();
}

// Of those that are over, the ones the rpc-server never heard of.
void WorkerEnd::forget_uncalled() {
  std::erase_if(served_, [](const Served& served) { return served.id == 0 && !served.worker; });
}

void WorkerEnd::greeted(const Hello& other) {
  tell("linked with the head " + other.name);
  LinkEnd& end = connections_.link()->end();
  if (!end.uses(kHome)) return;
  const auto messages = weights::encode_list(home_.list());
  if (messages.size() > weights::kListMessagesMax) {
    return tell("its models have more tensors than can be listed: their weights cross the link",
                Level::kWarning);
  }
  for (const auto& message : messages) end.send_list(message);
}

// Nobody waits for it any more. What the rpc-server still owes is read and thrown away: a stock one
// dies when it cannot send.
void WorkerEnd::abandon(Served& served) {
  served.id = 0;
  served.receiver.clear();
  served.back.clear();
  if (served.connected) served.worker->finish_now();
}

// Whatever happens ends this session alone.
bool WorkerEnd::serve_safely(Served& served, Nanos now) {
  try {
    return serve(served, now);
  } catch (const std::exception& error) {
    tell(error.what(), Level::kError);
    refuse(served, error.what());
    return false;
  }
}

bool WorkerEnd::serve(Served& served, Nanos now) {
  if (!served.worker && served.id == 0) return false;
  try {
    if (!served.worker) call(served, now);
    if (!served.connected) await_connection(served, now);
  } catch (const std::exception& error) {
    fail(served, error.what());
    return false;
  }
  if (!served.connected) return true;
  served.worker->flush();
  look(served);
  // In this order: what has waited for a reply goes at once.
  read_worker(served, now);
  take_arriving(served);
  push_back(served);
  LiveLink* link = connections_.link();
  if (link && served.id) link->end().grant(served.id, served.receiver.waiting());
  const bool ended = served.worker->ended() || served.worker->broken();
  if (ended && served.id) served.back.append(served.session->take_held());
  if (!ended || !served.back.empty()) return true;
  if (link && served.id) {
    // Behind a broken connection nothing more can be said in order.
    served.worker->broken() ? link->end().reset(served.id, "the rpc-server broke off")
                            : link->end().finish(served.id);
    // The head may go on to send; here it goes nowhere.
    if (link->end().has(served.id)) link->end().grant(served.id, 0);
  }
  return false;
}

void WorkerEnd::call(Served& served, Nanos now) {
  served.called = now;
  served.worker = std::make_unique<LocalSocket>(begin_connect(worker_));
}

void WorkerEnd::await_connection(Served& served, Nanos now) {
  pollfd question{served.worker->fd(), POLLOUT, 0};
  if (::poll(&question, 1, 0) == 0) {
    if (now - served.called > kConnectMax) throw LinkBroken("it does not take the connection");
    return;
  }
  if (const int error = connect_error(served.worker->fd())) {
    throw LinkBroken(std::strerror(error));
  }
  served.connected = true;
  served.session = std::make_unique<Session>(link_);
  LiveLink* link = connections_.link();
  if (link && link->end().uses(kAhead)) served.session->enable_prefetch();
  if (served.id == 0) served.worker->finish_now();
}

void WorkerEnd::take_arriving(Served& served) {
  try {
    while (served.worker->waiting() < kUntakenMax) {
      const Bytes all = served.receiver.next();
      const Bytes requests = all.first(served.session->ready(all));
      if (requests.empty()) break;
      forward(served, requests);
      if (served.id == 0) return;
      served.receiver.taken(requests.size());
    }
  } catch (const weights::BadMessage& error) {
    return refuse(served, error.what());
  }
  if (served.receiver.is_over() && served.id) end_input(served);
}

void WorkerEnd::look(Served& served) {
  while (served.id != 0 && served.receiver.can_look() && reader_.has_room()) {
    weights::Look next = served.receiver.next_look();
    next.asker = served.number;
    reader_.ask(std::move(next));
  }
}

// What a session that is over asked for goes nowhere.
void WorkerEnd::take_looked() {
  while (std::optional<weights::Look> look = reader_.take()) {
    LiveLink* link = connections_.link();
    const auto served = std::ranges::find(served_, look->asker, &Served::number);
    if (!link || served == served_.end() || served->id == 0) continue;
    weights::Message answer{.kind = weights::Message::Kind::kAnswer};
    answer.have = served->receiver.looked(std::move(*look));
    link->end().send_home(served->id, encode(answer));
  }
}

void WorkerEnd::forward(Served& served, Bytes data) {
  const Outgoing out = served.session->requests(data, monotonic_now());
  served.back.append(view(out.answers));
  served.worker->send(out.worker);
  if (!out.refused || served.id == 0) return;
  std::string reason;
  {
    const std::lock_guard lock(link_.mutex);
    reason = "refused " + link_.tally.refused_reason;
  }
  refuse(served, reason);
}

void WorkerEnd::refuse(Served& served, const std::string& reason) {
  if (LiveLink* link = connections_.link(); link && served.id) link->end().reset(served.id, reason);
  abandon(served);
}

void WorkerEnd::end_input(Served& served) {
  served.worker->send(served.session->requests_end().worker);
  served.worker->finish();
}

void WorkerEnd::read_worker(Served& served, Nanos now) {
  LiveLink* link = connections_.link();
  for (std::size_t taken = 0; taken < kStepBytes;) {
    const bool has_room = served.id == 0 || (link && served.back.size() < kHeldMax);
    const std::size_t count = has_room ? served.worker->read(block_) : 0;
    if (count == 0) return;
    taken += count;
    const Bytes bytes = Bytes(block_).first(count);
    const Bytes replies = served.session->replies(bytes, now);
    const std::optional<Trip> trip = served.session->take_trip();
    if (served.id == 0) continue;
    prefetch(served, now);
    if (served.id == 0) continue;
    if (trip) link->end().send_trip(served.id, *trip);
    served.back.append(replies);
    push_back(served);
  }
}

// What is found out is told before the replies that have waited for it.
void WorkerEnd::prefetch(Served& served, Nanos now) {
  if (served.session->is_contradicted()) return refuse(served, "its replies cannot be told apart");
  const Bytes questions = served.session->own_requests(now).worker;
  if (!questions.empty()) served.worker->send(questions);
  connections_.link()->end().send_prefetched(served.id, served.session->take_prefetched());
}

void WorkerEnd::push_back(Served& served) {
  LiveLink* link = connections_.link();
  if (!link || served.id == 0) return;
  const std::size_t count = std::min(link->room(served.id), served.back.size());
  if (count == 0) return;
  link->end().send(served.id, served.back.all().first(count));
  served.back.drop(count);
}

void WorkerEnd::fail(Served& served, const std::string& reason) {
  const std::string told = "cannot reach the rpc-server at " + text(worker_) + ": " + reason;
  tell(told, Level::kError);
  if (LiveLink* link = connections_.link(); link && served.id) link->end().reset(served.id, told);
}

void WorkerEnd::tell(const std::string& text, Level level) {
  const std::lock_guard lock(link_.mutex);
  link_.tell(text, level);
}

void WorkerEnd::publish(bool is_connected, Nanos now) {
  if (now - published_ < kPublishEvery) return;
  published_ = now;
  const std::lock_guard lock(link_.mutex);
  PairTally& tally = link_.tally.pair;
  const PairTally before = tally;
  connections_.note(tally);
  note(counts_, tally);
  if (const auto news = report_.news(counts_, now)) link_.tell(*news);
  link_.tally.connected = is_connected;
  if (tally != before) ++link_.revision;
}

}  // namespace dllm::link
