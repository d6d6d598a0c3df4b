#include "turns.h"

#include <algorithm>
#include <chrono>

#include "posix.h"
#include "sockets.h"

namespace dllm {

namespace {

// Waiting longer is worth a word; and how soon a waiting client that hangs up is noticed.
constexpr std::chrono::milliseconds kLookAgain{200};

}  // namespace

bool Turns::wait(int client, const std::string& name) {
  std::unique_lock lock(mutex_);
  queue_.push_back(client);
  const auto settled = [&] { return ended_ || queue_.front() == client; };
  bool announced = false;
  while (!changed_.wait_for(lock, kLookAgain, settled) && !is_gone(client)) {
    if (!std::exchange(announced, true)) announce(name);
  }
  if (announced) withdraw(name);
  if (!ended_ && queue_.front() == client) return true;
  std::erase(queue_, client);
  return false;
}

void Turns::pass_on() {
  const std::lock_guard lock(mutex_);
  queue_.pop_front();
  changed_.notify_all();
}

void Turns::end() {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

void Turns::announce(const std::string& name) {
  complain(link_.name + ": worker is busy, client " + name + " waits");
  const std::lock_guard lock(link_.mutex);
  link_.waiting.push_back(name);
  ++link_.revision;
}

void Turns::withdraw(const std::string& name) {
  const std::lock_guard lock(link_.mutex);
  std::erase(link_.waiting, name);
  ++link_.revision;
}

}  // namespace dllm
