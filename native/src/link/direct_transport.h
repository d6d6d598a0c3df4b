// Takes clients to a stock worker, or whatever speaks like one: each gets a connection of its own.
#pragma once

#include <mutex>
#include <optional>

#include "endpoint.h"
#include "forwarder.h"
#include "worker_transport.h"

namespace dllm {

class DirectTransport final : public WorkerTransport {
 public:
  DirectTransport(Link& link, Endpoint worker) : link_(link), worker_(std::move(worker)) {}

  Outcome carry(UniqueFd client) override;
  void stop() override;

 private:
  UniqueFd reach_worker();
  void note_call(std::optional<Nanos> since);

  Link& link_;
  const Endpoint worker_;
  std::mutex mutex_;  // over everything below
  Forwarder* active_ = nullptr;
  bool ending_ = false;
};

}  // namespace dllm
