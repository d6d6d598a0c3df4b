// The clients of one worker. A stock worker serves one connection at a time and lets the next hang
// without a word; here they wait their turn, first come first served, by name.
#pragma once

#include <chrono>
#include <condition_variable>
#include <list>
#include <mutex>
#include <optional>

#include "link.h"
#include "posix.h"
#include "worker_transport.h"

namespace dllm {

class ClientQueue {
 public:
  static constexpr std::size_t kWaitingMax = 64;
  // Waiting longer is worth a word; and how soon a waiting client that hangs up is noticed.
  static constexpr int kLookAgainMs = 200;
  // Who has the worker and asks nothing whole for so long gives way to who waits for it.
  static constexpr Nanos kSilentMax = kNanosPerSecond;
  // Without a connection for so long, the worker may be another process than before.
  static constexpr Nanos kRepliesLast = kNanosPerSecond;
  // For what a worker still owes when we are told to end.
  static constexpr std::chrono::seconds kEndGrace{2};

  ClientQueue(Link& link, WorkerTransport& transport) : link_(link), transport_(transport) {}

  // Takes in the clients of the listener and looks after those that wait, for ever.
  void admit(int listener);
  // Gives them the worker, one after another, until the end.
  void serve();
  // Ends the present connection and waits for that, for the grace at most.
  void end();

 private:
  struct Waiting {
    UniqueFd fd;
    std::string name;
    Nanos since = 0;
    bool announced = false;
  };

  void take_in(UniqueFd client);
  bool look_after_waiting();
  void publish_waiting();
  UniqueFd next();
  void attend(UniqueFd client);
  void note_served(UniqueFd client, std::string name);
  void end_silent();
  void tell(const std::string& text, Level level = Level::kInfo);
  void forget_replies();

  Link& link_;
  WorkerTransport& transport_;
  std::optional<Nanos> idle_since_;
  std::mutex mutex_;  // over everything below
  std::condition_variable changed_;
  std::list<Waiting> waiting_;
  Waiting served_;  // the socket of the present one; none between two
  bool ending_ = false;
  bool ended_ = false;
};

}  // namespace dllm
