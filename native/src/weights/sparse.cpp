#include "sparse.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <sstream>
#include <stdexcept>

#include "program.h"
#include "protocol/json.h"
#include "sparse_writer.h"

namespace dllm::sparse {

const char* const kThinHelp =
    R"(usage: dllm-relay thin --model PATH --out PATH --identity TEXT < NAMES

Writes a thin file of a model, or of one part of a split one: everything but the tensors whose
names it is given on standard input, a line each. What these hold is told by hashes in the new
file's metadata, so that workers with files of their own can serve them. Prints {"done_bytes"} now
and then, and in the end {"path", "sha256", "size_bytes", "kept_bytes"}.

  --model PATH     the file it is made from; read once, and left as it is
  --out PATH       where nothing is yet, on a file system that holds holes
  --identity TEXT  the identity of the model, for the record
)";

namespace {

// Of standard input: the longest real lists are under 4 MiB.
constexpr std::size_t kNamesBytesMax = 16U << 20;
constexpr std::chrono::milliseconds kTellEvery{200};

Order parse_order(std::span<char* const> args) {
  Order order;
  for (std::size_t at = 0; at < args.size(); at += 2) {
    const std::string option = args[at];
    if (at + 1 == args.size()) throw UsageError("'" + option + "' is unknown or needs a value");
    if (option == "--model") {
      order.from = args[at + 1];
    } else if (option == "--out") {
      order.to = args[at + 1];
    } else if (option == "--identity") {
      order.identity = args[at + 1];
    } else {
      throw UsageError("unknown option '" + option + "'");
    }
  }
  if (order.from.empty() || order.to.empty() || order.identity.empty()) {
    throw UsageError("thin needs --model PATH, --out PATH and --identity TEXT");
  }
  return order;
}

volatile std::sig_atomic_t g_ended = 0;

void note_end(int) {
  g_ended = 1;
}

// Whoever reads may be gone: then nobody wants the file either.
void print(const json::Object& object) {
  const std::string line = object.line();
  const bool printed = std::fputs(line.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  if (!printed) throw_errno("nobody listens");
}

}  // namespace

int thin(std::span<char* const> args) {
  // What a pipe or a limit of file sizes refuses is said, not died of.
  for (const int signal : {SIGPIPE, SIGXFSZ}) ::signal(signal, SIG_IGN);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::signal(signal, note_end);
  Order order = parse_order(args);
  std::istringstream names(read_all(STDIN_FILENO, kNamesBytesMax));
  for (std::string name; std::getline(names, name);) order.holes.insert(name);
  auto next = std::chrono::steady_clock::now();
  const Written written = write_thin(order, [&](std::uint64_t done_bytes) {
    if (g_ended != 0) throw std::runtime_error("was told to end, and left nothing behind");
    const auto now = std::chrono::steady_clock::now();
    if (now < next) return;
    next = now + kTellEvery;
    print(json::Object().number("done_bytes", done_bytes));
  });
  json::Object object;
  object.raw("path", json::quote_bytes(written.path)).text("sha256", written.sha256);
  object.number("size_bytes", written.size_bytes).number("kept_bytes", written.kept_bytes);
  print(object);
  return kExitOk;
}

}  // namespace dllm::sparse
