// The whole relay over socket pairs, threads included: every byte arrives unless it was refused,
// and both ends come to an end.
#include <sys/socket.h>

#include <csignal>
#include <cstdlib>
#include <thread>

#include "input.h"
#include "relay.h"
#include "sockets.h"

namespace {

using dllm::UniqueFd;

void make_pair(UniqueFd& ours, UniqueFd& theirs) {
  int ends[2];
  dllm::check(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
  ours.reset(ends[0]);
  theirs.reset(ends[1]);
}

std::size_t count_to_end(int fd) {
  std::uint8_t block[1 << 16];
  std::size_t total = 0;
  for (ssize_t count = 0; (count = dllm::receive(fd, block)) > 0;) {
    total += static_cast<std::size_t>(count);
  }
  return total;
}

// Sends the pieces of one direction and then ends it.
void send_pieces(int fd, const std::vector<fuzz::Piece>& pieces, bool up) {
  for (const fuzz::Piece& piece : pieces) {
    const auto* data = reinterpret_cast<const std::uint8_t*>(piece.bytes.data());
    if (piece.up == up && !dllm::send_all(fd, {data, piece.bytes.size()})) break;
  }
  ::shutdown(fd, SHUT_WR);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ::signal(SIGPIPE, SIG_IGN);
  const auto pieces = fuzz::parse({data, size});
  std::size_t sent_up = 0, sent_down = 0, got_up = 0, got_down = 0;
  for (const fuzz::Piece& piece : pieces) (piece.up ? sent_up : sent_down) += piece.bytes.size();

  dllm::Link link("fuzz", size % 2 == 0, size % 3 == 0);
  UniqueFd client, worker, relay_client, relay_worker;
  make_pair(client, relay_client);
  make_pair(worker, relay_worker);
  std::thread relaying(
      [&] { dllm::Relay(link, std::move(relay_client), std::move(relay_worker)).run(); });
  std::thread at_worker([&] { got_up = count_to_end(worker.get()); });
  std::thread at_client([&] { got_down = count_to_end(client.get()); });
  std::thread client_sends([&] { send_pieces(client.get(), pieces, true); });
  send_pieces(worker.get(), pieces, false);
  client_sends.join();
  at_worker.join();
  at_client.join();
  relaying.join();
  std::uint64_t answered = 0;
  for (const auto& command : link.tally.commands) answered += command.answered;
  const bool whole = link.tally.refused == 0 && answered == 0;
  if (whole && (got_up != sent_up || got_down != sent_down)) std::abort();
  return 0;
}
