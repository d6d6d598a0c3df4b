#include "clients.h"

#include <thread>

#include "sockets.h"

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
    tell("too many clients, one is turned away");
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
    tell("worker is busy, client " + client.name + " waits");
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
  tune(client.get());
  if (idle_since_ && monotonic_now() - *idle_since_ > kAnswersLast) forget_answers();
  if (carrier_.carry(std::move(client)) == Carrier::Outcome::kWorkerLeft) forget_answers();
  idle_since_ = monotonic_now();
}

void Clients::tell(const std::string& text) {
  const std::lock_guard lock(link_.mutex);
  link_.tell(text);
}

void Clients::forget_answers() {
  const std::lock_guard lock(link_.mutex);
  link_.answers.forget();
}

void Clients::end() {
  std::unique_lock lock(mutex_);
  ending_ = true;
  carrier_.stop();
  changed_.notify_all();
  changed_.wait_for(lock, kEndGrace, [this] { return ended_; });
}

}  // namespace dllm
