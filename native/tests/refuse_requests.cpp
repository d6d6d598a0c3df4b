// Judges requests of which none may reach a worker whole, each on a connection of its own.
//
// stdin: how the worker was greeted, 'U' what was asked and 'D' what it replied, then 'R' requests;
// each with its size, u32, before its bytes. Ends with how many were refused, or at the first that
// was not.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "link/session.h"

namespace {

struct Message {
  char kind;
  std::string bytes;
};

std::optional<Message> read_message() {
  Message message{};
  std::uint32_t size = 0;
  if (std::fread(&message.kind, 1, 1, stdin) != 1) return std::nullopt;
  if (std::fread(&size, sizeof size, 1, stdin) != 1) return std::nullopt;
  message.bytes.resize(size);
  if (std::fread(message.bytes.data(), 1, size, stdin) != size) return std::nullopt;
  return message;
}

dllm::Bytes bytes_of(std::string& text) {
  return {reinterpret_cast<std::uint8_t*>(text.data()), text.size()};
}

// What of a request went on to the worker before it was refused; all of it when it was not.
std::size_t passed(std::vector<Message> greeting, std::string request) {
  dllm::Link link("w", false, true);
  dllm::Session session(link);
  for (Message& message : greeting) {
    if (message.kind == 'U') session.requests(bytes_of(message.bytes), 1);
    if (message.kind == 'D') session.replies(bytes_of(message.bytes), 1);
  }
  const dllm::Outgoing out = session.requests(bytes_of(request), 2);
  return out.refused && link.tally.refused == 1 ? out.worker.size() : request.size();
}

}  // namespace

int main() {
  std::vector<Message> greeting;
  std::uint64_t refused = 0;
  while (std::optional<Message> message = read_message()) {
    if (message->kind != 'R') {
      greeting.push_back(std::move(*message));
    } else if (passed(greeting, message->bytes) < message->bytes.size()) {
      ++refused;
    } else {
      std::printf("not refused: the one after %llu\n", static_cast<unsigned long long>(refused));
      return EXIT_FAILURE;
    }
  }
  std::printf("%llu\n", static_cast<unsigned long long>(refused));
  return EXIT_SUCCESS;
}
