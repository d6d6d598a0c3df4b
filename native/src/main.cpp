// dllm-relay: what dllm-tui needs beside Python on every machine.

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <iterator>
#include <span>
#include <string_view>

#include "agent/agent.h"
#include "link/head.h"
#include "link/probe.h"
#include "link/worker.h"
#include "posix.h"
#include "stub/stub.h"
#include "weights/sparse.h"

namespace {

constexpr const char* kHelp =
    R"(usage: dllm-relay COMMAND

commands:
  head        stand between llama-server and a worker: count, time, guard, slow down
  agent       look after the processes of this machine, over standard input and output
  stub        speak for a worker that does not run: what memory would it have
  probe       measure the direct way between two machines
  sparse      write a model with holes in place of tensors that are elsewhere
  worker      stand beside a worker, as the far end of the link to a head's relay
  --version   print the version
  --help      print this; `dllm-relay COMMAND --help` tells about one
)";

using Args = std::span<char* const>;

struct Command {
  std::string_view name;
  const char* help;
  int (*run)(Args);
};

const Command kCommands[] = {
    {"head", dllm::kHeadHelp, [](Args args) -> int { dllm::head(args, DLLM_VERSION); }},
    {"agent", dllm::agent::kAgentHelp,
     [](Args args) { return dllm::agent::serve(args, DLLM_VERSION); }},
    {"stub", dllm::kStubHelp, [](Args args) -> int { dllm::stub(args); }},
    {"probe", dllm::kProbeHelp, dllm::probe},
    {"sparse", dllm::sparse::kSparseHelp, dllm::sparse::sparse},
    {"worker", dllm::link::kWorkerHelp,
     [](Args args) -> int { dllm::link::worker(args, DLLM_VERSION); }},
};

bool asks_for_help(std::string_view arg) {
  return arg == "--help" || arg == "-h";
}

int print(const char* text) {
  const bool printed = std::fputs(text, stdout) >= 0 && std::fflush(stdout) == 0;
  return printed ? dllm::kExitOk : dllm::kExitFailed;
}

int run(Args args) {
  if (args.empty()) throw dllm::UsageError("a command is missing; see dllm-relay --help");
  const std::string_view command = args[0];
  if (asks_for_help(command)) return print(kHelp);
  if (command == "--version") return print("dllm-relay " DLLM_VERSION "\n");
  const auto known = std::ranges::find(kCommands, command, &Command::name);
  if (known != std::end(kCommands)) {
    const bool wants_help = args.size() > 1 && asks_for_help(args[1]);
    return wants_help ? print(known->help) : known->run(args.subspan(1));
  }
  throw dllm::UsageError("unknown command '" + std::string(command) + "'; see dllm-relay --help");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(std::span<char* const>(argv, static_cast<std::size_t>(argc)).subspan(1));
  } catch (const dllm::UsageError& error) {
    dllm::complain(error.what());
    return dllm::kExitUsage;
  } catch (const std::exception& error) {
    dllm::complain(error.what());
    return dllm::kExitFailed;
  }
}
