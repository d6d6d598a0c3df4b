#include "head.h"

#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <thread>

#include "arguments.h"
#include "client_queue.h"
#include "direct_transport.h"
#include "head_end.h"
#include "meter/stats.h"
#include "posix.h"
#include "sockets.h"

namespace dllm {

const char* const kHeadHelp =
    R"(usage: dllm-relay head --listen ADDRESS:PORT --worker ENDPOINT --name NAME [options]
       dllm-relay head --listen ADDRESS:PORT --pair-dial ENDPOINT --name NAME [options]

Stands between llama-server and a worker: a stock rpc-server, or a relay beside one (dllm-relay
worker). Passes every byte on, and counts and times what it understands. Prints {"port", "pid"}
when it listens; ends with SIGTERM.

  --listen ADDRESS:PORT  where llama-server connects: a loopback address, for nobody is asked for
                         a key there; port 0 takes a free one
  --worker ENDPOINT      the rpc-server: HOST:PORT, [IPV6]:PORT, or unix:PATH for a tunnel; the
                         address of a named host is looked up once, at the start
  --pair-dial ENDPOINT   instead: the worker's relay, which listens there; may be repeated: where
                         the first is not met within 2 s, the next is dialled
  --key-file PATH        the key both relays of a pair share: 64 hexadecimal digits in a file only
                         its owner may read. With it what crosses is TLS; anywhere but at a Unix
                         socket it is needed
  --model PATH           a model llama-server may load; may be repeated. Of a pair whose worker has
                         the same, llama-server need not even say what the large tensors hold
  --sparse PATH          the same of a sparse file: where it has holes, the worker's own file must
                         hold what they stand for, or the load ends
  --id DIGITS            who this is to the worker's relay, 32 hexadecimal digits: one started again
                         as the same takes the place of a link that is not known to be lost yet
  --name NAME            the worker's name, for counters and log
  --stats PATH           Unix socket that gives out counters and passes as JSON lines
                         and takes {"lab": {"latency_ms": …, "jitter_ms": …, "rate_mb_s": …}}
  --gone-after SECONDS   give the worker up when its machine acknowledges nothing for so long
                         (20; on macOS, without a pair, always 20)
  --no-answers           ask the worker every time, even what cannot change
)";

namespace {

// Whoever reads the log, or the disk it is on, may hang.
constexpr std::chrono::seconds kTellingGrace{1};

struct Options {
  Endpoint listen;
  Endpoint worker;
  link::LinkAddress place;  // of the worker's relay
  std::vector<std::string> models;
  std::vector<std::string> sparse;
  std::string name;   // of the worker
  std::string stats;  // path of the stats socket; empty: none
  Nanos gone_after = kGoneAfter;
  bool answers = true;
};

void judge(const Options& options) {
  if (options.listen.host.empty()) throw UsageError("head needs --listen ADDRESS:PORT");
  if (!is_local(options.listen)) {
    throw UsageError("--listen " + text(options.listen) +
                     ": whoever reaches it has the worker, without a key; listen at 127.0.0.1");
  }
  const bool has_worker = options.worker.port != 0 || !options.worker.path.empty();
  const bool pairs = options.place.is_given();
  if (!has_worker && !pairs) throw UsageError("head needs --worker or --pair-dial ENDPOINT");
  if (has_worker && pairs) {
    throw UsageError("--worker and a pair exclude each other: a relay knows its worker itself");
  }
  if (options.place.key && !pairs) throw UsageError("a key is for a pair of relays only");
  if (!(options.models.empty() && options.sparse.empty()) && !pairs) {
    throw UsageError("--model and --sparse are for a pair of relays only");
  }
  if (options.name.empty()) throw UsageError("head needs --name NAME");
}

Options parse_options(std::span<char* const> args) {
  Options options;
  options.place.dials = true;
  parse_arguments(
      args,
      {kept("--name", options.name), kept("--stats", options.stats),
       flag("--no-answers", options.answers, false),
       {"--listen", [&](auto& text) { options.listen = port_for("--listen", text); }},
       {"--worker", [&](auto& text) { options.worker = peer_for("--worker", text); }},
       {"--pair-dial", [&](auto& text) { options.place.add(peer_for("--pair-dial", text)); }},
       {"--key-file", [&](auto& path) { options.place.key = link::read_key_file(path); }},
       {"--model", [&](auto& path) { options.models.push_back(path); }},
       {"--sparse", [&](auto& path) { options.sparse.push_back(path); }},
       {"--id", [&](auto& text) { options.place.id = link::parse_id("--id", text); }},
       {"--gone-after",
        [&](auto& text) { options.gone_after = seconds_for("--gone-after", text); }}});
  judge(options);
  return options;
}

}  // namespace

void head(std::span<char* const> args, const char* version) {
  const Options options = parse_options(args);
  const sigset_t signals = block_ending_signals();
  ::signal(SIGPIPE, SIG_IGN);
  Link link(options.name, options.answers, true);
  link.gone_after = options.gone_after;
  const UniqueFd listener = listen_tcp(options.listen);
  weights::ResidentWeights home;
  open_models(home, options.models);
  // Without it zeros could pass for weights: what cannot be read ends all here.
  for (const std::string& path : options.sparse) home.open_sparse(path);
  std::unique_ptr<link::HeadEnd> pair_end;
  if (options.place.is_given()) {
    pair_end = std::make_unique<link::HeadEnd>(link, options.place, machine_name(), home);
    pair_end->start();
  }
  DirectTransport direct(link, options.worker);
  Stats stats(link, options.stats, version);
  ClientQueue clients(link, pair_end ? static_cast<WorkerTransport&>(*pair_end) : direct);
  Pipe stop = make_pipe();
  const Aside telling([&] { stats.run(stop.reader.get()); });
  std::thread([&] { clients.admit(listener.get()); }).detach();
  std::thread([&] { clients.serve(); }).detach();
  print_port(bound_port(listener.get()));
  int signal = 0;
  ::sigwait(&signals, &signal);
  clients.end();
  if (pair_end) pair_end->await_end();
  stop.writer.reset();
  static_cast<void>(telling.ends_within(kTellingGrace));
  // Not `return`: a thread that still waits for its worker must not see all this vanish.
  ::_exit(kExitOk);
}

}  // namespace dllm
