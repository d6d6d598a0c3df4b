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
       dllm-relay worker --dial ENDPOINT --worker ENDPOINT --name NAME [options]

Stands beside a stock rpc-server and speaks with the relay of the head (dllm-relay head), over one
connection that lasts. One head at a time: another is told who is there. Prints {"port", "pid"} when
it is ready; ends with SIGTERM.

  --listen ENDPOINT      where the head's relay dials: ADDRESS:PORT, [IPV6]:PORT or unix:PATH; port
                         0 takes a free one; may be repeated: further ones where that is possible
  --dial ENDPOINT        instead: where the head's relay listens (--pair-listen)
  --worker ENDPOINT      the rpc-server: HOST:PORT, [IPV6]:PORT or unix:PATH; the address of a named
                         host is looked up once, at the start
  --key-file PATH        the key both relays share: 64 hexadecimal digits in a file only its owner
                         may read. With it what crosses is TLS; anywhere but at a Unix socket it is
                         needed
  --key-stdin            likewise, the first line of standard input
  --model PATH           a model beside this worker, by any part of a split one; may be repeated. What
                         of it llama-server loads here is read from this file where its bytes are
                         the same, and does not cross
  --name NAME            the worker's name, for heads, counters and log
  --stats PATH           Unix socket that gives out counters as JSON lines
  --gone-after SECONDS   give a head up when nothing is heard of its machine for so long (20)
  --no-guard             let requests pass that would crash the rpc-server or run code in it
)";

namespace {

// The link's last words, and what the rpc-server still owes.
constexpr std::chrono::seconds kLoopGrace{4};
// What is told is soon: where it is not, a reader hangs.
constexpr std::chrono::seconds kTellingGrace{1};

struct Options {
  LinkAddress place;
  bool is_placed = false;
  Endpoint worker;
  std::vector<std::string> models;
  std::string name;
  std::string stats;
  Nanos gone_after = kGoneAfter;
  bool guard = true;
};

void set_place(Options& options, const std::string& option, const std::string& value) {
  const bool listens = option == "--listen";
  if (options.is_placed) {
    if (!listens || options.place.dials) {
      throw UsageError("worker needs one of --listen and --dial");
    }
    options.place.others.push_back(endpoint_for(option, value));
    return;
  }
  options.is_placed = true;
  options.place.dials = !listens;
  options.place.endpoint = listens ? endpoint_for(option, value) : peer_for(option, value);
}

void apply(Options& options, const std::string& option, const std::string& value) {
  if (option == "--listen" || option == "--dial") {
    set_place(options, option, value);
  } else if (option == "--worker") {
    options.worker = peer_for(option, value);
  } else if (option == "--key-file") {
    options.place.key = read_key_file(value);
  } else if (option == "--model") {
    options.models.push_back(value);
  } else if (option == "--name") {
    options.name = value;
  } else if (option == "--stats") {
    options.stats = value;
  } else if (option == "--gone-after") {
    options.gone_after = seconds_for(option, value);
  } else {
    throw UsageError("unknown option '" + option + "'");
  }
}

Options parse_options(std::span<char* const> args) {
  Options options;
  for (std::size_t at = 0; at < args.size(); ++at) {
    const std::string option = args[at];
    if (option == "--no-guard") {
      options.guard = false;
    } else if (option == "--key-stdin") {
      options.place.key = read_key_input();
    } else {
      if (at + 1 == args.size()) throw UsageError("'" + option + "' is unknown or needs a value");
      apply(options, option, args[++at]);
    }
  }
  if (!options.is_placed) throw UsageError("worker needs one of --listen and --dial");
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
  Link link(options.name, false, options.guard);
  link.gone_after = options.gone_after;
  weights::ResidentWeights home;
  open_models(home, options.models);
  WorkerEnd end(link, options.place, options.worker, home);
  Stats stats(link, options.stats, version);
  Pipe stop = make_pipe();
  const Aside telling([&] { stats.run(stop.reader.get()); });
  const Aside loop([&] { end.run(stop.reader.get()); });
  print_ports(end.port());
  int signal = 0;
  ::sigwait(&signals, &signal);
  stop.writer.reset();
  static_cast<void>(loop.ends_within(kLoopGrace));
  static_cast<void>(telling.ends_within(kTellingGrace));
  // A thread that hangs, on a disk for example, must not see all this vanish.
  ::_exit(kExitOk);
}

}  // namespace dllm::link
