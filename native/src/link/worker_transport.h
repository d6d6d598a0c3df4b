// Takes a client to the worker: over a connection of its own, or over the link to the worker's
// relay.
#pragma once

#include "posix.h"

namespace dllm {

class WorkerTransport {
 public:
  enum class Outcome {
    kEnded,       // in order
    kWorkerLeft,  // before its client, or it could not be reached
  };

  virtual ~WorkerTransport() = default;
  // Returns when the client is served to its end. For one thread, one client at a time.
  virtual Outcome carry(UniqueFd client) = 0;
  // Makes `carry` return soon, now and from here on; from another thread.
  virtual void stop() = 0;
};

}  // namespace dllm
