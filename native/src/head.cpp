#include "head.h"

#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <thread>

#include "clients.h"
#include "head_options.h"
#include "json.h"
#include "stats.h"
#include "supervisor.h"

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

sigset_t ending_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

void print_port(int listener) {
  const std::string line =
      json::Object().number("port", bound_port(listener)).number("pid", ::getpid()).line();
  std::fputs(line.c_str(), stdout);
  std::fflush(stdout);
}

void wait_for_end(const sigset_t& signals) {
  int number = 0;
  ::sigwait(&signals, &number);
}

}  // namespace

void head(std::span<char* const> args, const char* version) {
  const HeadOptions options = parse_head_options(args);
  const sigset_t signals = ending_signals();
  // Before the first thread: all inherit it.
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  Link link(options.name, options.answers, options.guard);
  const UniqueFd listener = listen_tcp(options.listen);
  Stats stats(link, options.stats, version);
  Clients clients(link, options.worker);
  Pipe stop = make_pipe();
  std::thread stats_thread([&] { stats.run(stop.reader.get()); });
  std::thread([&clients, fd = listener.get()] { clients.serve(fd); }).detach();
  print_port(listener.get());
  wait_for_end(signals);
  clients.end();
  stop.writer.reset();
  stats_thread.join();
  // Not `return`: a thread that still waits for its worker must not see all this vanish.
  ::_exit(kExitOk);
}

}  // namespace dllm
