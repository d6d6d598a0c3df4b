#include "direct_transport.h"

#include <exception>

#include "sockets.h"

namespace dllm {

WorkerTransport::Outcome DirectTransport::carry(UniqueFd client) {
  UniqueFd worker = reach_worker();
  if (!worker) {
    reset_on_close(client.get());
    return Outcome::kWorkerLeft;
  }
  Forwarder forwarder(link_, std::move(client), std::move(worker));
  {
    const std::lock_guard lock(mutex_);
    active_ = &forwarder;
    if (ending_) forwarder.stop();
  }
  forwarder.run();
  const std::lock_guard lock(mutex_);
  active_ = nullptr;
  return forwarder.worker_left() ? Outcome::kWorkerLeft : Outcome::kEnded;
}

void DirectTransport::stop() {
  const std::lock_guard lock(mutex_);
  ending_ = true;
  if (active_) active_->stop();
}

UniqueFd DirectTransport::reach_worker() {
  note_call(monotonic_now());
  UniqueFd worker;
  try {
    worker = connect_to(worker_);
  } catch (const std::exception& error) {
    log(Level::kError, link_.name + ": " + error.what());
  }
  note_call({});
  return worker;
}

void DirectTransport::note_call(std::optional<Nanos> since) {
  const std::lock_guard lock(link_.mutex);
  link_.unanswered_since = since;
}

}  // namespace dllm
