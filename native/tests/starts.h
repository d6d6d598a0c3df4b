// Starts of llama-server through a pair, one after the other, before an rpc-server that keeps account
// of its memory.
#pragma once

#include <map>

#include "ahead.h"

namespace starts {

using namespace ahead;

inline constexpr std::uint64_t kMiB = 1 << 20;

// Gives every buffer a place of its own, and knows how much is free.
struct Accountant final : Server {
  using Server::answer;
  using Server::Server;
  std::string answer(std::uint8_t id, const std::string& fields) override {
    std::uint64_t number = 0;
    if (fields.size() >= 8) std::memcpy(&number, &fields[fields.size() - 8], 8);
    if (id == dllm::kAllocBuffer) return allocate(number);
    if (id == dllm::kBufferGetBase) return reply(bytes(base(number)));
    if (id == dllm::kGetDeviceMemory) return reply(bytes(left(), kTotal));
    if (id == dllm::kFreeBuffer) CHECK(live.erase(number) == 1);
    return Server::answer(id, fields);
  }
  // As after each connection.
  void hang_up() { live.clear(); }
  std::string allocate(std::uint64_t size) {
    const bool fits = size <= left();
    // As the next of a real one often lies where the last did.
    std::uint64_t handle = 1;
    while (live.contains(handle)) ++handle;
    if (fits) live[handle] = size;
    most = std::max(most, kFree - left());
    return reply(fits ? bytes(handle, size) : std::string(16, '\0'));
  }
  static std::uint64_t base(std::uint64_t handle) { return kBase + (handle << 32); }
  std::uint64_t left() const {
    std::uint64_t free = kFree;
    for (const auto& [handle, size] : live) free -= size;
    return free;
  }
  std::map<std::uint64_t, std::uint64_t> live;
  std::uint64_t most = 0;
};

inline std::string buffer_question(std::uint64_t size, std::uint32_t device = 0) {
  return request(dllm::kAllocBuffer, bytes(device, size));
}

// What a connection does: the sizes of its buffers, and those of tensors.
struct Start {
  std::vector<std::uint64_t> buffers;
  std::vector<std::string> tensors;
};

inline const Start kUsual{{900 * kMiB, 70 * kMiB, 30 * kMiB}, {product(512), attention(512, 2048)}};

// Of all questions, those whose replies had to be waited for.
inline int begin(Relays& relays, const Start& start, Version version, const std::string& last) {
  relays.now += 10 * dllm::Answers::kStartMax;
  relays.near.answers.forget();
  auto& server = dynamic_cast<Accountant&>(relays.server);
  server.hang_up();
  const std::uint64_t before = std::exchange(server.most, 0);
  int waited = 0;
  const auto ask = [&](Connection& connection, const std::string& asked, const std::string& told) {
    CHECK(connection.ask(asked) == told);
    waited += connection.waited;
  };
  {
    Connection first(relays);
    ask(first, hello(version), hello_reply(version));
  }
  Connection loading(relays);
  ask(loading, hello(version), hello_reply(version));
  std::uint64_t taken = 0, handle = 0;
  for (const std::uint64_t size : start.buffers) {
    ask(loading, buffer_question(size), reply(bytes(++handle, size)));
    ask(loading, request(dllm::kBufferGetBase, bytes(handle)),
        reply(bytes(Accountant::base(handle))));
    taken += size;
    ask(loading, device_question(dllm::kGetDeviceMemory), reply(bytes(kFree - taken, kTotal)));
  }
  for (const std::string& fields : start.tensors) {
    const std::string got = loading.ask(request(dllm::kGetAllocSize, fields));
    CHECK(got.size() == 16);
    waited += loading.waited;
  }
  CHECK(loading.ask(last).empty());
  CHECK(server.most <= std::max(taken, before) && server.left() == kFree - taken);
  CHECK(!loading.refused && !loading.near.is_contradicted() && loading.near.awaited() == 0);
  CHECK(relays.near.tally.plain_reason.empty() && relays.far.tally.plain_reason.empty());
  return waited;
}

inline int begin(Relays& relays, const Start& start) {
  return begin(relays, start, k8, recompute(k8));
}

}  // namespace starts
