#include "forwarder.h"

#include <sys/socket.h>

#include <exception>
#include <thread>
#include <vector>

#include "sockets.h"

namespace dllm {

Forwarder::Forwarder(Link& link, UniqueFd client, UniqueFd worker)
    : link_(link),
      client_(std::move(client)),
      session_(link),
      upstream_(link, std::move(worker), [this](Bytes bytes) { deliver(bytes); }) {}

void Forwarder::run() {
  watch(upstream_.fd());
  std::thread downwards([this] { end_safely([this] { down(); }); });
  end_safely([this] { up(); });
  downwards.join();
  watch(-1);
}

// Whatever happens ends this connection alone.
void Forwarder::end_safely(const std::function<void()>& direction) {
  try {
    direction();
  } catch (const std::exception& error) {
    {
      const std::lock_guard lock(link_.mutex);
      link_.tell(error.what(), Level::kError);
    }
    stop();
    upstream_.cut();
  }
}

void Forwarder::stop() {
  ::shutdown(client_.get(), SHUT_RDWR);
}

void Forwarder::watch(int worker_fd) {
  const std::lock_guard lock(link_.mutex);
  link_.worker_fd = worker_fd;
  link_.tally.connected = worker_fd >= 0;
  ++link_.revision;
}

void Forwarder::up() {
  std::vector<std::uint8_t> block(kBlockBytes);
  ssize_t count = 0;
  do {
    count =
        more_follows_ ? receive_awake(client_.get(), block, kAwake) : receive(client_.get(), block);
  } while (count > 0 && forward(Bytes(block).first(static_cast<std::size_t>(count))));
  upstream_.send(session_.requests_end().worker);
  upstream_.drain();
  // In this order: the worker ends as soon as it is told, and must not seem to have left first.
  up_ended_.set_value();
  upstream_.finish();
}

bool Forwarder::forward(Bytes bytes) {
  ++moved_;
  const Outgoing out = session_.requests(bytes, monotonic_now());
  if (!out.answers.empty()) {
    const std::lock_guard lock(to_client_);
    const auto* data = reinterpret_cast<const std::uint8_t*>(out.answers.data());
    if (!send_to_client({data, out.answers.size()})) return false;
  }
  more_follows_ = out.more_follows && bytes.size() <= kBurstBytes;
  const bool taken = out.worker.empty() || upstream_.send(out.worker);
  if (!taken) reset_on_close(client_.get());
  if (!taken || out.refused) ::shutdown(client_.get(), SHUT_RD);
  return taken && !out.refused;
}

void Forwarder::down() {
  std::vector<std::uint8_t> block(kBlockBytes);
  const bool whole = upstream_.receive(block);
  worker_left_ = !up_has_ended(std::chrono::seconds(0));
  upstream_.settle();
  if (!whole) reset_on_close(client_.get());
  ::shutdown(client_.get(), whole ? SHUT_WR : SHUT_RD);
  await_client();
}

// False when the client takes no more, or reads nothing while its worker has gone: it would keep
// the place from the next client for ever.
bool Forwarder::send_to_client(View bytes) {
  constexpr int kPatienceMs = std::chrono::milliseconds(kSilence).count();
  while (!bytes.empty()) {
    ssize_t sent = send_some(client_.get(), bytes);
    if (sent == 0) {
      wait_writable(client_.get(), kPatienceMs);
      sent = send_some(client_.get(), bytes);
      if (sent == 0 && upstream_.is_gone()) return false;
    }
    if (sent < 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
  return true;
}

// When the client is gone the worker is read on, see `run`.
void Forwarder::deliver(Bytes bytes) {
  // Around both: what is answered from here on must not overtake these bytes.
  const std::lock_guard lock(to_client_);
  const Bytes replies = session_.replies(bytes, monotonic_now());
  if (!client_gone_ && !send_to_client(replies)) {
    client_gone_ = true;
    ::shutdown(client_.get(), SHUT_RDWR);
  }
}

// Waits for the other direction so long at most.
bool Forwarder::up_has_ended(std::chrono::seconds patience) {
  return ended_.wait_for(patience) == std::future_status::ready;
}

void Forwarder::await_client() {
  std::uint64_t before = 0;
  do {
    before = moved_;
  } while (!up_has_ended(kSilence) && moved_ != before);
  ::shutdown(client_.get(), SHUT_RD);
  // Where the other direction waits for a worker that takes nothing.
  upstream_.cut();
}

}  // namespace dllm
