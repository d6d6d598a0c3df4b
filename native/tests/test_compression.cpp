// The compression of requests between two relays: what comes out, what it costs, and its bounds.
#include <zstd.h>

#include "check.h"
#include "compressed.h"
#include "masks.h"
#include "recordings.h"

using namespace compressed;
using dllm::Version;
using masks::Mask;
using transcript::Random;

namespace {

constexpr Version k8{8, 0, 0};

std::string set_states(const std::string& name, std::size_t bytes) {
  Random random(name.size());
  transcript::TensorSpec spec = transcript::row_of(bytes);
  spec.type = masks::kF32;
  spec.name = name;
  return transcript::set_tensor(k8, spec, transcript::random_bytes(random, bytes));
}

// As one zstd stream of such a window in a chunk.
std::string chunk_of(const std::string& bytes, int window_log) {
  std::string packed(ZSTD_compressBound(bytes.size()), '\0');
  ZSTD_CCtx* const context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, window_log);
  ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
  ZSTD_outBuffer out{packed.data(), packed.size(), 0};
  CHECK(ZSTD_compressStream2(context, &out, &in, ZSTD_e_flush) == 0);
  ZSTD_freeCCtx(context);
  std::string chunk;
  std::uint64_t length = std::uint64_t{out.pos} << 1;
  for (; length > 0x7f; length >>= 7) chunk += static_cast<char>(length | 0x80);
  return chunk + static_cast<char>(length) + packed.substr(0, out.pos);
}

}  // namespace

TEST(real_sessions_come_out_as_they_went_in) {
  for (const auto* sessions : {&recordings::all(), &recordings::depth()}) {
    for (const recordings::Session& session : *sessions) {
      Stream stream;
      const std::string requests = recordings::stream(session.conversations.back(), true);
      stream.send(requests);
      CHECK(stream.received == requests && stream.wire_bytes < requests.size());
      CHECK(stream.most_at_once <= 2 * Decompressor::kMostBytes);
    }
  }
}

// The states that a token has between layers cross as they are; beside them everything is small.
TEST(a_token_costs_few_bytes_at_any_depth) {
  std::size_t all = 0;
  for (const recordings::Session& session : recordings::depth()) {
    Stream stream;
    std::string pass;
    std::size_t tokens = 0, states = 0, beside = 0, counted = 0;
    bool has_graph = false;
    const auto end = [&] {
      const std::size_t before = stream.wire_bytes;
      stream.pass(std::exchange(pass, {}));
      const bool is_token = tokens == 1 && !std::exchange(has_graph, false);
      if (is_token) beside += stream.wire_bytes - before - states;
      counted += is_token;
    };
    for (const recordings::Message& request :
         recordings::messages(session.conversations.front(), true)) {
      const auto* payload = reinterpret_cast<const std::uint8_t*>(request.payload.data());
      const bool sets = request.id == dllm::kSetTensor;
      if (sets && dllm::Tensor(payload).name().find("#l_out") != std::string_view::npos) {
        end();
        tokens = dllm::Tensor(payload).ne(1);
        states = std::size_t{4} * dllm::Tensor(payload).ne(0);
      }
      has_graph = has_graph || request.id == dllm::kGraphCompute;
      pass += request.bytes;
    }
    end();
    CHECK(beside <= 48 * counted);
    all += counted;
  }
  CHECK(all > 200);
}

TEST(a_graph_is_found_again_behind_the_masks_of_many_tokens) {
  Stream stream;
  Random random(5);
  std::vector<std::string> tensors;
  for (int i = 0; i < 400; ++i) {
    tensors.push_back(transcript::tensor(transcript::random_tensor(random)));
  }
  const std::string graph = transcript::graph(k8, tensors);
  stream.pass(graph);
  for (std::uint32_t i = 0; i < 256; ++i) {
    stream.pass(masks::request(k8, {.cells = 8192, .tokens = 1, .before = 7000 + i}));
  }
  const std::size_t before = stream.wire_bytes;
  stream.pass(graph);
  CHECK(stream.wire_bytes - before < 100);
}

TEST(masks_of_a_prompt_cost_little_and_states_and_weights_nothing_more) {
  Stream stream;
  const std::string mask =
      masks::request(k8, {.cells = 32768, .tokens = 512, .before = 30000});
  stream.pass(mask);
  CHECK(stream.received == mask && stream.wire_bytes < 16 << 10);
  CHECK(stream.most_at_once <= 2 * Decompressor::kMostBytes);
  for (const char* name : {"RPC0#l_out-3#0", "blk.3.ffn_up.weight"}) {
    const std::string states = set_states(name, 1 << 20);
    const std::size_t before = stream.wire_bytes;
    stream.pass(states);
    const std::size_t cost = stream.wire_bytes - before;
    CHECK(cost > (1 << 20) - 64 && cost < (1 << 20) + 400);
  }
}

// As of inputs that a pass does not use.
TEST(zeros_cost_little_whatever_they_are_called) {
  Stream stream;
  for (const std::uint32_t type : {masks::kF32, masks::kF16}) {
    transcript::TensorSpec spec = transcript::row_of(1 << 20);
    spec.type = type;
    spec.name = "inp_mixed_embd";
    stream.pass(transcript::set_tensor(k8, spec, std::string(1 << 20, '\0')));
  }
  CHECK(stream.wire_bytes < 1000);
}

TEST(every_byte_belongs_to_a_command) {
  Stream stream;
  for (int i = 0; i < 9; ++i) {
    stream.pass(set_states("l_out", 100) + masks::request(k8, {.cells = 512}) +
                transcript::recompute(k8) + transcript::get_tensor({}, 0, 16));
  }
  dllm::Shares shares{};
  stream.compressor.runs().take(stream.wire_bytes, shares);
  std::uint64_t sum = 0;
  for (const std::uint64_t share : shares) sum += share;
  CHECK(sum == stream.wire_bytes && shares[dllm::kSetTensor] > shares[dllm::kGetTensor]);
}

TEST(data_that_go_another_way_leave_their_heads) {
  for (const Version version : {Version{3, 6, 0}, Version{7, 0, 0}, k8}) {
    Stream stream(6);
    const std::string other = transcript::get_tensor({}, 0, 16);
    transcript::TensorSpec spec = transcript::row_of(1 << 20);
    std::string expected;
    for (int i = 0; i < 100; ++i) {
      spec.name = "blk." + std::to_string(i) + ".weight";
      spec.data += 1 << 20;
      const std::string whole = transcript::set_tensor(version, spec, std::string(1 << 10, 'w'));
      const std::string head = whole.substr(0, whole.size() - (1 << 10));
      stream.head(head);
      expected += head;
      CHECK(stream.received == expected);
      if (i % 3 == 0) stream.send(other);
      expected += i % 3 == 0 ? other : "";
    }
    CHECK(stream.received == expected && stream.wire_bytes < 100 * 60);
    // A whole one follows as ever.
    const std::string last = transcript::set_tensor(version, spec, std::string(5000, 'w'));
    stream.send(last);
    CHECK(stream.received == expected + last && !stream.decompressor.is_lost());
  }
}

TEST(what_is_no_protocol_comes_out_too) {
  Random random(3);
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    Stream stream(seed);
    std::string junk = transcript::random_bytes(random, random() % 3000);
    // Set tensors of absurd sizes.
    if (seed % 3 == 0) junk.insert(0, std::string(1, dllm::kSetTensor));
    stream.send(junk);
    CHECK(stream.received == junk);
  }
}

TEST(a_client_that_ends_in_the_middle_of_a_request_is_heard_to_the_end) {
  const std::string requests = masks::request(k8, Mask{.cells = 1024, .tokens = 512}) +
                               set_states("l_out", 3000) +
                               transcript::graph(k8, {transcript::tensor({})});
  for (std::size_t bytes = 0; bytes < requests.size(); bytes += 1 + bytes * 7 % 90001) {
    Stream stream(4);
    stream.send(requests.substr(0, bytes));
    CHECK(stream.received == requests.substr(0, bytes));
  }
}

TEST(what_no_compressor_wrote_is_refused) {
  for (const std::string& junk :
       {std::string(11, '\xff'), std::string("\x10it is no"),
        "\x28\x28\xb5\x2f\xfd" + std::string(16, '\xff'),
        chunk_of("abc", dllm::link::kWindowLog + 1)}) {
    Stream stream;
    stream.take(view(junk));
    CHECK(stream.decompressor.is_lost() && stream.received.empty());
  }
  Stream stream;
  stream.take(view(chunk_of("abc", dllm::link::kWindowLog)));
  CHECK(stream.received == "abc");
}

RUN_TESTS()
