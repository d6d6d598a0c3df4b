// What compression between relays saves and costs, on requests recorded from stock builds: bytes
// of a pass beside its states, and microseconds of one core at either end.
//   bench_compression FOLDER [ROUNDS]     FOLDER: the unpacked recordings of .../recordings/depth
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>

#include "compressed.h"
#include "recordings.h"

namespace {

using Clock = std::chrono::steady_clock;
using recordings::Message;

// The requests of one forward pass, and what became of them.
struct Pass {
  std::string requests;
  std::size_t tokens = 0, cells = 0, states_bytes = 0, wire_bytes = 0;
  bool has_graph = false;
  std::vector<double> compress_us, decompress_us;
};

std::vector<Pass> split(const std::vector<Message>& requests) {
  std::vector<Pass> passes(1);
  for (const Message& request : requests) {
    const dllm::Tensor tensor(reinterpret_cast<const std::uint8_t*>(request.payload.data()));
    const bool sets = request.id == dllm::kSetTensor;
    const std::string_view name = sets ? tensor.name() : "";
    if (name.find("#l_out") != name.npos) {
      passes.emplace_back().tokens = tensor.ne(1);
      passes.back().states_bytes = std::size_t{4} * tensor.ne(0) * tensor.ne(1);
    }
    Pass& pass = passes.back();
    if (name.find("kq_mask") != name.npos) pass.cells = tensor.ne(0);
    pass.has_graph |= request.id == dllm::kGraphCompute;
    pass.requests += request.bytes;
  }
  return passes;
}

std::string kind(const Pass& pass) {
  const char* depth = pass.cells > 4096 ? "at 8 k" : "up to 2 k";
  if (pass.tokens == 512) return std::string("batch of 512 ") + depth;
  if (pass.tokens != 1 || pass.cells < 1024) return "";
  return pass.has_graph ? "token with a graph" : std::string("token ") + depth;
}

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

void run(dllm::link::Compressor& compressor, dllm::link::Decompressor& decompressor, Pass& pass) {
  dllm::link::Compressor::Buffer wire, out;
  auto start = Clock::now();
  compressor.requests(compressed::view(pass.requests), wire);
  compressor.flush(wire);
  pass.compress_us.push_back(us_since(start));
  pass.wire_bytes = wire.size();
  start = Clock::now();
  std::size_t bytes = 0;
  for (dllm::View left = wire; !left.empty() || decompressor.has_more(); out.clear()) {
    left = left.subspan(decompressor.take(left, out));
    bytes += out.size();
  }
  pass.decompress_us.push_back(us_since(start));
  if (bytes != pass.requests.size()) std::abort();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values.empty() ? 0 : values[values.size() / 2];
}

void report(const std::string& name, const std::vector<const Pass*>& passes) {
  std::size_t plain = 0, states = 0, wire = 0;
  std::vector<double> compress, decompress;
  for (const Pass* pass : passes) {
    plain += pass->requests.size() - pass->states_bytes;
    states += pass->states_bytes;
    wire += pass->wire_bytes - pass->states_bytes;
    compress.push_back(median(pass->compress_us));
    decompress.push_back(median(pass->decompress_us));
  }
  const std::size_t n = passes.size();
  std::printf("  %-24s %4zu %8zu %10zu %11zu %12.1f %12.1f\n", name.c_str(), n, states / n,
              plain / n, wire / n, median(compress), median(decompress));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return EXIT_FAILURE;
  std::printf(
      "  requests of one worker      n   states      plain  compressed  compress us  decompress "
      "us\n");
  for (const recordings::Session& session : recordings::load_all(argv[1])) {
    std::vector<Pass> passes = split(recordings::messages(session.conversations.front(), true));
    for (int round = argc > 2 ? std::atoi(argv[2]) : 20; round > 0; --round) {
      dllm::link::Compressor compressor;
      dllm::link::Decompressor decompressor;
      for (Pass& pass : passes) run(compressor, decompressor, pass);
    }
    std::map<std::string, std::vector<const Pass*>> kinds;
    for (const Pass& pass : passes) kinds[kind(pass)].push_back(&pass);
    std::printf("%s\n", session.name.c_str());
    for (const auto& [name, some] : kinds) {
      if (!name.empty()) report(name, some);
    }
  }
  return EXIT_SUCCESS;
}
