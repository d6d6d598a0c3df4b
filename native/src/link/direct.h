// Takes clients to a stock worker, or whatever speaks like one: each gets a connection of its own.
#pragma once

#include <mutex>
#include <optional>

#include "carrier.h"
#include "endpoint.h"
#include "relay.h"

namespace dllm {

class Direct final : public Carrier {
 public:
  Direct(Link& link, Endpoint worker) : link_(link), worker_(std::move(worker)) {}

  Outcome carry(UniqueFd client) override;
  void stop() override;

 private:
  UniqueFd reach_worker();
  void note_call(std::optional<Nanos> since);

  Link& link_;
  const Endpoint worker_;
  std::mutex mutex_;  // over everything below
  Relay* active_ = nullptr;
  bool ending_ = false;
};

}  // namespace dllm
