// What a client must not send, in every version that has it, whole and in pieces; and what a stock
// client sends is let through.
#include "check.h"
#include "protocol/commands.h"
#include "protocol/tensor.h"
#include "sessions.h"

using namespace transcript;
using namespace sessions;

namespace {

// Ends where the buffer does.
TensorSpec at_the_end(std::size_t bytes) {
  TensorSpec spec = row_of(bytes);
  spec.data = kBase + kBufferBytes - bytes;
  return spec;
}

TensorSpec moved(TensorSpec spec, std::int64_t by) {
  spec.data += static_cast<std::uint64_t>(by);
  return spec;
}

// "" when it passes. In pieces the worker gets exactly what it gets when all comes at once.
std::string refusal(Version version, const std::string& requests) {
  const std::string good = request(dllm::kBufferGetBase, std::string(8, 'x'));
  Bench whole;
  whole.greet(version);
  const std::string sent = whole.up(good + requests);
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    Random random(seed);
    Bench pieces;
    pieces.greet(version);
    CHECK(up_in_pieces(pieces, random, good + requests) == sent);
    CHECK(pieces.refused == whole.refused);
    CHECK(pieces.link.tally.refused_reason == whole.link.tally.refused_reason);
    CHECK(pieces.link.tally.bytes_up == whole.link.tally.bytes_up);
    for (std::uint8_t id = 0; id < dllm::kCommands; ++id) {
      CHECK(pieces.tally(id).bytes_up == whole.tally(id).bytes_up);
    }
  }
  CHECK(!whole.link.tally.passthrough);
  CHECK((sent == good + requests) == !whole.refused);
  CHECK(sent.starts_with(good));
  CHECK(!whole.refused || whole.up(good).empty());
  return whole.link.tally.refused_reason;
}

bool refused(Version version, const std::string& requests, const std::string& reason) {
  const std::string given = refusal(version, requests);
  if (!check::contains(given, reason)) std::fprintf(stderr, "refused: '%s'\n", given.c_str());
  return check::contains(given, reason);
}

std::string access(std::uint8_t id, const TensorSpec& spec, std::uint64_t offset,
                   std::uint64_t size, const std::string& more = "") {
  std::string payload = tensor(spec);
  put(payload, offset);
  put(payload, size);
  return request(id, payload + more);
}

std::string rows(std::uint8_t id, const TensorSpec& spec, std::uint64_t offset, std::uint64_t size,
                 std::uint64_t count, std::uint64_t stride, const std::string& data = "") {
  std::string more;
  put(more, count);
  put(more, stride);
  return access(id, spec, offset, size, more + data);
}

constexpr std::uint64_t kWrapping = ~std::uint64_t{0};
const std::vector<Version> kAll = kVersions;

}  // namespace

TEST(what_lies_in_its_buffer_passes) {
  for (const Version version : kAll) {
    const TensorSpec last = at_the_end(64);
    CHECK(refusal(version, set_tensor(version, last, std::string(64, 'd'))).empty());
    CHECK(refusal(version, set_tensor(version, last, std::string(4, 'd'), 60)).empty());
    CHECK(refusal(version, get_tensor(last, 0, 64)).empty());
    CHECK(refusal(version, get_tensor(last, 64, 0)).empty());
    CHECK(refusal(version, graph(version, {tensor(last), tensor({})})).empty());
    CHECK(refusal(version, request(dllm::kCopyTensor, tensor(last) + tensor({}))).empty());
    CHECK(refusal(version, access(dllm::kSetTensorHash, last, 0, 77)).empty());
  }
  CHECK(refusal(k8, rows(dllm::kGetTensor2d, at_the_end(64), 4, 8, 3, 20)).empty());
  CHECK(refusal(k8, rows(dllm::kSetTensor2d, at_the_end(64), 4, 8, 3, 20, std::string(24, 'd')))
            .empty());
  CHECK(refusal(k7, access(dllm::kMemsetTensor, at_the_end(64), 60, 4, "v")).empty());
}

TEST(what_lies_outside_its_buffer_is_refused) {
  for (const Version version : kAll) {
    for (const TensorSpec& bad : {moved({}, -1), moved(at_the_end(64), 1)}) {
      const std::string outside = "tensor outside its buffer";
      CHECK(refused(version, set_tensor(version, bad, "data"), outside));
      CHECK(refused(version, get_tensor(bad, 0, 4), outside));
      CHECK(refused(version, access(dllm::kSetTensorHash, bad, 0, 1), outside));
      CHECK(refused(version, request(dllm::kInitTensor, tensor(bad)), outside));
      CHECK(refused(version, request(dllm::kCopyTensor, tensor(bad) + tensor({})), outside));
      CHECK(refused(version, request(dllm::kCopyTensor, tensor({}) + tensor(bad)), outside));
      CHECK(refused(version, graph(version, {tensor({}), tensor(bad), tensor({})}), outside));
    }
  }
  const TensorSpec bad = moved(at_the_end(64), 1);
  const std::string outside = "tensor outside its buffer";
  CHECK(refused(k7, access(dllm::kMemsetTensor, bad, 0, 1, "v"), outside));
  CHECK(refused(k8, rows(dllm::kGetTensor2d, bad, 0, 1, 1, 1), outside));
  CHECK(refused(k8, rows(dllm::kSetTensor2d, bad, 0, 1, 1, 1, "d"), outside));
}

TEST(more_than_the_tensor_holds_is_refused) {
  const TensorSpec last = row_of(64);
  for (const Version version : kAll) {
    const std::string more = "more than the tensor holds";
    CHECK(refused(version, set_tensor(version, last, std::string(65, 'd')), more));
    CHECK(refused(version, set_tensor(version, last, "d", 64), more));
    CHECK(refused(version, set_tensor(version, last, "d", kWrapping), more));
    CHECK(refused(version, get_tensor(last, 0, 65), more));
    CHECK(refused(version, get_tensor(last, kWrapping, 8), more));
    CHECK(refused(version, get_tensor(last, 8, kWrapping), more));
    CHECK(refused(version, access(dllm::kSetTensorHash, last, 65, 1), more));
  }
  const std::string more = "more than the tensor holds";
  CHECK(refused(k7, access(dllm::kMemsetTensor, last, 64, 1, "v"), more));
  CHECK(refused(k8, rows(dllm::kGetTensor2d, last, 9, 8, 3, 24), more));
  CHECK(refused(k8, rows(dllm::kSetTensor2d, last, 9, 8, 3, 24, std::string(24, 'd')), more));
  TensorSpec q4 = row_of(0);
  q4.type = 2;
  q4.ne = {64, 1, 1, 1};
  CHECK(dllm::extent(dllm::Tensor(reinterpret_cast<const std::uint8_t*>(tensor(q4).data()))) == 8);
}

TEST(rows_that_no_tensor_has_are_refused) {
  const TensorSpec last = row_of(64);
  const std::string empty = "rows without data", overlap = "rows overlap";
  CHECK(refused(k8, rows(dllm::kGetTensor2d, last, 0, 0, 1, 8), empty));
  CHECK(refused(k8, rows(dllm::kGetTensor2d, last, 0, 8, 0, 8), empty));
  CHECK(refused(k8, rows(dllm::kGetTensor2d, last, 0, 8, 1 << 30, 0), overlap));
  CHECK(refused(k8, rows(dllm::kGetTensor2d, last, 0, 8, 2, 7), overlap));
  CHECK(refused(k8, rows(dllm::kGetTensor2d, last, 0, 8, kWrapping, kWrapping / 2), "wrap around"));
  CHECK(refused(k8, rows(dllm::kSetTensor2d, last, 0, 8, 2, 8, "short"), "not the data"));
}

TEST(a_buffer_must_be_one_that_the_worker_gave) {
  TensorSpec stranger;
  stranger.buffer = 99;
  TensorSpec nowhere;
  nowhere.buffer = 0;
  for (const Version version : kAll) {
    for (const TensorSpec& bad : {stranger, nowhere}) {
      CHECK(refused(version, set_tensor(version, bad, "data"), "tensor in no buffer"));
      CHECK(refused(version, get_tensor(bad, 0, 4), "tensor in no buffer"));
      CHECK(refused(version, graph(version, {tensor(bad)}), "tensor in no buffer"));
      // A worker takes it for none, and asks no more of it.
      CHECK(refusal(version, request(dllm::kInitTensor, tensor(bad))).empty());
    }
    nowhere.data = 0;
    CHECK(refusal(version, graph(version, {tensor(nowhere)})).empty());
    nowhere.data = kBase;
    std::string handle;
    put(handle, kBuffer);
    const std::string free = request(dllm::kFreeBuffer, handle);
    CHECK(refused(version, free + get_tensor({}, 0, 4), "tensor in no buffer"));
    CHECK(refused(version, free + set_tensor(version, {}, "data"), "more data than any buffer"));
  }
}

TEST(a_buffer_that_is_only_asked_for_cannot_be_guessed) {
  TensorSpec guessed;
  guessed.buffer = kBuffer + 1;
  for (const Version version : kAll) {
    const std::string asking = allocation(version)[0].request;
    const std::string init = request(dllm::kInitTensor, tensor(guessed));
    CHECK(refusal(version, init).empty());
    CHECK(refused(version, asking + init, "tensor in no buffer"));
    std::string handle;
    put(handle, kBuffer + 1);
    const std::string free = request(dllm::kFreeBuffer, handle);
    CHECK(refusal(version, free).empty());
    CHECK(refused(version, asking + free, "buffer that was not given yet"));
  }
}

TEST(sizes_are_bounded_by_what_the_worker_gave) {
  const auto announced = [](std::uint8_t id, std::uint64_t size) {
    std::string header = request(id, "payload");
    write(header, 1, size);
    return header;
  };
  for (const Version version : kAll) {
    const std::uint64_t most = kBufferBytes + 304 + (version.major >= 7);
    Bench bench;
    bench.greet(version);
    CHECK(bench.up(announced(dllm::kSetTensor, most)).empty() && !bench.refused);
    CHECK(refused(version, announced(dllm::kSetTensor, most + 1), "more data than any buffer"));
    CHECK(refused(version, announced(dllm::kSetTensor, 1ULL << 63), "aborts a worker"));
    CHECK(refused(version, announced(dllm::kFreeBuffer, 1 << 20), "beyond any sense"));
    CHECK(refused(version, announced(dllm::kGraphCompute, 1 << 29), "beyond any sense"));
  }
}

TEST(graphs_are_what_they_say) {
  for (const Version version : kAll) {
    const std::string good = graph(version, {tensor({}), tensor({})});
    const std::size_t nodes = good.size() - 2 * dllm::kTensorBytes - 4 - 16 - 4;
    CHECK(refusal(version, good).empty());
    std::string shorter = good, longer = good + "more", none = good, many = good;
    shorter.resize(good.size() - 8);
    write<std::uint64_t>(shorter, 1, shorter.size() - 9);
    write<std::uint64_t>(longer, 1, longer.size() - 9);
    write<std::uint64_t>(none, nodes + 4, 0);
    write<std::uint32_t>(many, nodes, 3);
    CHECK(refused(version, shorter, "graph of more nodes than tensors"));
    CHECK(refused(version, longer, "graph longer than its tensors"));
    CHECK(refused(version, none, "graph with a node that is none"));
    CHECK(refused(version, many, "graph of more nodes than tensors"));
  }
}

TEST(graphs_hang_together) {
  constexpr std::uint32_t kAdd = 2, kCast = 34, kView = 37, kArange = 67;
  const auto made = [](std::uint64_t id, std::uint32_t op = 0, std::vector<std::uint64_t> of = {},
                       TensorSpec spec = {}) {
    spec.op = op;
    std::string out = tensor(spec);
    write(out, 0, id);
    for (std::size_t i = 0; i < of.size(); ++i) write(out, kSourcesAt + 8 * i, of[i]);
    return out;
  };
  TensorSpec shape, empty;
  shape.buffer = shape.data = 0;
  empty = shape;
  empty.ne[0] = 0;
  std::string view = made(2);
  write<std::uint64_t>(view, kViewSourceAt, 9);
  for (const Version version : kAll) {
    const auto why = [&](const std::vector<std::string>& tensors,
                         const std::vector<std::uint64_t>& nodes) {
      return refusal(version, bare_graph(version, tensors, nodes));
    };
    CHECK(why({made(1), made(2, kAdd, {1, 1}), made(3, kCast, {2, 3})}, {2, 3}).empty());
    CHECK(check::contains(why({made(1), made(2, kAdd, {1, 5})}, {2}), "source that is not there"));
    CHECK(check::contains(why({made(1), view}, {2}), "source that is not there"));
    CHECK(check::contains(why({made(1, kAdd, {2, 2}), made(2, kAdd, {1, 1})}, {2}), "not there"));
    CHECK(check::contains(why({made(1), made(1)}, {1}), "two tensors of one id"));
    CHECK(check::contains(why({made(1), made(2)}, {1, 1}), "nodes are not its tensors"));
    CHECK(check::contains(why({made(1), made(2)}, {7}), "nodes are not its tensors"));
    CHECK(check::contains(why({made(1), made(2)}, {2, 1}), "nodes are not its tensors"));
    // What an op reads is known where its number is.
    if (!dllm::knows_ops(version) || version < Version{4, 0, 3}) continue;
    CHECK(check::contains(why({made(1, kAdd)}, {1}), "op without a source it needs"));
    CHECK(check::contains(why({made(1), made(2, kAdd, {1})}, {2}), "op without a source it needs"));
    CHECK(check::contains(why({made(1, 0, {}, shape), made(2, kAdd, {1, 1})}, {2}),
                          "op on a tensor"));
    CHECK(check::contains(why({made(1), made(2, kAdd, {1, 1}, shape)}, {2}), "op into a tensor"));
    CHECK(why({made(1, 0, {}, empty), made(2, kAdd, {1, 1}, empty)}, {2}).empty());
    CHECK(check::contains(why({made(1, kArange, {}, shape)}, {1}), "op into a tensor"));
    CHECK(why({made(1, kArange), made(2, kView, {}, shape)}, {1, 2}).empty());
    // DSV4_HC_POST need not mix its streams.
    CHECK(dllm::needed_sources(version, 90) == 3U);
    // Only nodes are computed.
    CHECK(why({made(1), made(2, kAdd)}, {1}).empty());
  }
}

TEST(an_op_that_ignores_strides_does_not_leave_its_buffer) {
  constexpr std::uint32_t kLeakyRelu = 71;
  constexpr std::size_t kRowStrideAt = 40;
  // Rows of one matrix each: nothing but a flat walk uses the stride of a row.
  TensorSpec spec;
  spec.ne = {4, 1, 3, 1};
  const auto made = [&](std::uint64_t id, std::uint32_t op, std::uint32_t row_stride) {
    spec.op = op;
    std::string out = tensor(spec);
    write(out, 0, id);
    write(out, kRowStrideAt, row_stride);
    if (op) write<std::uint64_t>(out, kSourcesAt, id - 1);
    return out;
  };
  const auto why = [&](std::uint32_t source_stride, std::uint32_t stride) {
    const std::string source = made(1, 0, source_stride), result = made(2, kLeakyRelu, stride);
    return refusal(k8, bare_graph(k8, {source, result}, {2}));
  };
  CHECK(why(16, 16).empty());
  CHECK(check::contains(why(1 << 30, 16), "op whose tensors do not suit it"));
  CHECK(check::contains(why(16, 1 << 30), "op whose tensors do not suit it"));
}

TEST(graphs_of_the_largest_models_pass_and_none_is_deeper) {
  constexpr std::uint32_t kAdd = 2;
  const auto chain = [](std::uint64_t length, bool all_are_nodes) {
    std::vector<std::string> tensors;
    std::vector<std::uint64_t> nodes;
    TensorSpec spec;
    for (std::uint64_t id = 1; id <= length; ++id) {
      tensors.push_back(tensor(spec));
      write(tensors.back(), 0, id);
      for (const std::size_t i : {0, 1}) write(tensors.back(), kSourcesAt + 8 * i, id - 1);
      spec.op = kAdd;
      if (all_are_nodes || id == length) nodes.push_back(id);
    }
    return bare_graph(k8, tensors, nodes);
  };
  const auto why = [](const std::string& graph) {
    Bench bench;
    bench.greet(k8);
    const std::string sent = bench.up(graph);
    CHECK((sent == graph) == !bench.refused);
    return bench.link.tally.refused_reason;
  };
  CHECK(why(chain(100'000, true)).empty());
  CHECK(why(chain(dllm::Graph::kDepthMax, false)).empty());
  CHECK(check::contains(why(chain(dllm::Graph::kDepthMax + 1, false)), "deeper than anyone means"));
}

TEST(impossible_tensors_are_refused) {
  TensorSpec odd, gone, unknown, wrapping;
  odd.type = 4000;
  unknown.type = 43;  // its elements have no known size
  gone.type = 5;      // Q4_3, taken out in 2023
  wrapping.ne = {0xffffffff, 0xffffffff, 1, 1};
  wrapping.data = ~std::uint64_t{0} - 1000;
  for (const Version version : kAll) {
    for (const TensorSpec& bad : {odd, gone, unknown}) {
      CHECK(refused(version, graph(version, {tensor({}), tensor(bad)}), "impossible type"));
      CHECK(refused(version, set_tensor(version, bad, "data"), "impossible type"));
    }
    CHECK(refused(version, graph(version, {tensor(wrapping)}), "wraps around"));
    CHECK(refused(version, set_tensor(version, wrapping, "data"), "wraps around"));
  }
}

TEST(tensors_whose_elements_overlap_are_refused) {
  constexpr std::size_t kStridesAt = 36;
  constexpr std::uint32_t kF16 = 1, kQ4 = 2;
  // 4096 elements, said to lie so many bytes apart.
  const auto apart = [](std::uint32_t type, std::uint32_t stride, std::uint32_t elements = 4096) {
    TensorSpec spec = at_the_end(4);
    spec.type = type;
    spec.ne = {elements, 1, 1, 1};
    std::string made = tensor(spec);
    for (std::size_t i = 0; i < 4; ++i) write(made, kStridesAt + 4 * i, i == 0 ? stride : 0U);
    return made;
  };
  const std::string reason = "elements overlap";
  for (const Version version : kAll) {
    for (const auto& [type, stride] : {std::pair{0U, 0U}, {0U, 3U}, {kF16, 1U}, {kQ4, 17U}}) {
      CHECK(refused(version, bare_graph(version, {apart(type, stride)}, {}), reason));
      const std::string get = apart(type, stride) + std::string(16, '\0');
      CHECK(refused(version, request(dllm::kGetTensor, get), reason));
    }
    // A piece of a block is none, and one element has no stride.
    CHECK(refused(version, bare_graph(version, {apart(kQ4, 18, 33)}, {}), reason));
    CHECK(refusal(version, bare_graph(version, {apart(0, 0, 1)}, {})).empty());
  }
}

TEST(rows_may_overlap) {
  TensorSpec spec = at_the_end(64);
  spec.ne = {16, 7, 3, 2};
  std::string made = tensor(spec);
  for (std::size_t i = 1; i < 4; ++i) write(made, 36 + 4 * i, 0U);
  write<std::uint64_t>(made, 0, 1);
  for (const Version version : kAll)
    CHECK(refusal(version, bare_graph(version, {made}, {})).empty());
}

TEST(custom_ops_are_refused_at_every_patch) {
  const auto of = [](Version version, std::uint32_t op, std::uint64_t parameter = 0x7f0012345678) {
    TensorSpec spec;
    spec.op = op;
    spec.op_parameter = parameter;
    return refusal(version, graph(version, {tensor({}), tensor(spec)}));
  };
  CHECK(!of({3, 6, 1}, 87).empty() && !of({3, 6, 1}, 90).empty() && of({3, 6, 1}, 91).empty());
  CHECK(!of({4, 0, 1}, 88).empty() && of({4, 0, 1}, 92).empty());
  CHECK(!of(k8, 92).empty() && !of(k8, 95).empty() && of(k8, 91, 9).empty());
  CHECK(check::contains(of(k8, 101), "op that this version does not have"));
  // A patch of a later day: its custom ops have moved up, and GLU, the last op, with them.
  for (const Version later : {Version{7, 0, 1}, Version{8, 0, 3}, Version{8, 1, 0}}) {
    for (std::uint32_t op = 92; op < 100; ++op) CHECK(check::contains(of(later, op), "custom op"));
    CHECK(of(later, 91).empty() && of(later, 100).empty() && of(later, 104).empty());
    CHECK(!of(later, 4000).empty());
    // UNARY has moved up into that range: it names a kind, not a function.
    CHECK(of(later, 92, 10).empty());
  }
  CHECK(!of(k8, 92, 10).empty());
  // Nothing tells what its ops are.
  CHECK(of({2, 0, 0}, 92).empty());
}

TEST(questions_without_end_are_refused) {
  const std::string ask = request(dllm::kBufferGetBase, std::string(8, 'x'));
  std::string many;
  for (std::size_t i = 0; i < dllm::Guard::kAwaitedMax; ++i) many += ask;
  CHECK(refused(k7, many, "too many requests without a reply"));
}

TEST(what_is_no_request_is_refused) {
  CHECK(refused(k7, request(99, "abc"), "command that this version does not have"));
  CHECK(refused(k7, request(dllm::kSetTensor2d, "abc"), "that this version does not have"));
  CHECK(refused(k7, request(dllm::kFreeBuffer, "short"), "impossible request size"));
}

TEST(workers_are_not_joined_behind_our_back) {
  const std::string join = request(dllm::kCommInit, std::string(80, '\0'));
  Bench bench;
  bench.greet(k8);
  CHECK(bench.up(join.substr(0, 40)).empty() && bench.up(join.substr(40)).empty());
  CHECK(bench.answers == reply(std::string(1, '\0')));
  CHECK(bench.tally(dllm::kCommInit).answered == 1);
  const std::string ask = request(dllm::kBufferGetBase, std::string(8, 'x'));
  CHECK(refused(k8, ask + join, "asked before a reply came"));
  const std::string reduce = request(dllm::kCommAllreduce, std::string(300, '\0'));
  CHECK(refused(k8, reduce, "no two workers were joined"));
  CHECK(refusal(k8, request(dllm::kCommFree, std::string(4, '\0'))).empty());
}

TEST(a_request_that_does_not_wait_for_the_version_is_refused) {
  Bench bench;
  CHECK(bench.up(hello(k7) + graph(k7, {tensor({})})) == hello(k7));
  CHECK(bench.refused);
}

TEST(without_guard_everything_passes) {
  Bench bench(true, false);
  bench.greet(k7);
  TensorSpec custom;
  custom.op = 95;
  const std::string bad = graph(k7, {tensor(custom)});
  CHECK(bench.up(bad) == bad);
  CHECK(!bench.refused);
}

TEST(no_client_switches_the_guard_off_at_a_minor_version_beyond_the_table) {
  const std::string own = request(30, "what it may be");
  CHECK(refused({8, 1, 0}, own, "command of a later version"));
  Bench without_guard(true, false);
  without_guard.greet({8, 1, 0});
  CHECK(without_guard.up(own) == own);
  CHECK(without_guard.link.tally.passthrough_reason == "unknown command");
}

TEST(a_worker_of_a_major_version_beyond_the_table_is_passed_on_untouched) {
  Bench bench;
  bench.greet({9, 0, 0});
  const std::string own = request(30, "what it may be");
  CHECK(bench.up(own) == own);
  CHECK(check::contains(bench.link.tally.passthrough_reason, "9.0.0 is not in the table"));
}

RUN_TESTS()
