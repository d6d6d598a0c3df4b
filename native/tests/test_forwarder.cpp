// A forwarder between two connections, over socket pairs: what goes in comes out, and how each end's leaving is told.
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <future>
#include <optional>
#include <thread>

#include "check.h"
#include "link/client_queue.h"
#include "link/forwarder.h"
#include "link/sockets.h"
#include "transcript.h"

using namespace transcript;
using dllm::Link;
using dllm::UniqueFd;

namespace {

constexpr Version k7{7, 0, 0};

void write_text(int fd, const std::string& text) {
  CHECK(dllm::send_all(fd, {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}));
}

std::string read_text(int fd, std::size_t count) {
  return dllm::read_all(fd, count);
}

std::string read_to_end(int fd) {
  return read_text(fd, std::size_t{1} << 30);
}

// A forwarder between two sockets of ours.
struct Between {
  explicit Between(bool answers = false, bool guard = true) : link("w", answers, guard) {
    ::signal(SIGPIPE, SIG_IGN);
    UniqueFd relay_client, relay_worker;
    pair(client, relay_client);
    pair(worker, relay_worker);
    relay.emplace(link, std::move(relay_client), std::move(relay_worker));
    thread = std::thread([this] {
      relay->run();
      relay.reset();
    });
  }
  ~Between() {
    client.reset();
    worker.reset();
    if (thread.joinable()) thread.join();
  }
  static void pair(UniqueFd& ours, UniqueFd& theirs) {
    int ends[2];
    dllm::check(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
    ours.reset(ends[0]);
    theirs.reset(ends[1]);
  }
  void greet(Version version) {
    write_text(client.get(), hello(version));
    CHECK(read_text(worker.get(), hello(version).size()) == hello(version));
    write_text(worker.get(), hello_reply(version));
    CHECK(read_text(client.get(), hello_reply(version).size()) == hello_reply(version));
    for (const Exchange& each : allocation(version)) {
      write_text(client.get(), each.request);
      CHECK(read_text(worker.get(), each.request.size()) == each.request);
      write_text(worker.get(), each.reply);
      CHECK(read_text(client.get(), each.reply.size()) == each.reply);
    }
  }

  dllm::Tally tally() {
    const std::lock_guard lock(link.mutex);
    return link.tally;
  }

  Link link;
  UniqueFd client, worker;
  std::optional<dllm::Forwarder> relay;
  std::thread thread;
};

void replay(Version version, const dllm::LabSettings& lab) {
  Random random(version.major);
  Between between;
  between.link.lab.set(lab);
  const auto all = conversation(random, version, 80);
  std::string requests, replies;
  const std::size_t first = 1 + allocation(version).size();
  for (std::size_t i = first; i < all.size(); ++i) requests += all[i].request;
  for (std::size_t i = first; i < all.size(); ++i) replies += all[i].reply;
  between.greet(version);
  std::thread asking([&] {
    for (const std::string& piece : split(random, requests))
      write_text(between.client.get(), piece);
  });
  CHECK(read_text(between.worker.get(), requests.size()) == requests);
  asking.join();
  std::thread answering([&] {
    for (const std::string& piece : split(random, replies)) write_text(between.worker.get(), piece);
  });
  CHECK(read_text(between.client.get(), replies.size()) == replies);
  answering.join();
  CHECK(between.tally().passthrough_reason == "");
}

}  // namespace

TEST(bytes_out_are_bytes_in_for_every_version) {
  for (const Version version : kVersions) replay(version, {});
}

TEST(bytes_out_are_bytes_in_through_the_lab) {
  replay(k7, {3, 1, 50, 1});
}

TEST(bytes_that_are_no_protocol_pass) {
  Random random(2);
  Between between(false, false);
  const std::string there = random_bytes(random, 1 << 20), back = random_bytes(random, 1 << 20);
  std::thread asking([&] { write_text(between.client.get(), there); });
  std::thread answering([&] { write_text(between.worker.get(), back); });
  std::thread reading([&] { CHECK(read_text(between.client.get(), back.size()) == back); });
  CHECK(read_text(between.worker.get(), there.size()) == there);
  asking.join();
  answering.join();
  reading.join();
}

TEST(a_client_that_stops_sending_still_gets_its_reply) {
  Between between;
  between.greet(k7);
  write_text(between.client.get(), request(dllm::kBufferGetBase, std::string(8, 'x')));
  ::shutdown(between.client.get(), SHUT_WR);
  CHECK(read_to_end(between.worker.get()).size() == 17);
  write_text(between.worker.get(), reply("12345678"));
  ::shutdown(between.worker.get(), SHUT_WR);
  CHECK(read_to_end(between.client.get()) == reply("12345678"));
}

TEST(a_worker_can_send_a_reply_nobody_waits_for_any_more) {
  Between between;
  between.greet(k7);
  const std::size_t size = 8 << 20;
  write_text(between.client.get(), get_tensor(row_of(size), 0, size));
  CHECK(read_text(between.worker.get(), 321).size() == 321);
  between.client.reset();
  CHECK(read_to_end(between.worker.get()).empty());
  write_text(between.worker.get(), reply(std::string(size, 'r')));
}

TEST(a_worker_that_ends_is_told_and_noticed) {
  Between between;
  between.greet(k7);
  ::shutdown(between.worker.get(), SHUT_WR);
  CHECK(read_to_end(between.client.get()).empty());
  write_text(between.client.get(), request(dllm::kFreeBuffer, std::string(8, 'x')));
  CHECK(read_text(between.worker.get(), 17).size() == 17);
}

TEST(a_refused_request_never_completes_and_the_worker_is_left_in_peace) {
  Between between;
  between.greet(k7);
  TensorSpec custom;
  custom.op = 95;
  const std::string bad = graph(k7, {tensor({}), tensor(custom)});
  write_text(between.client.get(), bad);
  CHECK(read_to_end(between.worker.get()).size() < bad.size());
  between.worker.reset();
  CHECK(read_to_end(between.client.get()).empty());
  CHECK(between.tally().refused == 1);
}

TEST(what_is_known_is_answered_without_the_worker) {
  Between between(true);
  between.greet(k7);
  const std::string ask = request(dllm::kDeviceCount, "");
  const std::string count = reply(std::string(4, '\1'));
  std::thread answering([&] {
    while (read_text(between.worker.get(), ask.size()) == ask) {
      write_text(between.worker.get(), count);
    }
  });
  constexpr std::uint64_t kAsked = 100;
  for (std::uint64_t i = 0; i < kAsked; ++i) {
    write_text(between.client.get(), ask);
    CHECK(read_text(between.client.get(), count.size()) == count);
  }
  const auto tally = between.tally().commands[dllm::kDeviceCount];
  CHECK(tally.count == kAsked);
  CHECK(tally.answered == kAsked - 1);
  between.client.reset();
  answering.join();
}

TEST(a_client_that_reads_nothing_does_not_keep_the_place_of_a_worker_that_is_gone) {
  Between between;
  between.greet(k7);
  const std::size_t size = 8 << 20;
  write_text(between.client.get(), get_tensor(row_of(size), 0, size));
  CHECK(read_text(between.worker.get(), 321).size() == 321);
  // More than the client's socket holds, of a reply that never ends.
  write_text(between.worker.get(), reply(std::string(size, 'r')).substr(0, 256 << 10));
  between.worker.reset();
  between.thread.join();
}

TEST(a_worker_that_takes_nothing_does_not_keep_the_relay) {
  Between between;
  between.greet(k7);
  const std::size_t size = 8 << 20;
  std::thread asking([&] {
    const std::string sent = set_tensor(k7, row_of(size), std::string(size, 'd'));
    const auto* data = reinterpret_cast<const std::uint8_t*>(sent.data());
    dllm::send_all(between.client.get(), {data, sent.size()});
  });
  ::shutdown(between.worker.get(), SHUT_WR);
  between.thread.join();
  asking.join();
}

TEST(what_cannot_be_foreseen_ends_one_connection_alone) {
  struct Odd final : dllm::WorkerTransport {
    Outcome carry(UniqueFd) override {
      if (!std::exchange(has_thrown, true)) throw std::logic_error("nobody foresaw this");
      has_served.set_value();
      return Outcome::kEnded;
    }
    void stop() override {}
    bool has_thrown = false;
    std::promise<void> has_served;
  };
  // Both threads go on to the end of the program.
  static Link& link = *new Link("w", false, true);
  static Odd& odd = *new Odd;
  static dllm::ClientQueue& clients = *new dllm::ClientQueue(link, odd);
  static const UniqueFd& listener = *new UniqueFd(dllm::listen_tcp({"127.0.0.1", 0, {}}));
  std::thread([] { clients.admit(listener.get()); }).detach();
  std::thread([] { clients.serve(); }).detach();
  const dllm::Endpoint here{"127.0.0.1", dllm::bound_port(listener.get()), {}};
  const UniqueFd first = dllm::connect_to(here), second = dllm::connect_to(here);
  CHECK(odd.has_served.get_future().wait_for(std::chrono::seconds(10)) ==
        std::future_status::ready);
  const std::lock_guard lock(link.mutex);
  CHECK(check::contains(link.told.front(), " E dllm-relay: w: nobody foresaw this"));
}

RUN_TESTS()
