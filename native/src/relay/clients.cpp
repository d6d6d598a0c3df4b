#include "clients.h"

#include <exception>
#include <thread>

namespace dllm {

namespace {

constexpr std::chrono::milliseconds kAcceptPause{10};

}  // namespace

void Clients::admit(int listener) {
  for (bool anyone_waits = false;;) {
    if (!anyone_waits || wait_readable(listener, kLookAgainMs)) take_in(accept_client(listener));
    anyone_waits = look_after_waiting();
  }
}

void Clients::take_in(UniqueFd client) {
  if (!client) {
    // Out of descriptors, or the client has gone already.
    std::this_thread::sleep_for(kAcceptPause);
    return;
  }
  const std::lock_guard lock(mutex_);
  if (waiting_.size() == kWaitingMax) {
    complain(link_.name + ": too many clients, one is turned away");
    return;
  }
  std::string name = peer_name(client.get());
  waiting_.push_back({std::move(client), std::move(name), monotonic_now()});
  changed_.notify_all();
}

// Whether there are any.
bool Clients::look_after_waiting() {
  const std::lock_guard lock(mutex_);
  if (waiting_.empty()) return false;
  const Nanos long_ago = monotonic_now() - kLookAgainMs * kNanosPerMilli;
  // Not a new one: that it sends no more is no reason not to serve it.
  std::erase_if(waiting_, [&](const Waiting& client) {
    return client.since <= long_ago && is_gone(client.fd.get());
  });
  for (Waiting& client : waiting_) {
    if (client.announced || client.since > long_ago) continue;
    client.announced = true;
    complain(link_.name + ": worker is busy, client " + client.name + " waits");
  }
  publish_waiting();
  return !waiting_.empty();
}

void Clients::publish_waiting() {
  std::vector<std::string> names;
  for (const Waiting& client : waiting_) {
    if (client.announced) names.push_back(client.name);
  }
  const std::lock_guard lock(link_.mutex);
  if (names == link_.tally.waiting) return;
  link_.tally.waiting = std::move(names);
  ++link_.revision;
}

void Clients::serve() {
  while (UniqueFd client = next()) attend(std::move(client));
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

// None at the end.
UniqueFd Clients::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
  if (ending_) return {};
  UniqueFd client = std::move(waiting_.front().fd);
  waiting_.pop_front();
  publish_waiting();
  return client;
}

void Clients::attend(UniqueFd client) {
  set_nodelay(client.get());
  if (UniqueFd worker = reach_worker()) {
    relay(std::move(client), std::move(worker));
  } else {
    reset_on_close(client.get());
  }
  idle_since_ = monotonic_now();
}

UniqueFd Clients::reach_worker() {
  if (idle_since_ && monotonic_now() - *idle_since_ > kAnswersLast) forget_answers();
  note_call(monotonic_now());
  UniqueFd worker;
  try {
    worker = connect_tcp(worker_);
  } catch (const std::exception& error) {
    complain(link_.name + ": " + error.what());
    forget_answers();
  }
  note_call({});
  return worker;
}

void Clients::note_call(std::optional<Nanos> since) {
  const std::lock_guard lock(link_.mutex);
  link_.unanswered_since = since;
}

void Clients::relay(UniqueFd client, UniqueFd worker) {
  Relay relay(link_, std::move(client), std::move(worker));
  {
    const std::lock_guard lock(mutex_);
    active_ = &relay;
    if (ending_) relay.stop();
  }
  relay.run();
  if (relay.worker_left()) forget_answers();
  const std::lock_guard lock(mutex_);
  active_ = nullptr;
}

void Clients::forget_answers() {
  const std::lock_guard lock(link_.mutex);
  link_.answers.forget();
}

void Clients::end() {
  std::unique_lock lock(mutex_);
  ending_ = true;
  if (active_) active_->stop();
  changed_.notify_all();
  changed_.wait_for(lock, kEndGrace, [this] { return ended_; });
}

}  // namespace dllm
