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
    count = receive(client_.get(), block);
  } while (count > 0 && forward(Bytes(block).first(static_cast<std::size_t>(count))));
  send_spans(session_.requests_end());
  up_pacer_.drain();
  // In this order: the worker ends as soon as it is told, and must not seem to have left first.
  end_up();
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
  const bool taken = send_spans(out);
  if (!taken) reset_on_close(client_.get());
  if (!taken || out.refused) ::shutdown(client_.get(), SHUT_RD);
  return taken && !out.refused;
}

bool Relay::send_up(View bytes) {
  // The pacer's interface serves replies too, which are changed in place; these are not.
  return up_pacer_.send({const_cast<std::uint8_t*>(bytes.data()), bytes.size()});
}

// Small pieces leave together: every send wakes the worker.
bool Relay::send_spans(const Outgoing& out) {
  if (out.spans().size() == 1) return send_up(out.spans().front());
  std::vector<std::uint8_t> joined;
  for (const View span : out.spans()) {
    if (joined.size() + span.size() <= kJoinedBytes) {
      joined.insert(joined.end(), span.begin(), span.end());
      continue;
    }
    if (!joined.empty() && !send_up(joined)) return false;
    joined.clear();
    if (!send_up(span)) return false;
  }
  return joined.empty() || send_up(joined);
}

void Relay::down() {
  std::vector<std::uint8_t> block(kBlockBytes);
  ssize_t count = 0;
  while ((count = receive(worker_.get(), block)) > 0) {
    down_pacer_.send(Bytes(block).first(static_cast<std::size_t>(count)));
  }
  note_who_left();
  down_pacer_.drain();
  if (count < 0) reset_on_close(client_.get());
  ::shutdown(client_.get(), count < 0 ? SHUT_RD : SHUT_WR);
  await_client();
}

// Always true: when the client is gone the worker is read on, see `run`.
bool Relay::deliver_reply(Bytes bytes) {
  const std::lock_guard lock(to_client_);
  session_.replies(bytes, monotonic_now());
  if (!client_gone_ && !send_all(client_.get(), bytes)) {
    client_gone_ = true;
    ::shutdown(client_.get(), SHUT_RDWR);
  }
  session_.delivered();
  return true;
}

void Relay::end_up() {
  const std::lock_guard lock(ended_mutex_);
  up_ended_ = true;
  ended_.notify_all();
}

void Relay::note_who_left() {
  const std::lock_guard lock(ended_mutex_);
  worker_left_ = !up_ended_;
}

void Relay::await_client() {
  std::unique_lock lock(ended_mutex_);
  std::uint64_t before = 0;
  do {
    before = moved_;
    ended_.wait_for(lock, kSilence, [this] { return up_ended_; });
  } while (!up_ended_ && moved_ != before);
  ::shutdown(client_.get(), SHUT_RD);
}

}  // namespace dllm
