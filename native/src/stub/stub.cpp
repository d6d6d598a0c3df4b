#include "stub.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <thread>

#include "link/arguments.h"
#include "options.h"
#include "protocol/json.h"
#include "worker.h"

namespace dllm {

const char* const kStubHelp =
    R"(usage: dllm-relay paper --device NAME:TOTAL[:FREE] … [options]

Speaks for a worker that does not run: answers how many devices it has, their memory, alignment and
the size of a tensor there, which is all llama-fit-params asks. Refuses everything else by closing.
Prints {"port", "pid"} when it listens; ends with SIGTERM, or when the pipe at its input closes.

  --device NAME:TOTAL[:FREE]  a device as its engine names it, such as CUDA0:24GiB:20GiB or CPU:8GiB;
                              the n-th is the worker's device n-1
  --listen ADDRESS:PORT       where to listen; default 127.0.0.1:0, which takes a free port
  --protocol X.Y.Z            the RPC version to speak; default 7.0.0
)";

namespace {

constexpr int kClientsMax = 64;

// A terminal, a file or /dev/null tells nothing of the parent.
bool is_parents_pipe(int fd) {
  struct stat status{};
  return ::fstat(fd, &status) == 0 && (S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode));
}

void end_with_parent() {
  char scrap[64];
  while (retry([&] { return ::read(STDIN_FILENO, scrap, sizeof scrap); }) > 0) {
  }
  ::_exit(kExitOk);
}

void admit(int listener, const StubOptions& options) {
  static std::atomic<int> clients = 0;
  for (;;) {
    UniqueFd client = accept_client(listener);
    if (!client) {
      ::poll(nullptr, 0, 10);  // no descriptor left: one may be free soon
      continue;
    }
    if (clients >= kClientsMax) continue;
    ++clients;
    tune(client.get());
    std::thread([&options, fd = std::move(client)] {
      attend(fd.get(), options.devices, options.protocol);
      --clients;
    }).detach();
  }
}

}  // namespace

void stub(std::span<char* const> args) {
  const StubOptions options = parse_stub_options(args);
  const sigset_t signals = block_ending_signals();
  ::signal(SIGPIPE, SIG_IGN);
  const UniqueFd listener = listen_tcp(options.listen);
  std::thread([&] { admit(listener.get(), options); }).detach();
  if (is_parents_pipe(STDIN_FILENO)) std::thread(end_with_parent).detach();
  const std::string line =
      json::Object().number("port", bound_port(listener.get())).number("pid", ::getpid()).line();
  write_all(STDOUT_FILENO, line, "cannot print the port");
  int signal = 0;
  ::sigwait(&signals, &signal);
  // Not `return`: a thread that still answers must not see all this vanish.
  ::_exit(kExitOk);
}

}  // namespace dllm
