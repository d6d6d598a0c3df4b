// The clients of one worker: each has a thread, one at a time has the worker.
#pragma once

#include <chrono>
#include <list>
#include <mutex>
#include <optional>

#include "link.h"
#include "posix.h"
#include "relay.h"
#include "sockets.h"
#include "turns.h"

namespace dllm {

class Clients {
 public:
  static constexpr std::size_t kClientsMax = 64;
  // Without a connection for so long, the worker may be another process than before.
  static constexpr std::chrono::seconds kAnswersLast{1};
  // For what a worker still owes when we are told to end.
  static constexpr std::chrono::seconds kEndGrace{2};

  Clients(Link& link, Endpoint worker) : link_(link), worker_(std::move(worker)), turns_(link) {}

  // Serves every client of the listener until it is shut down.
  void serve(int listener);
  // Ends all connections and waits for them, for the grace at most.
  void end();

 private:
  void start(UniqueFd client);
  void attend(UniqueFd client);
  UniqueFd reach_worker();
  void relay(UniqueFd client, UniqueFd worker);
  void leave();
  void forget_answers();
  void forget_old_answers();

  Link& link_;
  const Endpoint worker_;
  Turns turns_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t count_ = 0;
  bool ending_ = false;
  Relay* active_ = nullptr;
  std::optional<std::chrono::steady_clock::time_point> idle_since_;
};

}  // namespace dllm
