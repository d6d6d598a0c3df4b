// The whole relay over socket pairs, threads included: every byte arrives unless it was refused,
// and both ends come to an end.
//
// An input is small enough for the sockets to hold all of it, so this thread plays both peers,
// piece by piece in the order of the conversation, and reads what arrived at the end.
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <csignal>
#include <cstdlib>
#include <functional>
#include <future>
#include <thread>

#ifdef __linux__
#include <linux/sockios.h>
#endif

#include "input.h"
#include "link/forwarder.h"
#include "link/sockets.h"

namespace {

using dllm::UniqueFd;

constexpr std::size_t kInputMaxBytes = 32 << 10;
// How often to look whether the relay has taken a piece before the next is sent.
constexpr int kLooks = 50;

void make_pair(UniqueFd& ours, UniqueFd& theirs) {
  int ends[2];
  dllm::check(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
  ours.reset(ends[0]);
  theirs.reset(ends[1]);
}

std::size_t count_to_end(int fd) {
  static std::uint8_t block[1 << 16];
  std::size_t total = 0;
  for (ssize_t count = 0; (count = dllm::receive(fd, block)) > 0;) {
    total += static_cast<std::size_t>(count);
  }
  return total;
}

// One thread for all runs: to make one takes longer than a run.
class Runner {
 public:
  Runner() : thread_([this] { work(); }) { thread_.detach(); }
  std::future<void> start(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    task_ = std::packaged_task<void()>(std::move(task));
    auto done = task_.get_future();
    ready_.notify_one();
    return done;
  }

 private:
  void work() {
    for (;;) {
      std::unique_lock lock(mutex_);
      ready_.wait(lock, [this] { return task_.valid(); });
      auto task = std::exchange(task_, {});
      lock.unlock();
      task();
    }
  }
  std::mutex mutex_;
  std::condition_variable ready_;
  std::packaged_task<void()> task_;
  std::thread thread_;
};

bool is_taken([[maybe_unused]] int fd) {
#ifdef SIOCOUTQ
  int left = 0;
  return ::ioctl(fd, SIOCOUTQ, &left) == 0 && left == 0;
#else
  return true;
#endif
}

// Gives the relay the chance to see the pieces in this order; it need not take it.
void send_piece(int fd, const std::string& bytes) {
  if (!dllm::send_all(fd, {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()})) {
    return;
  }
  for (int look = 0; look < kLooks && !is_taken(fd); ++look) std::this_thread::yield();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Runner& runner = *new Runner;
  ::signal(SIGPIPE, SIG_IGN);
  if (size > kInputMaxBytes) return 0;
  const auto pieces = fuzz::parse({data, size});
  std::size_t sent_up = 0, sent_down = 0;
  for (const fuzz::Piece& piece : pieces) (piece.up ? sent_up : sent_down) += piece.bytes.size();

  dllm::Link link("fuzz", size % 2 == 0, size % 3 == 0);
  UniqueFd client, worker, relay_client, relay_worker;
  make_pair(client, relay_client);
  make_pair(worker, relay_worker);
  const auto relaying = runner.start(
      [&] { dllm::Forwarder(link, std::move(relay_client), std::move(relay_worker)).run(); });
  for (const fuzz::Piece& piece : pieces) {
    send_piece(piece.up ? client.get() : worker.get(), piece.bytes);
  }
  ::shutdown(client.get(), SHUT_WR);
  ::shutdown(worker.get(), SHUT_WR);
  const std::size_t got_up = count_to_end(worker.get());
  const std::size_t got_down = count_to_end(client.get());
  relaying.wait();
  std::uint64_t answered = 0;
  for (const auto& command : link.tally.commands) answered += command.answered;
  const bool whole = link.tally.refused == 0 && answered == 0;
  if (whole && (got_up != sent_up || got_down != sent_down)) std::abort();
  return 0;
}
