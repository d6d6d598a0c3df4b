// The two sessions of a connection through a pair of relays, joined without a link, and an
// rpc-server behind them that remembers what it was asked.
#pragma once

#include <algorithm>
#include <array>
#include <functional>

#include "check.h"
#include "sessions.h"

namespace prefetch_sessions {

using namespace transcript;
using namespace sessions;

inline constexpr std::uint64_t kFree = 5'000'000'000, kTotal = 8'000'000'000;

template <typename... Values>
std::string bytes(Values... values) {
  std::string out;
  (put(out, values), ...);
  return out;
}

inline dllm::Bytes bytes_of(std::string& text) {
  return {reinterpret_cast<std::uint8_t*>(text.data()), text.size()};
}

// An rpc-server of two devices; remembers what it was asked.
struct Server {
  explicit Server(Version told) : version(told) {}
  virtual ~Server() = default;
  std::string answer(const std::string& requests) {
    std::string replies;
    for (std::size_t at = 0; at < requests.size();) {
      const auto id = static_cast<std::uint8_t>(requests[at]);
      std::uint64_t size = 0;
      std::memcpy(&size, &requests[at + 1], sizeof size);
      asked.push_back(id);
      replies += answer(id, requests.substr(at + 9, size));
      at += 9 + size;
    }
    return replies;
  }
  virtual std::string answer(std::uint8_t id, const std::string& fields) {
    switch (id) {
      case dllm::kHello:
        return hello_reply(version);
      case dllm::kDeviceCount:
        return reply(bytes(std::uint32_t{2}));
      case dllm::kGetDeviceMemory:
        return reply(bytes(free_bytes, kTotal));
      case dllm::kAllocBuffer:
        return reply(bytes(has_room ? kBuffer : 0, has_room ? kBufferBytes : 0));
      case dllm::kBufferGetBase:
        return reply(bytes(kBase));
      case dllm::kGetAllocSize:
        return reply(bytes(std::uint64_t{std::hash<std::string>{}(fields)}));
      default:
        return dllm::Protocol(version).rule(id)->reply ? reply(bytes(std::uint64_t{64})) : "";
    }
  }
  std::size_t count(std::uint8_t id) const {
    return static_cast<std::size_t>(std::ranges::count(asked, id));
  }
  Version version;
  std::uint64_t free_bytes = kFree;
  bool has_room = true;
  std::vector<std::uint8_t> asked;
};

// Both relays of a worker.
struct Relays {
  explicit Relays(Version version) : own(version), server(own) {}
  explicit Relays(Server& other) : own(other.version), server(other) {}
  dllm::Link near{"w", true, true}, far{"w", false, true};
  Server own;
  Server& server;
  Nanos now = 1'000'000'000;
};

// A client's connection through both.
struct Connection {
  explicit Connection(Relays& all) : relays(all) { far.enable_prefetch(); }

  // What the client gets; `crossed`: something went to the worker; `waited`: for the reply.
  std::string ask(std::string requests) {
    const Outgoing out = near.requests(bytes_of(requests), relays.now);
    crossed = !out.worker.empty();
    waited = crossed && out.answers.empty();
    refused = refused || out.refused;
    std::string got = out.answers, up = text(out);
    while (!up.empty()) {
      const std::size_t count = far.ready(bytes_of(up));
      std::string part = up.substr(0, count);
      up.erase(0, count);
      const Outgoing passed = far.requests(bytes_of(part), relays.now);
      const std::string asked = text(passed);
      waiting += passed.answers;
      far.ready(bytes_of(up));
      got += go_down(asked);
      if (count == 0 && near.is_contradicted()) break;
    }
    return got;
  }
  std::string go_down(std::string requests) {
    std::string got;
    do {
      for (const std::string& piece : split(random, relays.server.answer(requests))) {
        std::string in = piece;
        waiting += text_of(far.replies(bytes_of(in), relays.now));
      }
      requests = text(far.own_requests(relays.now));
      for (const dllm::PrefetchedReply& prefetched : far.take_prefetched())
        CHECK(near.keep_prefetched(prefetched));
      for (std::string piece : split(random, waiting)) {
        got += text_of(near.replies(bytes_of(piece), relays.now));
      }
      waiting.clear();
    } while (!requests.empty());
    return got;
  }

  Relays& relays;
  Random random{3};
  Session near{relays.near}, far{relays.far};
  std::string waiting;
  bool crossed = false, waited = false;
  bool refused = false;
};

inline std::string device_question(std::uint8_t id, std::uint32_t device = 0) {
  return request(id, bytes(device));
}

inline std::string allocation_question() {
  return request(dllm::kAllocBuffer, bytes(std::uint32_t{0}, kBufferBytes));
}

inline std::string address_question() {
  return request(dllm::kBufferGetBase, bytes(kBuffer));
}

// The connections in which llama-server asks about a worker before it loads.
inline void look_around(Relays& relays, Version version) {
  Connection first(relays);
  CHECK(first.ask(hello(version)) == hello_reply(version) && first.crossed);
  CHECK(first.ask(request(dllm::kDeviceCount, "")) == reply(bytes(std::uint32_t{2})));
  CHECK(!first.crossed);
}

struct Spec {
  std::array<std::uint32_t, 4> ne, nb;
};

inline std::string shaped(const Spec& spec, std::uint32_t op = 0) {
  std::string out(dllm::kTensorBytes, '\0');
  // F16 or F32, by the size of an element.
  write(out, dllm::Tensor::kTypeAt, std::uint32_t{spec.nb[0] == 2});
  for (std::size_t i = 0; i < 4; ++i) write(out, 20 + 4 * i, spec.ne[i]);
  for (std::size_t i = 0; i < 4; ++i) write(out, 36 + 4 * i, spec.nb[i]);
  write(out, 52, op);
  return out;
}

inline std::string sizes_question(const std::vector<std::string>& tensors) {
  std::string fields = bytes(std::uint32_t{0});
  for (const std::string& each : tensors) fields += each;
  fields.resize(4 + 11 * dllm::kTensorBytes);
  return fields;
}

// As 8.0.0 asks for a product over so many tokens.
inline std::string product(std::uint32_t tokens) {
  const std::uint32_t out = 1024 * tokens, in = 512 * tokens;
  return sizes_question({shaped({{256, tokens, 1, 1}, {4, 1024, out, out}}, 29),
                         shaped({{128, 256, 1, 1}, {2, 256, 65536, 65536}}),
                         shaped({{128, tokens, 1, 1}, {4, 512, in, in}}, 7)});
}

inline std::string attention(std::uint32_t tokens, std::uint32_t cells) {
  const Spec cache{{32, cells, 4, 1}, {2, 256, 64, 524288}};
  const std::uint32_t row = 2 * cells, all = row * tokens, result = 512 * tokens;
  return sizes_question({shaped({{32, 4, tokens, 1}, {4, 128, 512, result}}, 74),
                         shaped({{32, tokens, 4, 1}, {4, 512, 128, result}}, 38), shaped(cache, 38),
                         shaped(cache, 38), shaped({{cells, tokens, 1, 1}, {2, row, all, all}})});
}

}  // namespace prefetch_sessions
