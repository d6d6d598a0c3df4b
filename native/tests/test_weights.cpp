// Of whose data a session tells, so that they may go another way, and what it answers itself.
#include "check.h"
#include "sessions.h"

using namespace transcript;
using namespace sessions;

namespace {

constexpr std::size_t kBytes = 4096;

// Takes what has a name, and recalls what has a hash it knows.
struct Known final : dllm::Weights {
  bool takes(dllm::Tensor tensor, std::uint64_t offset, std::uint64_t bytes) override {
    if (tensor.name() != "weight" || offset != 0) return false;
    taken_bytes += bytes;
    return true;
  }
  std::optional<std::uint64_t> recalls(dllm::Tensor tensor, std::uint64_t hash) override {
    if (tensor.name() != "weight") return std::nullopt;
    return hash == 7 ? kBytes : 0;
  }
  void passes(dllm::Tensor tensor) override { passed += tensor.name() == "weight" ? 1 : 0; }
  void unread() override { is_read = false; }
  std::uint64_t taken_bytes = 0;
  int passed = 0;
  bool is_read = true;
};

TensorSpec named(const char* name) {
  TensorSpec spec = row_of(kBytes);
  spec.name = name;
  return spec;
}

std::string ask_hash(const char* name, std::uint64_t hash, std::uint64_t offset = 0) {
  std::string payload = tensor(named(name));
  put(payload, offset);
  put(payload, hash);
  return request(dllm::kSetTensorHash, payload);
}

// What a session says, put together over its steps.
struct Said {
  std::string worker, answers;
  std::vector<std::string> heads;

  void step(Bench& bench, std::string bytes) {
    const Outgoing out =
        bench.session->requests({reinterpret_cast<std::uint8_t*>(bytes.data()), bytes.size()}, 1);
    const std::string now = text(out);
    for (const dllm::Detached& each : out.detached) {
      CHECK(each.begin < each.end && each.end <= now.size());
      heads.push_back(now.substr(each.begin, each.end - each.begin));
    }
    worker += now;
    answers += out.answers;
  }
};

struct Met {
  explicit Met(Version version, bool guard = true) : bench(true, guard) {
    bench.session.emplace(bench.link, &known);
    bench.greet(version);
  }
  Known known;
  Bench bench;
  Said said;
};

std::string head_of(const std::string& whole) {
  return whole.substr(0, whole.size() - kBytes);
}

}  // namespace

TEST(heads_are_told_of_wherever_the_stream_is_cut) {
  for (const Version version : kVersions) {
    for (const bool guard : {true, false}) {
      Random random(version.major);
      Met met(version, guard);
      const std::string data = random_bytes(random, kBytes);
      const std::string weight = set_tensor(version, named("weight"), data);
      const std::string all = weight + set_tensor(version, named("other"), data) + weight +
                              set_tensor(version, named("weight"), data.substr(4), 4) + weight;
      for (const std::string& piece : split(random, all)) met.said.step(met.bench, piece);
      CHECK(met.said.worker == all);
      CHECK(met.said.heads == std::vector<std::string>(3, head_of(weight)));
      CHECK(met.known.taken_bytes == 3 * kBytes);
      // Counted as the client said it.
      CHECK(met.bench.tally(dllm::kSetTensor).bytes_up == all.size());
      CHECK(met.bench.tally(dllm::kSetTensor).count == 5);
    }
  }
}

TEST(a_head_of_which_some_has_left_is_not_told_of) {
  const std::string weight = set_tensor(k8, named("weight"), std::string(kBytes, 'w'));
  for (const std::size_t cut : {std::size_t{1}, std::size_t{9}, std::size_t{100}}) {
    Known known;
    Bench bench(true, false);
    bench.session.emplace(bench.link, &known);
    Said said;
    bench.up(hello(k8));
    said.step(bench, weight.substr(0, cut));
    bench.down(hello_reply(k8));
    said.step(bench, weight.substr(cut));
    CHECK(said.worker == weight && said.heads.empty() && known.taken_bytes == 0);
    CHECK(known.passed == 1 || !known.is_read);
  }
}

TEST(a_hash_that_is_known_is_answered_and_becomes_a_head) {
  for (const Version version : {k7, k8}) {
    Random random(3);
    Met met(version);
    const std::string before = get_tensor({}, 0, 16);
    met.said.step(met.bench, before);
    met.bench.down(reply(std::string(16, 'r')));
    for (const std::string& piece : split(random, ask_hash("weight", 7))) {
      met.said.step(met.bench, piece);
    }
    const std::string head =
        head_of(set_tensor(version, named("weight"), std::string(kBytes, 'w')));
    CHECK(met.said.worker == before + head);
    CHECK(met.said.heads == std::vector<std::string>{head});
    CHECK(met.said.answers == reply("\1"));
    const auto& tally = met.bench.tally(dllm::kSetTensorHash);
    CHECK(tally.count == 1 && tally.answered == 1);
    CHECK(met.bench.tally(dllm::kSetTensor).count == 0);
  }
}

TEST(a_recalled_tensor_is_placed_where_it_lies) {
  struct All final : dllm::Weights {
    bool takes(dllm::Tensor, std::uint64_t, std::uint64_t) override { return true; }
    std::optional<std::uint64_t> recalls(dllm::Tensor, std::uint64_t) override { return kBytes; }
    void passes(dllm::Tensor) override {}
    void unread() override {}
  } all;
  Bench bench;
  bench.session.emplace(bench.link, &all);
  bench.greet(k8);
  bench.up(ask_hash("blk.3.weight", 7));
  CHECK(bench.link.placement.devices()[0][3].bytes == kBytes);
}

TEST(a_hash_that_is_not_known_brings_the_data) {
  Met met(k8);
  met.said.step(met.bench, ask_hash("weight", 8));
  CHECK(met.said.worker.empty() && met.said.heads.empty());
  CHECK(met.said.answers == reply(std::string(1, '\0')));
}

TEST(the_worker_is_asked_what_only_it_knows) {
  const auto asked = [](Version version, const std::string& question, bool has_open = false) {
    Met met(version);
    if (has_open) met.bench.up(get_tensor({}, 0, 16));
    met.said.step(met.bench, question);
    CHECK(met.said.answers.empty() && met.said.heads.empty());
    return met.said.worker == question;
  };
  CHECK(asked(k8, ask_hash("other", 7)));
  CHECK(asked(k8, ask_hash("weight", 7, 4)));
  // A reply is due, so an answer from here would come too early.
  CHECK(asked(k8, ask_hash("weight", 7), true));
  // Its cache would keep what it was told not to.
  CHECK(asked({6, 0, 0}, ask_hash("weight", 7)));
}

RUN_TESTS()
