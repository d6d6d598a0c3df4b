// The way to a worker over a plain connection, for one client: what policy let through goes in,
// what the worker says comes out. The lab slows what crosses here.
#pragma once

#include <functional>

#include "link.h"
#include "netem/delay_line.h"
#include "posix.h"

namespace dllm {

class Upstream {
 public:
  // Takes what the worker said.
  using Deliver = std::function<void(Bytes)>;

  Upstream(Link& link, UniqueFd worker, Deliver deliver);

  // For one thread. False when the worker takes no more.
  bool send(Bytes bytes) { return up_pacer_.send(bytes); }
  // No more is sent: returns when all of it has left.
  void drain() { up_pacer_.drain(); }
  // Tells the worker so.
  void finish();

  // For one thread, which `block` belongs to. Reads until the worker's end; false when it broke
  // off. What was read may not have been delivered yet, nor in this thread.
  bool receive(Bytes block);
  // Returns when it has been.
  void settle() { down_pacer_.drain(); }

  // From any thread: both directions end, even where one waits for the worker.
  void cut();
  // Whether the worker has closed or broken the connection.
  [[nodiscard]] bool is_gone() const;
  // For what the kernel knows about it.
  [[nodiscard]] int fd() const { return worker_.get(); }

 private:
  bool put(Bytes bytes);

  Link& link_;
  const UniqueFd worker_;
  Pacer up_pacer_;
  Pacer down_pacer_;
};

}  // namespace dllm
