#include "client_queue.h"

#include <sys/socket.h>
#include <unistd.h>

#include <exception>
#include <thread>

#include "sockets.h"

namespace dllm {

namespace {

constexpr std::chrono::milliseconds kAcceptPause{10};

}  // namespace

void ClientQueue::admit(int listener) {
  for (bool anyone_waits = false;;) {
    if (!anyone_waits || wait_readable(listener, kLookAgainMs)) take_in(accept_client(listener));
    anyone_waits = look_after_waiting();
  }
}

void ClientQueue::take_in(UniqueFd client) {
  if (!client) {
    // Out of descriptors, or the client has gone already.
    std::this_thread::sleep_for(kAcceptPause);
    return;
  }
  const std::lock_guard lock(mutex_);
  if (waiting_.size() == kWaitingMax) {
    tell("too many clients, one is turned away", Level::kWarning);
    return;
  }
  std::string name = peer_name(client.get());
  waiting_.push_back({std::move(client), std::move(name), monotonic_now()});
  changed_.notify_all();
}

// Whether there are any.
bool ClientQueue::look_after_waiting() {
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
  if (!waiting_.empty()) end_silent();
  return !waiting_.empty();
}

void ClientQueue::publish_waiting() {
  std::vector<std::string> names;
  for (const Waiting& client : waiting_) {
    if (client.announced) names.push_back(client.name);
  }
  const std::lock_guard lock(link_.mutex);
  if (names == link_.tally.waiting) return;
  link_.tally.waiting = std::move(names);
  ++link_.revision;
}

void ClientQueue::serve() {
  while (UniqueFd client = next()) attend(std::move(client));
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

// None at the end.
UniqueFd ClientQueue::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
  if (ending_) return {};
  UniqueFd client = std::move(waiting_.front().fd);
  waiting_.pop_front();
  publish_waiting();
  return client;
}

void ClientQueue::attend(UniqueFd client) {
  tune(client.get());
  if (idle_since_ && monotonic_now() - *idle_since_ > kRepliesLast) forget_replies();
  note_served(UniqueFd(::dup(client.get())), peer_name(client.get()));
  WorkerTransport::Outcome outcome = WorkerTransport::Outcome::kWorkerLeft;
  try {
    outcome = transport_.carry(std::move(client));
  } catch (const std::exception& error) {
    tell(error.what(), Level::kError);
  }
  note_served({}, {});
  if (outcome == WorkerTransport::Outcome::kWorkerLeft) forget_replies();
  idle_since_ = monotonic_now();
}

void ClientQueue::note_served(UniqueFd client, std::string name) {
  const std::lock_guard lock(mutex_);
  served_ = {std::move(client), std::move(name), monotonic_now()};
  const std::lock_guard link_lock(link_.mutex);
  link_.client_has_spoken = false;
}

// A client speaks first, and at once.
void ClientQueue::end_silent() {
  if (!served_.fd || monotonic_now() - served_.since < kSilentMax) return;
  const bool is_unread = wait_readable(served_.fd.get(), 0);
  const std::lock_guard lock(link_.mutex);
  if (is_unread || link_.client_has_spoken) return;
  link_.tell("client " + served_.name + " asks nothing while another waits; connection closed",
             Level::kWarning);
  ::shutdown(served_.fd.get(), SHUT_RDWR);
  served_.fd.reset();
}

void ClientQueue::tell(const std::string& text, Level level) {
  const std::lock_guard lock(link_.mutex);
  link_.tell(text, level);
}

void ClientQueue::forget_replies() {
  const std::lock_guard lock(link_.mutex);
  link_.reply_cache.forget();
}

void ClientQueue::end() {
  std::unique_lock lock(mutex_);
  ending_ = true;
  transport_.stop();
  changed_.notify_all();
  changed_.wait_for(lock, kEndGrace, [this] { return ended_; });
}

}  // namespace dllm
