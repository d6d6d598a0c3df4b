#include "head.h"

#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <csignal>
#include <cstdio>
#include <limits>
#include <thread>

#include "clients.h"
#include "json.h"
#include "program.h"
#include "stats.h"

namespace dllm {

const char* const kHeadHelp =
    R"(usage: dllm-relay head --listen ADDRESS:PORT --worker ADDRESS:PORT --name NAME [options]

Stands between llama-server and a stock rpc-server: passes every byte on, and counts and times
what it understands. Prints {"port", "pid"} when it listens; ends with SIGTERM.

  --listen ADDRESS:PORT  where llama-server connects; port 0 takes a free one
  --worker ADDRESS:PORT  the rpc-server
  --name NAME            the worker's name, for counters and log
  --stats PATH           Unix socket that gives out counters and passes as JSON lines
                         and takes {"lab": {"latency_ms": …, "jitter_ms": …, "rate_mb_s": …}}
  --no-answers           ask the worker every time, even what cannot change
  --no-guard             let requests pass that would crash the worker or run code in it
)";

namespace {

struct Options {
  Endpoint listen;
  Endpoint worker;
  std::string name;   // of the worker
  std::string stats;  // path of the stats socket; empty: none
  bool answers = true;
  bool guard = true;
};

Endpoint parse_endpoint(const std::string& option, const std::string& text) {
  const std::size_t colon = text.rfind(':');
  unsigned port = 0;
  const char* end = text.data() + text.size();
  const char* digits = colon == std::string::npos ? end : text.data() + colon + 1;
  const auto [stop, error] = std::from_chars(digits, end, port);
  const bool valid = colon != 0 && error == std::errc{} && stop == end &&
                     port <= std::numeric_limits<std::uint16_t>::max();
  if (!valid) throw UsageError(option + " needs ADDRESS:PORT, not '" + text + "'");
  return {text.substr(0, colon), static_cast<std::uint16_t>(port)};
}

void apply(Options& options, const std::string& option, const std::string& value) {
  if (option == "--listen") {
    options.listen = parse_endpoint(option, value);
  } else if (option == "--worker") {
    options.worker = parse_endpoint(option, value);
  } else if (option == "--name") {
    options.name = value;
  } else if (option == "--stats") {
    options.stats = value;
  } else {
    throw UsageError("unknown option '" + option + "'");
  }
}

Options parse_options(std::span<char* const> args) {
  Options options;
  for (std::size_t at = 0; at < args.size(); ++at) {
    const std::string option = args[at];
    if (option == "--no-answers") {
      options.answers = false;
    } else if (option == "--no-guard") {
      options.guard = false;
    } else {
      if (at + 1 == args.size()) throw UsageError("'" + option + "' is unknown or needs a value");
      apply(options, option, args[++at]);
    }
  }
  if (options.listen.host.empty()) throw UsageError("head needs --listen ADDRESS:PORT");
  if (options.worker.port == 0) throw UsageError("head needs --worker ADDRESS:PORT");
  if (options.name.empty()) throw UsageError("head needs --name NAME");
  return options;
}

// Before the first thread: all inherit it.
sigset_t block_ending_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

void print_port(int listener) {
  const std::string line =
      json::Object().number("port", bound_port(listener)).number("pid", ::getpid()).line();
  std::fputs(line.c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace

void head(std::span<char* const> args, const char* version) {
  const Options options = parse_options(args);
  const sigset_t signals = block_ending_signals();
  ::signal(SIGPIPE, SIG_IGN);
  Link link(options.name, options.answers, options.guard);
  const UniqueFd listener = listen_tcp(options.listen);
  Stats stats(link, options.stats, version);
  Clients clients(link, options.worker);
  Pipe stop = make_pipe();
  std::thread stats_thread([&] { stats.run(stop.reader.get()); });
  std::thread([&] { clients.admit(listener.get()); }).detach();
  std::thread([&] { clients.serve(); }).detach();
  print_port(listener.get());
  int signal = 0;
  ::sigwait(&signals, &signal);
  clients.end();
  stop.writer.reset();
  stats_thread.join();
  // Not `return`: a thread that still waits for its worker must not see all this vanish.
  ::_exit(kExitOk);
}

}  // namespace dllm
