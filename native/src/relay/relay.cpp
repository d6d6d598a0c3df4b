#include "relay.h"

#include <sys/socket.h>

#include <thread>
#include <vector>

#include "sockets.h"

namespace dllm {

Relay::Relay(Link& link, UniqueFd client, UniqueFd worker)
    : link_(link),
      client_(std::move(client)),
      worker_(std::move(worker)),
      session_(link),
      up_pacer_(link.lab, 0, [this](Bytes bytes) { return send_all(worker_.get(), bytes); }),
      down_pacer_(link.lab, 1, [this](Bytes bytes) { return deliver_reply(bytes); }) {}

void Relay::run() {
  watch(worker_.get());
  std::thread downwards([this] { down(); });
  up();
  downwards.join();
  watch(-1);
}

void Relay::stop() {
  ::shutdown(client_.get(), SHUT_RDWR);
}

void Relay::watch(int worker_fd) {
  const std::lock_guard lock(link_.mutex);
  link_.worker_fd = worker_fd;
  link_.tally.connected = worker_fd >= 0;
  ++link_.revision;
}

void Relay::up() {
  std::vector<std::uint8_t> block(kBlockBytes);
  ssize_t count = 0;
  do {
    count =
        more_follows_ ? receive_awake(client_.get(), block, kAwake) : receive(client_.get(), block);
  } while (count > 0 && forward(Bytes(block).first(static_cast<std::size_t>(count))));
  up_pacer_.send(session_.requests_end().worker);
  up_pacer_.drain();
  // In this order: the worker ends as soon as it is told, and must not seem to have left first.
  up_ended_.set_value();
  ::shutdown(worker_.get(), SHUT_WR);
}

bool Relay::forward(Bytes bytes) {
  ++moved_;
  const Outgoing out = session_.requests(bytes, monotonic_now());
  if (!out.answers.empty()) {
    const std::lock_guard lock(to_client_);
    const auto* data = reinterpret_cast<const std::uint8_t*>(out.answers.data());
    if (!send_all(client_.get(), {data, out.answers.size()})) return false;
  }
  more_follows_ = out.more_follows && bytes.size() <= kBurstBytes;
  const bool taken = out.worker.empty() || up_pacer_.send(out.worker);
  if (!taken) reset_on_close(client_.get());
  if (!taken || out.refused) ::shutdown(client_.get(), SHUT_RD);
  return taken && !out.refused;
}

void Relay::down() {
  std::vector<std::uint8_t> block(kBlockBytes);
  ssize_t count = 0;
  while ((count = receive(worker_.get(), block)) > 0) {
    down_pacer_.send(Bytes(block).first(static_cast<std::size_t>(count)));
  }
  worker_left_ = !up_has_ended(std::chrono::seconds(0));
  down_pacer_.drain();
  if (count < 0) reset_on_close(client_.get());
  ::shutdown(client_.get(), count < 0 ? SHUT_RD : SHUT_WR);
  await_client();
}

// Always true: when the client is gone the worker is read on, see `run`.
bool Relay::deliver_reply(Bytes bytes) {
  // Around both: what is answered from here on must not overtake these bytes.
  const std::lock_guard lock(to_client_);
  session_.replies(bytes, monotonic_now());
  if (!client_gone_ && !send_all(client_.get(), bytes)) {
    client_gone_ = true;
    ::shutdown(client_.get(), SHUT_RDWR);
  }
  return true;
}

// Waits for the other direction so long at most.
bool Relay::up_has_ended(std::chrono::seconds patience) {
  return ended_.wait_for(patience) == std::future_status::ready;
}

void Relay::await_client() {
  std::uint64_t before = 0;
  do {
    before = moved_;
  } while (!up_has_ended(kSilence) && moved_ != before);
  ::shutdown(client_.get(), SHUT_RD);
}

}  // namespace dllm
