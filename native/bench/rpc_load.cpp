// Both ends of an RPC conversation for the bench.
//   rpc_load worker PORT                           answers as a worker of protocol 7.0.0 would, but
//                                                  any number of connections at once
//   rpc_load trips BYTES BLOCKS TRIPS PORT...      round trips of SET_TENSOR, GRAPH_RECOMPUTE and
//                                                  GET_TENSOR, BYTES each way: BLOCKS times a new
//                                                  connection to every port, in random order, and
//                                                  TRIPS round trips over it
//   rpc_load cold BYTES BLOCKS TRIPS PORT...       likewise, one every 20 ms, as tokens come:
//                                                  caches are cold by then, and threads asleep
//   rpc_load bulk BYTES BLOCKS PORT...             likewise, one SET_TENSOR and a question
// Prints "PORT NANOSECONDS" for every round trip, block by block, at the end: a reader must not be
// awake while they are made.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "clock.h"
#include "link/sockets.h"
#include "transcript.h"

namespace {

constexpr dllm::Version kVersion{7, 0, 0};
constexpr std::size_t kBlockBytes = 256 << 10;
// A guard lets through what lies in a buffer.
const std::vector<transcript::Exchange> kAllocation =
    transcript::allocation(kVersion, std::uint64_t{4} << 30);
constexpr std::chrono::milliseconds kTokenTime(20);
constexpr int kWarmUpShare = 4;  // one unmeasured round trip for so many measured ones

bool read_exactly(int fd, std::uint8_t* into, std::size_t count) {
  while (count > 0) {
    const ssize_t got = dllm::receive(fd, {into, count});
    if (got <= 0) return false;
    into += got;
    count -= static_cast<std::size_t>(got);
  }
  return true;
}

void demand(bool holds) {
  if (!holds) std::exit(EXIT_FAILURE);
}

void send_text(int fd, const std::string& text) {
  demand(dllm::send_all(fd, {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}));
}

void serve(int fd) {
  std::vector<std::uint8_t> block(kBlockBytes);
  std::uint8_t header[dllm::kRequestHeaderBytes];
  while (read_exactly(fd, header, sizeof header)) {
    const std::uint8_t id = header[0];
    const auto size = dllm::load<std::uint64_t>(header + 1);
    for (std::uint64_t left = size; left > 0; left -= std::min<std::uint64_t>(left, block.size())) {
      if (!read_exactly(fd, block.data(), std::min<std::uint64_t>(left, block.size()))) return;
    }
    if (id == dllm::kHello) send_text(fd, transcript::hello_reply(kVersion));
    for (const transcript::Exchange& each : kAllocation) {
      if (id == each.id) send_text(fd, each.reply);
    }
    if (id != dllm::kGetTensor || size < dllm::kTensorBytes + 16) continue;
    const auto wanted = dllm::load<std::uint64_t>(&block[dllm::kTensorBytes + 8]);
    send_text(fd, transcript::reply(std::string(wanted, 'r')));
  }
}

[[noreturn]] void worker(std::uint16_t port) {
  const dllm::UniqueFd listener = dllm::listen_tcp({"127.0.0.1", port, {}});
  for (;;) {
    std::thread([client = dllm::accept_client(listener.get())] {
      dllm::tune(client.get());
      serve(client.get());
    }).detach();
  }
}

dllm::UniqueFd greet(std::uint16_t port) {
  dllm::UniqueFd fd = dllm::connect_to({"127.0.0.1", port, {}});
  std::vector<std::uint8_t> reply(transcript::hello_reply(kVersion).size());
  send_text(fd.get(), transcript::hello(kVersion));
  demand(read_exactly(fd.get(), reply.data(), reply.size()));
  for (const transcript::Exchange& each : kAllocation) {
    send_text(fd.get(), each.request);
    reply.resize(each.reply.size());
    demand(read_exactly(fd.get(), reply.data(), reply.size()));
  }
  return fd;
}

// As a stock client does: three sends to a message.
void send_as_client(int fd, const std::string& request) {
  send_text(fd, request.substr(0, 1));
  send_text(fd, request.substr(1, 8));
  send_text(fd, request.substr(9));
}

struct Exchange {
  std::vector<std::string> requests;
  std::size_t reply_bytes;
};

dllm::Nanos make_trip(int fd, const Exchange& exchange, std::vector<std::uint8_t>& reply) {
  const dllm::Nanos start = dllm::monotonic_now();
  for (const std::string& request : exchange.requests) send_as_client(fd, request);
  demand(read_exactly(fd, reply.data(), reply.size()));
  return dllm::monotonic_now() - start;
}

void make_trips(std::span<char* const> args, const Exchange& exchange, int blocks, int trips,
                std::chrono::milliseconds pause = {}) {
  std::mt19937_64 random(1);
  std::vector<int> ports;
  for (const std::string port : args) ports.push_back(std::stoi(port));
  std::vector<std::uint8_t> reply(exchange.reply_bytes);
  std::vector<std::pair<int, dllm::Nanos>> all;
  for (int block = 0; block < blocks; ++block) {
    std::ranges::shuffle(ports, random);
    for (const int port : ports) {
      const dllm::UniqueFd fd = greet(static_cast<std::uint16_t>(port));
      for (int i = -trips / kWarmUpShare; i < trips; ++i) {
        std::this_thread::sleep_for(pause);
        const dllm::Nanos taken = make_trip(fd.get(), exchange, reply);
        if (i >= 0) all.emplace_back(port, taken);
      }
    }
  }
  for (const auto& [port, taken] : all) {
    std::printf("%d %lld\n", port, static_cast<long long>(taken));
  }
}

Exchange token(std::size_t bytes) {
  transcript::TensorSpec hidden, output;
  hidden.ne[0] = output.ne[0] = static_cast<std::uint32_t>(bytes / 4);
  output.op = 2;
  return {{transcript::set_tensor(kVersion, hidden, std::string(bytes, 'h')),
           transcript::recompute(kVersion), transcript::get_tensor(output, 0, bytes)},
          dllm::kReplyHeaderBytes + bytes};
}

Exchange weights(std::size_t bytes) {
  return {{transcript::set_tensor(kVersion, transcript::row_of(bytes), std::string(bytes, 'w')),
           transcript::request(dllm::kBufferGetBase, std::string(8, '\0'))},
          dllm::kReplyHeaderBytes + 8};
}

}  // namespace

int main(int argc, char** argv) {
  const std::span<char* const> args(argv, static_cast<std::size_t>(argc));
  const std::string mode = argc > 2 ? args[1] : "";
  if (mode == "worker") worker(static_cast<std::uint16_t>(std::stoi(args[2])));
  if ((mode == "trips" || mode == "cold") && argc > 5) {
    make_trips(args.subspan(5), token(std::stoull(args[2])), std::stoi(args[3]), std::stoi(args[4]),
               mode == "cold" ? kTokenTime : std::chrono::milliseconds::zero());
  } else if (mode == "bulk" && argc > 4) {
    make_trips(args.subspan(4), weights(std::stoull(args[2])), std::stoi(args[3]), 1);
  } else {
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
