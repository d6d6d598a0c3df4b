// What a worker holds, as its relay saw it go there.
#include "check.h"
#include "sessions.h"

using namespace transcript;
using dllm::Placement;

namespace {

// A connection whose worker gives every buffer the handle that a test names. Without a guard, which
// would have every buffer's base asked for first.
struct Bench : sessions::Bench {
  explicit Bench(Version spoken = {7, 0, 0}) : sessions::Bench(true, false), version(spoken) {
    up(hello(version));
    down(hello_reply(version));
  }
  const Version version;

  void allocate(std::uint32_t device, std::uint64_t handle) {
    std::string asked;
    if (version.major >= 3) put(asked, device);
    put<std::uint64_t>(asked, 1 << 20);
    up(request(dllm::kAllocBuffer, asked));
    std::string given;
    put(given, handle);
    put<std::uint64_t>(given, 1 << 20);
    down(reply(given));
  }
  void free(std::uint64_t handle) {
    std::string asked;
    put(asked, handle);
    up(request(dllm::kFreeBuffer, asked));
  }
  void set(std::uint64_t handle, const std::string& name, std::size_t bytes = 16,
           std::uint32_t op = 0, std::uint64_t offset = 0) {
    const TensorSpec spec{0, {4, 1, 1, 1}, op, 0x7f0000000000, handle, name};
    up(set_tensor(version, spec, std::string(bytes, 'w'), offset));
  }
  void offer(const TensorSpec& spec, bool has_it) {
    std::string payload = tensor(spec);
    put<std::uint64_t>(payload, 0);
    put<std::uint64_t>(payload, 0xfeed);
    up(request(dllm::kSetTensorHash, payload));
    down(reply(std::string(1, has_it ? '\1' : '\0')));
  }
  Placement::Held held(std::uint32_t device, std::int32_t part) {
    return link.placement.devices()[device][part];
  }
  std::string line() { return dllm::placement_line("w", link.placement, !link.tally.passthrough); }
};

}  // namespace

TEST(names_of_weights_and_of_everything_else) {
  CHECK(Placement::part_of("blk.0.attn_q.weight") == 0);
  CHECK(Placement::part_of("blk.4095.ffn_up.weight") == 4095);
  CHECK(Placement::part_of("dec.blk.7.cross_attn_q.weight") == 7);
  CHECK(Placement::part_of("output.weight") == Placement::kOutput);
  CHECK(Placement::part_of("output_norm.weight") == Placement::kOutput);
  CHECK(Placement::part_of("token_embd.weight") == Placement::kEmbedding);
  for (const char* name :
       {"", "blk.", "blk.1", "blk.-1.x", "blk.4096.x", "blk.99999999999999999999.x", "blk.1x.y",
        "blk.0.attn_q.weight.lora_a", "rope_freqs.weight", "l_out-3", "node_17", "cache_k_l0",
        "RPC0[127.0.0.1:1]#blk.1.ffn_up.weight#0", "v.blk.0.attn_q.weight"}) {
    CHECK(!Placement::part_of(name));
  }
}

TEST(weights_are_counted_by_device_and_layer_in_every_version) {
  for (const Version version : kVersions) {
    Bench bench(version);
    const std::uint32_t second = version.major >= 3 ? 1 : 0;
    bench.allocate(0, 10);
    bench.allocate(second, 11);
    bench.set(10, "blk.0.attn_q.weight", 100);
    bench.set(10, "blk.0.ffn_up.weight", 50);
    bench.set(11, "blk.1.attn_q.weight", 7);
    bench.set(11, "output.weight", 9);
    CHECK((bench.held(0, 0) == Placement::Held{2, 150}));
    CHECK((bench.held(second, 1) == Placement::Held{1, 7}));
    CHECK((bench.held(second, Placement::kOutput) == Placement::Held{1, 9}));
    CHECK(bench.link.placement.complete());
  }
}

TEST(what_is_no_weight_is_passed_over) {
  Bench bench;
  bench.allocate(0, 10);
  bench.set(10, "RPC0#l_out-3#0");
  bench.set(10, "blk.3.ffn_up.weight", 16, 2);  // computed
  bench.set(99, "blk.3.ffn_up.weight");         // into no buffer we know
  bench.set(10, std::string(63, '\xff'));
  CHECK(bench.link.placement.devices().empty());
  CHECK(bench.line() ==
        "{\"type\":\"placement\",\"worker\":\"w\",\"complete\":true,\"devices\":[]}\n");
}

TEST(a_tensor_in_slices_is_one) {
  Bench bench;
  bench.allocate(0, 10);
  bench.set(10, "blk.0.attn_q.weight", 60);
  bench.set(10, "blk.0.attn_q.weight", 40, 0, 60);
  CHECK((bench.held(0, 0) == Placement::Held{1, 100}));
}

TEST(a_tensor_known_by_its_hash_counts_once) {
  Bench bench;
  bench.allocate(0, 10);
  // 4 x 3 x 2 f32 values: 96 bytes.
  const TensorSpec spec{0, {4, 3, 2, 1}, 0, 0x7f0000000000, 10, "blk.2.ffn_up_exps.weight"};
  bench.offer(spec, true);
  CHECK((bench.held(0, 2) == Placement::Held{1, 96}));
  bench.offer(spec, false);
  CHECK((bench.held(0, 2) == Placement::Held{1, 96}));
  bench.set(10, spec.name, 96);
  CHECK((bench.held(0, 2) == Placement::Held{2, 192}));
}

TEST(a_second_model_is_not_mixed_with_the_first) {
  Bench bench;
  bench.allocate(0, 10);
  bench.allocate(0, 11);
  bench.set(10, "blk.0.attn_q.weight", 100);
  bench.set(11, "blk.1.attn_q.weight", 100);
  bench.allocate(0, 12);
  bench.set(12, "blk.0.attn_q.weight", 30);
  CHECK((bench.held(0, 0) == Placement::Held{1, 100}));
  CHECK((bench.held(0, 1) == Placement::Held{1, 100}));
  // A server that slept frees its model, and loads it anew.
  for (const std::uint64_t handle : {10, 11, 12}) bench.free(handle);
  CHECK(bench.link.placement.devices().empty());
  bench.allocate(0, 20);
  bench.set(20, "blk.5.attn_q.weight", 30);
  CHECK((bench.held(0, 5) == Placement::Held{1, 30}));
}

TEST(equal_neighbours_are_one_range) {
  Bench bench;
  bench.allocate(0, 10);
  for (const char* layer : {"3", "4", "5", "7", "8"}) {
    bench.set(10, std::string("blk.") + layer + ".attn_q.weight", layer[0] == '8' ? 20 : 10);
  }
  bench.set(10, "output_norm.weight", 4);
  bench.set(10, "output.weight", 6);
  CHECK(bench.line() ==
        "{\"type\":\"placement\",\"worker\":\"w\",\"complete\":true,\"devices\":[{\"device\":0,"
        "\"layers\":[[3,5,1,10],[7,7,1,10],[8,8,1,20]],\"embedding\":[0,0],\"output\":[2,10]}]}\n");
}

TEST(the_end_of_the_connection_ends_the_placement) {
  Bench bench;
  bench.allocate(0, 10);
  bench.set(10, "blk.0.attn_q.weight");
  bench.session.reset();
  CHECK(bench.link.placement.devices().empty());
}

TEST(a_connection_passed_on_unread_is_not_complete) {
  Bench bench;
  bench.allocate(0, 10);
  bench.set(10, "blk.0.attn_q.weight");
  bench.up(request(200, "?"));
  CHECK(bench.link.tally.passthrough);
  CHECK(check::contains(bench.line(), "\"complete\":false"));
}

TEST(what_a_client_can_make_us_remember_is_bounded) {
  Bench bench;
  for (std::uint64_t handle = 1; handle <= 3000; ++handle) bench.allocate(0, handle);
  CHECK(!bench.link.placement.complete());
  for (std::uint64_t handle = 1; handle <= 3000; ++handle) {
    for (std::uint64_t layer = 0; layer < 5; ++layer) {
      bench.set(handle, "blk." + std::to_string(handle + layer) + ".x");
    }
  }
  std::size_t parts = 0;
  for (const auto& [_, each] : bench.link.placement.devices()) parts += each.size();
  CHECK(parts <= Placement::kPartsMax);
  CHECK(bench.line().size() < 256 << 10);
  CHECK(!bench.link.placement.complete());
}

RUN_TESTS()
