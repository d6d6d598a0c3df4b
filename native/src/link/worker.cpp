#include "worker.h"

#include <unistd.h>

#include <csignal>
#include <optional>

#include "arguments.h"
#include "posix.h"
#include "meter/stats.h"
#include "worker_end.h"

namespace dllm::link {

const char* const kWorkerHelp =
    R"(usage: dllm-relay worker --listen ENDPOINT --worker ENDPOINT --name NAME [options]

Stands beside a stock rpc-server and speaks with the relay of the head (dllm-relay head), over one
connection that lasts. One head at a time: another is told who is there. Prints {"port", "pid"} when
it is ready; ends with SIGTERM.

  --listen ENDPOINT      where the head's relay dials: ADDRESS:PORT, [IPV6]:PORT or unix:PATH; port
                         0 takes a free one; may be repeated: further ones where that is possible
  --worker ENDPOINT      the rpc-server: HOST:PORT, [IPV6]:PORT or unix:PATH; the address of a named
                         host is looked up once, at the start
  --key-file PATH        the key both relays share: 64 hexadecimal digits in a file only its owner
                         may read. With it what crosses is TLS; anywhere but at a Unix socket it is
                         needed
  --model PATH           a model beside this worker, by any part of a split one; may be repeated. What
                         of it llama-server loads here is read from this file where its bytes are
                         the same, and does not cross
  --name NAME            the worker's name, for heads, counters and log
  --stats PATH           Unix socket that gives out counters as JSON lines
  --gone-after SECONDS   give a head up when nothing is heard of its machine for so long (20)
)";

namespace {

// The link's last words, and what the rpc-server still owes.
constexpr std::chrono::seconds kLoopGrace{4};
// What is told is soon: where it is not, a reader hangs.
constexpr std::chrono::seconds kTellingGrace{1};

struct Options {
  LinkAddress place;
  Endpoint worker;
  std::vector<std::string> models;
  std::string name;
  std::string stats;
  Nanos gone_after = kGoneAfter;
};

Options parse_options(std::span<char* const> args) {
  Options options;
  parse_arguments(
      args, {kept("--name", options.name), kept("--stats", options.stats),
             {"--listen", [&](auto& text) { options.place.add(endpoint_for("--listen", text)); }},
             {"--worker", [&](auto& text) { options.worker = peer_for("--worker", text); }},
             {"--key-file", [&](auto& path) { options.place.key = read_key_file(path); }},
             {"--model", [&](auto& path) { options.models.push_back(path); }},
             {"--gone-after",
              [&](auto& text) { options.gone_after = seconds_for("--gone-after", text); }}});
  if (!options.place.is_given()) throw UsageError("worker needs --listen ENDPOINT");
  const bool has_worker = options.worker.port != 0 || !options.worker.path.empty();
  if (!has_worker) throw UsageError("worker needs --worker ADDRESS:PORT or unix:PATH");
  if (options.name.empty()) throw UsageError("worker needs --name NAME");
  return options;
}

}  // namespace

void worker(std::span<char* const> args, const char* version) {
  const Options options = parse_options(args);
  const sigset_t signals = block_ending_signals();
  ::signal(SIGPIPE, SIG_IGN);
  Link link(options.name, false, true);
  link.gone_after = options.gone_after;
  weights::ResidentWeights home;
  open_models(home, options.models);
  WorkerEnd end(link, options.place, options.worker, home);
  Stats stats(link, options.stats, version);
  Pipe stop = make_pipe();
  const Aside telling([&] { stats.run(stop.reader.get()); });
  const Aside loop([&] { end.run(stop.reader.get()); });
  print_port(end.port());
  int signal = 0;
  ::sigwait(&signals, &signal);
  stop.writer.reset();
  static_cast<void>(loop.ends_within(kLoopGrace));
  static_cast<void>(telling.ends_within(kTellingGrace));
  // A thread that hangs, on a disk for example, must not see all this vanish.
  ::_exit(kExitOk);
}

}  // namespace dllm::link
