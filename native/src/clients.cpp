#include "clients.h"

#include <exception>
#include <thread>

namespace dllm {

void Clients::serve(int listener) {
  for (;;) {
    UniqueFd client = accept_client(listener);
    const std::lock_guard lock(mutex_);
    if (ending_) return;
    if (!client) {
      // Out of descriptors, or the client has gone already.
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      continue;
    }
    start(std::move(client));
  }
}

void Clients::start(UniqueFd client) {
  if (count_ == kClientsMax) {
    complain(link_.name + ": too many clients, one is turned away");
    return;
  }
  ++count_;
  std::thread([this, owned = std::move(client)]() mutable {
    attend(std::move(owned));
    leave();
  }).detach();
}

void Clients::attend(UniqueFd client) {
  set_nodelay(client.get());
  if (!turns_.wait(client.get(), peer_name(client.get()))) return;
  if (UniqueFd worker = reach_worker()) {
    relay(std::move(client), std::move(worker));
  } else {
    reset_on_close(client.get());
    client.reset();
  }
  idle_since_ = std::chrono::steady_clock::now();
  turns_.pass_on();
}

UniqueFd Clients::reach_worker() {
  try {
    forget_old_answers();
    return connect_tcp(worker_);
  } catch (const std::exception& error) {
    complain(link_.name + ": " + error.what());
    forget_answers();
    return {};
  }
}

void Clients::relay(UniqueFd client, UniqueFd worker) {
  Relay relay(link_, std::move(client), std::move(worker));
  {
    const std::lock_guard lock(mutex_);
    active_ = &relay;
    if (ending_) relay.stop();
  }
  relay.run();
  const std::lock_guard lock(mutex_);
  active_ = nullptr;
  if (relay.worker_left()) forget_answers();
}

void Clients::leave() {
  const std::lock_guard lock(mutex_);
  --count_;
  changed_.notify_all();
}

void Clients::forget_answers() {
  const std::lock_guard lock(link_.mutex);
  link_.answers.forget();
}

void Clients::forget_old_answers() {
  if (idle_since_ && std::chrono::steady_clock::now() - *idle_since_ > kAnswersLast) {
    forget_answers();
  }
}

void Clients::end() {
  turns_.end();
  std::unique_lock lock(mutex_);
  ending_ = true;
  if (active_) active_->stop();
  changed_.wait_for(lock, kEndGrace, [this] { return count_ == 0; });
}

}  // namespace dllm
