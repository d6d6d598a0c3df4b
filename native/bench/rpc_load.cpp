// Both ends of an RPC conversation for the bench.
//   rpc_load worker PORT                    answers as a stock worker of protocol 7.0.0 would
//   rpc_load client PORT BYTES COUNT        COUNT round trips of SET_TENSOR + GET_TENSOR, each way
//                                           BYTES; prints every round trip in nanoseconds
//   rpc_load bulk PORT BYTES                one SET_TENSOR, then a question; prints nanoseconds
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "sockets.h"
#include "transcript.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr dllm::Version kVersion{7, 0, 0};
constexpr std::size_t kBlockBytes = 256 << 10;

bool read_exactly(int fd, std::uint8_t* into, std::size_t count) {
  while (count > 0) {
    const ssize_t got = dllm::receive(fd, {into, count});
    if (got <= 0) return false;
    into += got;
    count -= static_cast<std::size_t>(got);
  }
  return true;
}

void send_text(int fd, const std::string& text) {
  dllm::send_all(fd, {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
}

void serve(int fd) {
  std::vector<std::uint8_t> block(kBlockBytes);
  std::uint8_t header[dllm::kRequestHeaderBytes];
  while (read_exactly(fd, header, sizeof header)) {
    const std::uint8_t id = header[0];
    std::uint64_t left = dllm::load<std::uint64_t>(header + 1);
    const std::uint64_t size = left;
    for (; left > 0; left -= std::min<std::uint64_t>(left, block.size())) {
      if (!read_exactly(fd, block.data(), std::min<std::uint64_t>(left, block.size()))) return;
    }
    if (id == dllm::kHello) send_text(fd, transcript::hello_reply(kVersion));
    if (id == dllm::kBufferGetBase) send_text(fd, transcript::reply(std::string(8, '\0')));
    if (id != dllm::kGetTensor || size < dllm::kTensorBytes + 16) continue;
    const auto wanted = dllm::load<std::uint64_t>(&block[dllm::kTensorBytes + 8]);
    send_text(fd, transcript::reply(std::string(wanted, 'r')));
  }
}

int worker(std::uint16_t port) {
  const dllm::UniqueFd listener = dllm::listen_tcp({"127.0.0.1", port});
  for (;;) {
    const dllm::UniqueFd client = dllm::accept_client(listener.get());
    dllm::set_nodelay(client.get());
    serve(client.get());
  }
}

dllm::UniqueFd greet(std::uint16_t port) {
  dllm::UniqueFd fd = dllm::connect_tcp({"127.0.0.1", port});
  std::vector<std::uint8_t> reply(transcript::hello_reply(kVersion).size());
  send_text(fd.get(), transcript::hello(kVersion));
  if (!read_exactly(fd.get(), reply.data(), reply.size())) std::exit(EXIT_FAILURE);
  return fd;
}

long long nanos_since(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
}

// As a stock client does: three sends to a message.
void send_as_client(int fd, const std::string& request) {
  send_text(fd, request.substr(0, 1));
  send_text(fd, request.substr(1, 8));
  send_text(fd, request.substr(9));
}

int client(std::uint16_t port, std::size_t bytes, int count) {
  const dllm::UniqueFd fd = greet(port);
  transcript::TensorSpec hidden, output;
  hidden.ne[0] = output.ne[0] = static_cast<std::uint32_t>(bytes / 4);
  output.op = 2;
  const std::string set = transcript::set_tensor(kVersion, hidden, std::string(bytes, 'h'));
  const std::string compute = transcript::recompute(kVersion);
  const std::string get = transcript::get_tensor(output, 0, bytes);
  std::vector<std::uint8_t> reply(8 + bytes);
  for (int i = 0; i < count; ++i) {
    const auto start = Clock::now();
    send_as_client(fd.get(), set);
    send_as_client(fd.get(), compute);
    send_as_client(fd.get(), get);
    if (!read_exactly(fd.get(), reply.data(), reply.size())) return EXIT_FAILURE;
    std::printf("%lld\n", nanos_since(start));
  }
  return EXIT_SUCCESS;
}

int bulk(std::uint16_t port, std::size_t bytes) {
  const dllm::UniqueFd fd = greet(port);
  const std::string set = transcript::set_tensor(kVersion, {}, std::string(bytes, 'w'));
  std::vector<std::uint8_t> reply(16);
  const auto start = Clock::now();
  send_text(fd.get(), set);
  send_text(fd.get(), transcript::request(dllm::kBufferGetBase, std::string(8, '\0')));
  if (!read_exactly(fd.get(), reply.data(), reply.size())) return EXIT_FAILURE;
  std::printf("%lld\n", nanos_since(start));
  return EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 2 ? argv[1] : "";
  const auto port = static_cast<std::uint16_t>(argc > 2 ? std::atoi(argv[2]) : 0);
  const std::size_t bytes = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 0;
  if (mode == "worker") return worker(port);
  if (mode == "client" && argc == 5) return client(port, bytes, std::atoi(argv[4]));
  if (mode == "bulk" && argc == 4) return bulk(port, bytes);
  return 2;
}
