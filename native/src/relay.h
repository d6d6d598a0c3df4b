// Carries the bytes of one connection both ways, each direction in a thread of its own.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "link.h"
#include "pacer.h"
#include "posix.h"
#include "session.h"

namespace dllm {

class Relay {
 public:
  // Read at once at most, per direction.
  static constexpr std::size_t kBlockBytes = 128 << 10;
  // Pieces up to this size together are sent as one.
  static constexpr std::size_t kJoinedBytes = 32 << 10;
  // A client that says nothing for so long after its worker has finished is closed.
  static constexpr std::chrono::seconds kSilence{2};

  Relay(Link& link, UniqueFd client, UniqueFd worker);
  // Returns when both directions have ended. What the worker still owes when the client is gone
  // is read and thrown away first: a stock worker dies when it cannot send.
  void run();
  // Makes `run` return soon, from another thread.
  void stop();
  // The worker ended the connection before its client did.
  [[nodiscard]] bool worker_left() const { return worker_left_; }

 private:
  void up();
  void down();
  bool forward(Bytes bytes);
  bool send_up(View bytes);
  bool send_spans(const Outgoing& out);
  bool deliver_reply(Bytes bytes);
  void end_up();
  void note_who_left();
  void await_client();
  void watch(int worker_fd);

  Link& link_;
  const UniqueFd client_;
  const UniqueFd worker_;
  Session session_;
  std::mutex to_client_;  // held while something is sent to the client
  bool client_gone_ = false;
  bool worker_left_ = false;
  std::mutex ended_mutex_;
  std::condition_variable ended_;
  bool up_ended_ = false;
  std::atomic<std::uint64_t> moved_ = 0;  // blocks from the client
  Pacer up_pacer_;
  Pacer down_pacer_;
};

}  // namespace dllm
