// Two ends of a link in memory, fed by hand, and what their owners were told.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "link/link_end.h"
#include "text_of.h"

namespace link_ends {

using dllm::Nanos;
using dllm::link::ByteQueue;
using dllm::link::Hello;
using dllm::link::LinkEnd;
using dllm::link::Role;
using dllm::link::view;

inline std::string taken(ByteQueue& queue) {
  std::string text(text_of(queue.all()));
  queue.clear();
  return text;
}

inline Hello hello_of(Role role, std::uint64_t features = 0) {
  return {role, features, LinkEnd::kWindowBytes, {static_cast<std::uint8_t>(role)}, "somebody"};
}

// Remembers what it is told; welcomes everybody.
struct End final : dllm::link::LinkOwner {
  explicit End(Role role, std::uint64_t features = 0)
      : link(hello_of(role, features), *this, 1, 20'000'000'000) {}

  void greeted(const Hello& hello) override {
    other = hello;
    link.welcome();
  }
  void welcomed() override { is_welcome = true; }
  void opened(std::uint32_t session) override { open.insert(session); }
  void arrived(std::uint32_t session, dllm::Bytes data) override {
    got[session] += text_of(data);
  }
  void finished(std::uint32_t session) override { ended.insert(session); }
  void was_reset(std::uint32_t session, const std::string& reason) override {
    reset[session] = reason;
  }
  void timed(std::uint32_t, dllm::Trip trip) override { trips.push_back(trip); }
  void told(std::uint32_t session, dllm::Bytes message) override {
    home[session].emplace_back(text_of(message));
  }
  void listed(dllm::Bytes message) override { lists.emplace_back(text_of(message)); }
  void prefetched(std::uint32_t session,
                  const std::vector<dllm::PrefetchedReply>& replies) override {
    prefetched_replies[session].insert(prefetched_replies[session].end(), replies.begin(),
                                       replies.end());
  }

  // Takes bytes in; throws as the link does.
  void take(const std::string& bytes, Nanos now = 1) {
    in.append(view(bytes));
    link.received(in, now);
  }

  // Another connection is there, in place of one that broke.
  void resume() {
    in.clear();
    ByteQueue nothing;
    link.resume(nothing);
  }

  LinkEnd link;
  ByteQueue in;
  std::optional<Hello> other;
  bool is_welcome = false;
  std::set<std::uint32_t> open, ended;
  std::map<std::uint32_t, std::string> got, reset;
  std::vector<dllm::Trip> trips;
  std::map<std::uint32_t, std::vector<std::string>> home;
  std::vector<std::string> lists;
  std::map<std::uint32_t, std::vector<dllm::PrefetchedReply>> prefetched_replies;
};

// A head and a worker's end that have met.
struct Link {
  explicit Link(std::uint64_t features = 0)
      : head(Role::kHead, features), worker(Role::kWorker, features) {
    settle();
  }
  // Until nothing is on its way.
  void settle(Nanos now = 1) {
    while (head.link.waiting() || worker.link.waiting()) {
      worker.take(taken(head.link.out()), now);
      head.take(taken(worker.link.out()), now);
    }
  }
  End head;
  End worker;
};

inline std::string frame(std::uint8_t type, std::uint32_t session, const std::string& payload) {
  ByteQueue out;
  append_frame(out, static_cast<dllm::link::FrameType>(type), session, view(payload));
  return taken(out);
}

}  // namespace link_ends
