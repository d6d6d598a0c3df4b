// Carries the bytes of one connection both ways, each direction in a thread of its own.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <mutex>

#include "link.h"
#include "posix.h"
#include "session.h"
#include "upstream.h"

namespace dllm {

class Forwarder {
 public:
  // Read at once at most, per direction.
  static constexpr std::size_t kBlockBytes = 128 << 10;
  // The requests of a token come back to back, in small pieces. Between them the relay stays awake
  // for so long: to fall asleep and be woken takes longer, and the client's send pays for it.
  static constexpr Nanos kAwake = 20 * kNanosPerMicro;
  static constexpr std::size_t kBurstBytes = 32 << 10;
  // A client that says nothing, or takes nothing, for so long after its worker has finished is
  // closed.
  static constexpr std::chrono::seconds kSilence{2};

  Forwarder(Link& link, UniqueFd client, UniqueFd worker);
  // Returns when both directions have ended. What the worker still owes when the client is gone
  // is read and thrown away first: a stock worker dies when it cannot send.
  void run();
  // Makes `run` return soon, from another thread.
  void stop();
  // The worker ended the connection before its client did.
  [[nodiscard]] bool worker_left() const { return worker_left_; }

 private:
  void end_safely(const std::function<void()>& direction);
  void up();
  void down();
  bool forward(Bytes bytes);
  void deliver(Bytes bytes);
  bool send_to_client(View bytes);
  bool up_has_ended(std::chrono::seconds patience);
  void await_client();
  void watch(int worker_fd);

  Link& link_;
  const UniqueFd client_;
  Session session_;
  bool more_follows_ = false;  // the client is in the middle of something
  std::mutex to_client_;       // held while something is sent to the client
  bool client_gone_ = false;
  bool worker_left_ = false;
  std::promise<void> up_ended_;
  const std::future<void> ended_ = up_ended_.get_future();
  std::atomic<std::uint64_t> moved_ = 0;  // blocks from the client
  Upstream upstream_;                     // last: its threads end first
};

}  // namespace dllm
