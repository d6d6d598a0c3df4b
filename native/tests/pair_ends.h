// Both ends of a link as they run, loops and sockets, in one process: clients on one side, a
// made-up rpc-server on the other, and a way between them that a test may cut.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <functional>
#include <future>
#include <thread>

#include "check.h"
#include "link/head_end.h"
#include "link/sockets.h"
#include "link/worker_end.h"
#include "transcript.h"

namespace pair_ends {

using dllm::UniqueFd;
using dllm::link::HeadEnd;
using dllm::link::Key;
using dllm::link::LinkAddress;
using dllm::link::WorkerEnd;
using Outcome = dllm::WorkerTransport::Outcome;

constexpr transcript::Version k7{7, 0, 0};
constexpr Key kKey{4, 2};
// Under a sanitizer, beside other tests, a second of work may take a minute.
constexpr int kPatienceMs = 30'000;

inline bool write_text(int fd, const std::string& text) {
  return dllm::send_all(fd, {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
}

// So many bytes, or what there is until the end.
inline std::string read_text(int fd, std::size_t count) {
  try {
    return dllm::read_all(fd, count);
  } catch (const std::exception&) {
    return "broken off";
  }
}

inline std::string read_to_end(int fd) {
  return read_text(fd, std::size_t{1} << 30);
}

// Looks again and again; false when it never comes true.
inline bool until(const std::function<bool()>& holds) {
  for (int look = 0; look < kPatienceMs; ++look) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

inline dllm::Endpoint path_in(const check::TempDir& dir, const char* name) {
  return {{}, 0, dir / name};
}

// Carries bytes between whoever comes and the worker's end, and cuts after as many as told.
class Between {
 public:
  Between(const dllm::Endpoint& here, dllm::Endpoint there)
      : listener_(dllm::listen_unix(here.path)), there_(std::move(there)) {
    thread_ = std::thread([this] { run(); });
  }
  ~Between() {
    ending_ = true;
    thread_.join();
  }
  // From the head's end, of the present and later connections; once.
  void cut_after(std::size_t bytes) { left_ = static_cast<std::ptrdiff_t>(bytes); }
  void cut() { left_ = 0; }
  // Each connection from now on after so many bytes of both ends at most; 0: none.
  void cut_often(std::size_t most) { most_ = most; }
  [[nodiscard]] int cuts() const { return cuts_; }
  // Where later connections lead.
  void lead_to(const dllm::Endpoint& there) {
    const std::lock_guard lock(mutex_);
    there_ = there;
  }
  // Nothing crosses, and nobody is told.
  void pause(bool on) { paused_ = on; }
  [[nodiscard]] bool is_cut() const { return left_ == kCut; }
  // All that has crossed of connections so far.
  std::string crossed(bool up) {
    const std::lock_guard lock(mutex_);
    return up ? up_ : down_;
  }

 private:
  static constexpr std::ptrdiff_t kCut = -1, kEndless = std::ptrdiff_t{1} << 60;

  void run() {
    while (!ending_) {
      if (!dllm::wait_readable(listener_.get(), 20)) continue;
      const UniqueFd near = dllm::accept_client(listener_.get());
      try {
        const UniqueFd far = dllm::connect_to(there());
        for (allowed_ = kEndless; !ending_ && step(near.get(), far.get());) continue;
      } catch (const std::exception&) {
        // Nobody listens there.
      }
    }
  }

  dllm::Endpoint there() {
    const std::lock_guard lock(mutex_);
    return there_;
  }

  bool step(int near, int far) {
    if (most_ > 0 && allowed_ > kEndless / 2) allowed_ = static_cast<std::ptrdiff_t>(random_() % most_);
    if (left_ == 0) {
      left_ = kCut;
      return false;
    }
    if (paused_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return true;
    }
    pollfd waits[] = {{near, POLLIN, 0}, {far, POLLIN, 0}};
    dllm::wait_until(waits, 20 * dllm::kNanosPerMilli);
    if (waits[0].revents && !pass(near, far, true)) return false;
    return !waits[1].revents || pass(far, near, false);
  }

  bool pass(int from, int to, bool up) {
    std::uint8_t block[1 << 16];
    std::size_t most = 1 + random_() % sizeof block;
    if (up && left_ > 0) most = std::min<std::size_t>(most, static_cast<std::size_t>(left_));
    ssize_t count = dllm::receive(from, {block, most});
    if (count <= 0) return false;
    count = std::min(count, allowed_);
    allowed_ -= count;
    if (up) spend(count);
    note({reinterpret_cast<const char*>(block), static_cast<std::size_t>(count)}, up);
    const bool is_taken = dllm::send_all(to, {block, static_cast<std::size_t>(count)});
    if (allowed_ > 0) return is_taken;
    ++cuts_;
    return false;
  }

  void note(std::string_view bytes, bool up) {
    const std::lock_guard lock(mutex_);
    (up ? up_ : down_) += bytes;
  }

  // It may have been told to cut while these were on their way.
  void spend(std::ptrdiff_t bytes) {
    std::ptrdiff_t left = left_;
    const auto rest = [&] { return std::max(left - bytes, std::ptrdiff_t{0}); };
    while (left > 0 && !left_.compare_exchange_weak(left, rest())) continue;
  }

  const UniqueFd listener_;
  dllm::Endpoint there_;
  std::atomic<std::ptrdiff_t> left_ = kEndless;
  std::atomic<std::size_t> most_ = 0;
  std::ptrdiff_t allowed_ = kEndless;  // of this connection
  std::atomic<int> cuts_ = 0;
  std::atomic<bool> ending_ = false;
  std::atomic<bool> paused_ = false;
  std::mutex mutex_;
  std::string up_, down_;
  std::minstd_rand random_{7};
  std::thread thread_;
};

inline const dllm::weights::ResidentWeights& no_models() {
  static const dllm::weights::ResidentWeights home;
  return home;
}

// The head's end, and clients of it.
struct Head {
  Head(const LinkAddress& place, const std::string& name, dllm::Nanos gone_after = dllm::kGoneAfter,
       const dllm::weights::ResidentWeights& home = no_models(), bool answers = false)
      : link("w", answers, true) {
    link.gone_after = gone_after;
    end.emplace(link, place, name, home);
    end->start();
  }
  // A client's own socket; `outcome` is there when it was served.
  UniqueFd connect() {
    // An end carries one client at a time; the last one's end is told a moment after it is seen.
    if (outcome.valid()) outcome.wait();
    int ends[2];
    dllm::check(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
    outcome =
        std::async(std::launch::async, [this, fd = ends[1]] { return end->carry(UniqueFd(fd)); });
    return UniqueFd(ends[0]);
  }
  dllm::Tally tally() {
    const std::lock_guard lock(link.mutex);
    return link.tally;
  }
  bool was_told(const std::string& part) {
    const std::lock_guard lock(link.mutex);
    for (const std::string& each : link.told) {
      if (check::contains(each, part)) return true;
    }
    return false;
  }
  dllm::Link link;
  std::optional<HeadEnd> end;
  std::future<Outcome> outcome;
};

// The worker's end, and the rpc-server behind it.
struct Worker {
  Worker(const LinkAddress& place, const dllm::Endpoint& server,
         const dllm::weights::ResidentWeights& home = no_models())
      : link("w", false, true), end(link, place, server, home) {
    thread = std::thread([this] { end.run(stop.reader.get()); });
  }
  ~Worker() {
    stop.writer.reset();
    thread.join();
  }
  dllm::Link link;
  dllm::Pipe stop = dllm::make_pipe();
  WorkerEnd end;
  std::thread thread;
};

struct Pair {
  explicit Pair(std::optional<Key> key = {}, dllm::Nanos gone_after = dllm::kGoneAfter,
                const dllm::weights::ResidentWeights& there = no_models(),
                const dllm::weights::ResidentWeights& here = no_models(), bool answers = false)
      : server(dllm::listen_unix(dir / "server")),
        worker({path_in(dir, "worker"), false, key}, path_in(dir, "server"), there),
        between(path_in(dir, "between"), path_in(dir, "worker")),
        head({path_in(dir, "between"), true, key}, "studio", gone_after, here, answers) {}

  // The rpc-server's side of the next connection.
  UniqueFd accept() {
    if (!dllm::wait_readable(server.get(), kPatienceMs)) return {};
    return dllm::accept_client(server.get());
  }

  check::TempDir dir;
  UniqueFd server;
  Worker worker;
  Between between;
  Head head;
};

// Of one direction of an unsealed link, the bytes that stand for what commands said.
inline std::uint64_t of_commands(const std::string& crossed) {
  using dllm::link::FrameType;
  constexpr std::size_t kHelloSizeAt = 12;
  dllm::link::ByteQueue rest;
  rest.append(dllm::link::view(crossed));
  rest.drop(dllm::load<std::uint32_t>(&rest.all()[kHelloSizeAt]));
  std::uint64_t bytes = 0;
  while (const auto frame = dllm::link::first_frame(rest)) {
    const auto type = frame->type;
    const bool is_share =
        type == FrameType::kData || type == FrameType::kHome || type == FrameType::kKnown;
    bytes += is_share ? frame->payload.size() : 0;
    rest.drop(frame->bytes());
  }
  return bytes;
}

// What commands and the link itself make of all that crossed.
struct Split {
  explicit Split(const dllm::Tally& tally) : whole(tally.pair) {
    for (const dllm::CommandTally& command : tally.commands) {
      up += command.wire_bytes_up;
      down += command.wire_bytes_down;
    }
  }
  [[nodiscard]] bool adds_up() const {
    return up <= whole.wire_bytes_up && down <= whole.wire_bytes_down &&
           up + whole.overhead_bytes_up.value_or(0) == whole.wire_bytes_up &&
           down + whole.overhead_bytes_down.value_or(0) == whole.wire_bytes_down;
  }
  dllm::PairTally whole;
  std::uint64_t up = 0, down = 0;
};

// Once all that was said is counted: every byte belongs to its command, or to the link.
inline bool is_split_rightly(Pair& pair) {
  return until([&] {
    const Split split(pair.head.tally());
    CHECK(split.adds_up());
    return split.up > 0 && split.up == of_commands(pair.between.crossed(true)) &&
           split.down == of_commands(pair.between.crossed(false));
  });
}

// HELLO and a buffer, seen from both sides.
inline void greet(int client, int server, transcript::Version version = k7) {
  const auto exchange = [&](const std::string& asked, const std::string& answer) {
    write_text(client, asked);
    CHECK(read_text(server, asked.size()) == asked);
    write_text(server, answer);
    CHECK(read_text(client, answer.size()) == answer);
  };
  exchange(transcript::hello(version), transcript::hello_reply(version));
  for (const transcript::Exchange& each : transcript::allocation(version)) {
    exchange(each.request, each.reply);
  }
}

}  // namespace pair_ends
