// What the lean encodings save and cost, on requests recorded from stock builds: bytes and
// microseconds of one core per token and per batch of a prompt, beside what a stock client sends.
//   bench_lean FOLDER [ROUNDS]     FOLDER: the unpacked recordings of tests/native/recordings/depth
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>

#include "lean_pair.h"
#include "recordings.h"

namespace {

using recordings::Message;
using Clock = std::chrono::steady_clock;
namespace lean = dllm::lean;

enum class Kind { kToken1k, kToken8k, kTokenGraph, kBatch1k, kBatch8k, kOther };
const std::map<Kind, const char*> kNames = {
    {Kind::kToken1k, "token at 1 k"},          {Kind::kToken8k, "token at 8 k"},
    {Kind::kTokenGraph, "token with a graph"}, {Kind::kBatch1k, "batch of 512 up to 2 k"},
    {Kind::kBatch8k, "batch of 512 at 8 k"},
};

// The requests of one forward pass, and what became of them.
struct Pass {
  std::vector<std::string> requests;
  std::size_t tokens = 0, cells = 0;
  bool has_graph = false;
  std::size_t stock_bytes = 0, hidden_bytes = 0, lean_bytes = 0;
  std::vector<double> encode_us, decode_us, graph_us;
};

dllm::Tensor tensor(const Message& request) {
  return dllm::Tensor(reinterpret_cast<const std::uint8_t*>(request.payload.data()));
}

std::vector<Pass> split(const std::vector<Message>& requests) {
  std::vector<Pass> passes(1);
  for (const Message& request : requests) {
    const bool sets = request.id == dllm::kSetTensor;
    const std::string_view name = sets ? tensor(request).name() : "";
    if (name.find("#l_out") != name.npos) passes.emplace_back().tokens = tensor(request).ne(1);
    Pass& pass = passes.back();
    if (name.find("kq_mask") != name.npos) pass.cells = tensor(request).ne(0);
    pass.has_graph |= request.id == dllm::kGraphCompute;
    pass.stock_bytes += request.bytes.size();
    pass.requests.push_back(request.bytes);
  }
  return passes;
}

Kind kind(const Pass& pass) {
  if (pass.tokens == 512) return pass.cells > 4096 ? Kind::kBatch8k : Kind::kBatch1k;
  if (pass.tokens != 1 || pass.cells < 1024) return Kind::kOther;
  if (pass.has_graph) return Kind::kTokenGraph;
  return pass.cells > 4096 ? Kind::kToken8k : Kind::kToken1k;
}

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

struct Ends {
  explicit Ends(dllm::Version version) : encoder(version), decoder(version) {}
  lean::Encoder encoder;
  lean::Decoder decoder;
  lean::Buffer message, out;
};

// Bytes of the request that went as they are, without the time to send them.
std::size_t cross(Ends& ends, const std::string& request, Pass& pass, double& decode_us) {
  const dllm::View whole = lean_pair::view(request);
  const std::size_t wanted = ends.encoder.wants(whole.first(dllm::kRequestHeaderBytes));
  ends.message.clear();
  const lean::Begun begun = ends.encoder.begin(whole.first(wanted), ends.message);
  const auto decode = [&] {
    const auto start = Clock::now();
    ends.out.clear();
    if (ends.decoder.decode(ends.message, ends.out).taken == 0) std::abort();
    decode_us += us_since(start);
    pass.lean_bytes += ends.message.size();
  };
  decode();
  dllm::View rest = whole.subspan(begun.taken);
  if (!begun.in_blocks) return pass.lean_bytes += rest.size(), rest.size();
  while (!rest.empty()) {
    const dllm::View piece = rest.first(std::min(rest.size(), lean::kBlockBytes));
    ends.message.clear();
    ends.encoder.block(piece, ends.message);
    decode();
    rest = rest.subspan(piece.size());
  }
  return 0;
}

void run(Ends& ends, Pass& pass) {
  pass.lean_bytes = pass.hidden_bytes = 0;
  double encode_us = 0, decode_us = 0, graph_us = 0;
  for (const std::string& request : pass.requests) {
    const auto start = Clock::now();
    const double before = decode_us;
    pass.hidden_bytes += cross(ends, request, pass, decode_us);
    const double taken = us_since(start) - (decode_us - before);
    encode_us += taken;
    if (request[0] == dllm::kGraphCompute) graph_us += taken;
  }
  pass.encode_us.push_back(encode_us);
  pass.decode_us.push_back(decode_us);
  pass.graph_us.push_back(graph_us);
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values.empty() ? 0 : values[values.size() / 2];
}

void report(const char* name, const std::vector<const Pass*>& passes) {
  double stock = 0, hidden = 0, lean = 0;
  std::vector<double> encode, decode, graph;
  for (const Pass* pass : passes) {
    stock += static_cast<double>(pass->stock_bytes - pass->hidden_bytes);
    hidden += static_cast<double>(pass->hidden_bytes);
    lean += static_cast<double>(pass->lean_bytes - pass->hidden_bytes);
    encode.push_back(median(pass->encode_us));
    decode.push_back(median(pass->decode_us));
    if (pass->has_graph) graph.push_back(median(pass->graph_us));
  }
  const auto count = static_cast<double>(passes.size());
  std::printf("  %-24s %4zu %10.0f %12.0f %8.0f %10.1f %10.1f %9.1f\n", name, passes.size(),
              hidden / count, stock / count, lean / count, median(encode), median(decode),
              median(graph));
}

void bench(const recordings::Session& session, int rounds) {
  std::vector<Pass> passes = split(recordings::messages(session.conversations.front(), true));
  for (int round = 0; round < rounds; ++round) {
    Ends ends(*session.version);
    for (Pass& pass : passes) run(ends, pass);
  }
  std::printf("%s\n", session.name.c_str());
  for (const auto& [which, name] : kNames) {
    std::vector<const Pass*> some;
    for (const Pass& pass : passes) {
      if (kind(pass) == which) some.push_back(&pass);
    }
    if (!some.empty()) report(name, some);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return EXIT_FAILURE;
  std::printf(
      "  requests of one worker      n     hidden  other,stock     lean  encode us"
      "  decode us  graph us\n");
  for (const recordings::Session& session : recordings::load_all(argv[1])) {
    bench(session, argc > 2 ? std::atoi(argv[2]) : 20);
  }
  return EXIT_SUCCESS;
}
