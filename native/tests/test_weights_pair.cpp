#include "check.h"
#include "weights_pair.h"

using check::contains;
using dllm::weights::BadMessage;
using dllm::weights::ChunkReceiver;
using dllm::weights::ChunkSender;
using dllm::weights::kChunkBytes;
using dllm::weights::Message;
using dllm::weights::ResidentWeights;
using models::gguf;
using models::Machine;
using models::Made;
using models::Pair;
using models::tensor;

namespace {

using Random = std::mt19937;

// Quick noise, other for every seed.
std::string noise(std::uint32_t seed, std::size_t size) {
  const std::string block = models::noise(seed, 4099);
  std::string data;
  while (data.size() < size) data += block;
  data.resize(size);
  return data;
}

const std::vector<Made>& model() {
  static const std::vector<Made> tensors = {
      tensor("long", noise(1, 3 * kChunkBytes + 5)), tensor("short", noise(2, 1000)),
      tensor("even", noise(3, kChunkBytes)), tensor("other", noise(4, 70'000))};
  return tensors;
}

// All tensors of a model, one after the other, each behind its header.
void load(Pair& pair, const std::vector<Made>& tensors, Random& random, bool by_hash = false) {
  for (const Made& made : tensors) {
    pair.literal(std::string("header of ").append(made.name));
    if (by_hash && pair.can_recall(made)) {
      pair.recall(made);
    } else {
      pair.begin(made);
    }
    while (pair.head.lacks_bytes() > 0) pair.step(random);
  }
  pair.literal("graph");
  pair.finish(random);
  CHECK(pair.worker.empty() && pair.head.is_done());
  CHECK(pair.arrived == pair.sent);
}

std::vector<Made> changed(std::vector<Made> tensors, std::size_t which, std::size_t at) {
  tensors[which].data[at] = static_cast<char>(tensors[which].data[at] ^ 1);
  return tensors;
}

std::string refused(ChunkReceiver& worker, const std::vector<Message>& messages) {
  return check::thrown<BadMessage>([&] {
    for (const Message& message : messages) worker.take(message);
  });
}

Message say(Message::Kind kind, const dllm::weights::TensorKey& key = {}) {
  return {.kind = kind, .key = key};
}

Message offer(const std::string& chunk) {
  Message message = say(Message::Kind::kOffer);
  message.blake3 = dllm::weights::blake3(models::bytes_of(chunk));
  return message;
}

}  // namespace

TEST(what_is_at_home_does_not_cross) {
  Random random(1);
  Machine machine;
  machine.add(model());
  const std::size_t before = machine.files[0]->reads();
  Pair pair(nullptr, machine.home);
  load(pair, model(), random);
  CHECK(pair.crossed_bytes == 0 && pair.counts.needed_bytes == 0);
  CHECK(pair.counts.home_bytes == 4 * kChunkBytes + 5 + 71'000);
  CHECK(pair.counts.tensors == 4 && pair.counts.tensors_differ == 0);
  // Of each tensor one message, and one of each chunk, which is read once.
  CHECK(pair.messages == 4 + 7 && machine.files[0]->reads() - before == 7);
}

TEST(a_fine_tune_costs_the_chunks_that_differ) {
  Random random(2);
  Machine machine;
  machine.add(changed(changed(model(), 0, kChunkBytes + 7), 3, 0));
  Pair pair(nullptr, machine.home);
  load(pair, model(), random);
  CHECK(pair.crossed_bytes == kChunkBytes + 70'000);
  CHECK(pair.counts.needed_bytes == pair.crossed_bytes && pair.counts.tensors_differ == 2);
  CHECK(pair.counts.tensors_missing == 0);
}

TEST(a_name_alone_is_nothing) {
  Random random(3);
  std::vector<Made> others = model();
  others[0].name = "long.";
  others[1].type = 0, others[1].shape = {250};
  others[2].shape = {kChunkBytes / 2, 2};
  others[3].data += "x", others[3].shape = {70'001};
  Machine machine;
  machine.add(others);
  for (const Made& made : model()) CHECK(machine.home.find(models::key_of(made)).empty());
  Pair pair(nullptr, machine.home);
  load(pair, model(), random);
  CHECK(pair.counts.tensors_missing == 4 && pair.counts.home_bytes == 0);
  CHECK(pair.crossed_bytes == pair.counts.needed_bytes);
}

TEST(of_two_models_with_the_same_names_either_will_do) {
  Random random(4);
  Machine machine;
  machine.add(changed(model(), 0, 1));
  machine.add(changed(model(), 1, 1));
  Pair pair(nullptr, machine.home);
  load(pair, model(), random);
  CHECK(pair.crossed_bytes == 0 && pair.counts.tensors_differ == 0);
}

TEST(a_file_cut_short_costs_what_is_gone) {
  Random random(5);
  Machine machine;
  machine.add(model());
  machine.files[0]->data().resize(machine.files[0]->data().size() - 71'000);
  Pair pair(nullptr, machine.home);
  load(pair, model(), random);
  // The end of the third tensor, and the last one.
  CHECK(pair.crossed_bytes == kChunkBytes + 70'000);
}

TEST(a_file_that_changes_between_two_reads_gives_nothing_wrong) {
  Random random(6);
  Machine machine;
  machine.add(model());
  machine.files[0]->before_read([reads = 0](models::Memory& self, std::uint64_t) mutable {
    if (++reads == 3) std::ranges::fill(self.data(), '!');
  });
  Pair pair(nullptr, machine.home);
  load(pair, model(), random);
  CHECK(pair.counts.home_bytes == 2 * kChunkBytes);
}

TEST(a_recalled_tensor_needs_no_bytes_of_the_client) {
  Random random(7);
  Machine here, there;
  here.add(model());
  there.add(model());
  Pair pair(&here.home, there.home);
  load(pair, model(), random, true);
  CHECK(pair.crossed_bytes == 0 && pair.messages == 4);
  CHECK(pair.counts.home_bytes == 4 * kChunkBytes + 5 + 71'000);
}

TEST(what_is_recalled_and_gone_comes_from_the_file_of_the_head) {
  Random random(8);
  Machine here, there;
  here.add(model());
  there.add(model());
  // After its table was made, by somebody who leaves no trace.
  std::string& data = there.files[0]->data();
  data[data.size() - 71'000] = static_cast<char>(data[data.size() - 71'000] ^ 1);
  Pair pair(&here.home, there.home);
  load(pair, model(), random, true);
  CHECK(pair.crossed_bytes == kChunkBytes && pair.counts.tensors_differ == 1);
}

TEST(without_a_file_of_the_head_nothing_is_recalled) {
  Machine there;
  there.add(model());
  dllm::weights::WeightCounts counts;
  const auto can = [&](const dllm::weights::ResidentWeights* own, const Made& made,
                       std::uint64_t fnv1a) {
    return ChunkSender(counts, own).can_recall(models::key_of(made), fnv1a);
  };
  const Made one = model()[0], strange = tensor("no", "1");
  const std::uint64_t hash = models::fnv1a_of(one.data);
  CHECK(!can(nullptr, one, hash));
  CHECK(!can(&there.home, strange, models::fnv1a_of(strange.data)));
  CHECK(!can(&there.home, one, hash + 1));
  CHECK(can(&there.home, one, hash));
}

TEST(a_recalled_tensor_that_nobody_has_any_more_ends_the_session) {
  Machine here;
  here.add(model());
  dllm::weights::WeightCounts counts;
  ChunkSender head(counts, &here.home);
  here.files[0]->data().resize(100);
  head.recall(models::key_of(model()[1]), models::fnv1a_of(model()[1].data));
  CHECK(head.next().kind == Message::Kind::kRecall);
  head.answered(false);
  CHECK(!head.has_next() && !head.is_done());
  dllm::weights::Look next = head.next_look();
  dllm::weights::look(next);
  CHECK(contains(check::thrown<dllm::weights::ModelError>([&] { head.looked(next); }), "short"));
}

TEST(memory_is_bounded_at_both_ends) {
  Machine machine;
  machine.add({});
  dllm::weights::WeightCounts counts;
  ChunkReceiver worker(machine.home, counts);
  ChunkSender head(counts);
  const Made big = tensor("big", std::string(40 * kChunkBytes, 'b'));
  head.begin(models::key_of(big));
  while (head.room() > 0) head.add(models::bytes_of(big.data).first(head.room()));
  CHECK(head.lacks_bytes() == 24 * kChunkBytes);
  while (head.has_next()) worker.take(head.next());
  int steps = 0;
  for (; worker.can_look(); ++steps) CHECK(!models::look_once(worker));
  CHECK(steps == 8 && worker.ready().empty());
  for (int i = 0; i < steps; ++i) head.answered(false);
  // What crosses makes room.
  CHECK(head.room() == 0);
  while (head.has_next()) worker.take(head.next());
  CHECK(head.room() == 8 * kChunkBytes && !worker.can_look());
  while (!worker.ready().empty()) worker.written(worker.ready().size());
  CHECK(worker.can_look());
}

TEST(what_cannot_be_said_ends_the_session) {
  using enum Message::Kind;
  Machine machine;
  machine.add(model());
  const auto key = models::key_of(model()[0]);
  dllm::weights::WeightCounts counts;
  const auto fresh = [&] { return ChunkReceiver(machine.home, counts); };
  ChunkReceiver first = fresh(), second = fresh(), third = fresh(), fourth = fresh(),
                fifth = fresh();
  CHECK(contains(refused(first, {say(kOffer)}), "no tensor"));
  CHECK(contains(refused(second, {say(kRefer, key), say(kRefer, key)}), "before long has ended"));
  CHECK(contains(refused(third, {say(kRecall, models::key_of(tensor("no", "1")))}), "never here"));
  CHECK(contains(refused(fourth, {say(kNeeded), say(kAnswer)}), "not asked"));
  const std::string unasked = "x";
  Message piece = say(kNeeded);
  piece.piece = models::bytes_of(unasked);
  CHECK(contains(refused(fifth, {piece}), "nobody needs"));
  CHECK(contains(check::thrown<BadMessage>([&] { ChunkSender(counts).answered(true); }),
                 "not offered"));
}

TEST(bytes_that_are_not_those_announced_end_the_session) {
  using enum Message::Kind;
  Machine machine;
  dllm::weights::WeightCounts counts;
  ChunkReceiver worker(machine.home, counts);
  worker.take(say(kRefer, models::key_of(tensor("one", "12"))));
  worker.take(offer("12"));
  CHECK(!models::look_once(worker));
  const std::string others = "13";
  Message piece = say(kNeeded);
  piece.piece = models::bytes_of(others);
  CHECK(contains(refused(worker, {piece}), "not those announced"));
}

TEST(a_recalled_tensor_with_another_blake3_is_asked_for) {
  using enum Message::Kind;
  const Made made = tensor("one", "12");
  Machine machine;
  machine.add({made});
  for (const bool same : {true, false}) {
    dllm::weights::WeightCounts counts;
    ChunkReceiver worker(machine.home, counts);
    Message recall = say(kRecall, models::key_of(made));
    recall.fnv1a = models::fnv1a_of(made.data);
    recall.blake3 = dllm::weights::blake3(models::bytes_of(made.data));
    recall.blake3[9] ^= same ? 0 : 1;
    worker.take(recall);
    CHECK(models::look_once(worker) == same);
  }
}

TEST(only_bytes_with_the_blake3_offered_are_had) {
  using enum Message::Kind;
  Machine machine;
  machine.add({tensor("one", "12")});
  for (const std::string data : {"12", "13"}) {
    dllm::weights::WeightCounts counts;
    ChunkReceiver worker(machine.home, counts);
    worker.take(say(kRefer, models::key_of(tensor("one", "12"))));
    worker.take(offer(data));
    CHECK(models::look_once(worker) == (data == "12"));
  }
}

TEST(messages_are_read_as_they_were_written) {
  using enum Message::Kind;
  const auto key = models::key_of(model()[0]);
  Message recall = say(kRecall, key);
  recall.fnv1a = ~0ULL;
  recall.blake3[0] = 7;
  for (const Message& said : {say(kRefer, key), recall, offer("")}) {
    const auto data = encode(said);
    const Message read = dllm::weights::decode(data);
    CHECK(read.kind == said.kind && read.key == said.key && read.fnv1a == said.fnv1a);
    CHECK(read.blake3 == said.blake3);
    for (std::size_t size = 0; size < data.size(); ++size) {
      CHECK(!check::thrown<BadMessage>([&] {
               dllm::weights::decode(dllm::weights::Bytes(data).first(size));
             }).empty());
    }
  }
  CHECK(!check::thrown<BadMessage>([] { dllm::weights::decode(models::bytes_of("\10")); }).empty());
  CHECK(
      !check::thrown<BadMessage>([] { dllm::weights::decode(models::bytes_of("\5\1x")); }).empty());
}

TEST(lists_of_any_length) {
  ResidentWeights home;
  std::vector<Made> many;
  for (int i = 0; i < 3000; ++i)
    many.push_back(tensor(std::string("blk.").append(std::to_string(i)), "1234"));
  auto files = models::opened({gguf(many)});
  auto sums = models::sums_of(files);
  sums.resize(2000);
  home.add(std::move(files), std::move(sums));
  std::vector<dllm::weights::Listed> read;
  const auto messages = dllm::weights::encode_list(home.list());
  CHECK(messages.size() > 1);
  for (const auto& message : messages) {
    CHECK(message.size() <= dllm::weights::kMessageBytesMax);
    dllm::weights::decode_list(message, read);
  }
  CHECK(read == home.list() && read.size() == 3000);
  const auto known = std::ranges::count_if(read, [](const auto& one) { return one.fnv1a != 0; });
  CHECK(known == 2000);
}

// Against a plain pipe: any model, any machine, any order of what happens.
TEST(whatever_happens_the_same_bytes_arrive) {
  const int rounds =
      std::getenv("DLLM_ROUNDS") != nullptr ? std::atoi(std::getenv("DLLM_ROUNDS")) : 40;
  const std::uint32_t first = std::random_device{}();
  for (std::uint32_t seed = first; seed < first + static_cast<std::uint32_t>(rounds); ++seed) {
    Random random(seed);
    std::vector<Made> tensors;
    for (std::uint32_t i = 0; i < 1 + random() % 6; ++i) {
      const std::size_t sizes[] = {random() % 2000, random() % (3 * kChunkBytes),
                                   random() % 3 * kChunkBytes, kChunkBytes + random() % 3 - 1};
      tensors.push_back(
          tensor(std::string("t").append(std::to_string(i)), noise(random(), sizes[random() % 4])));
    }
    Machine here, there;
    here.add(tensors);
    for (std::uint32_t copies = random() % 3; copies > 0; --copies) {
      std::vector<Made> held = tensors;
      for (std::uint32_t edits = random() % 4; edits > 0; --edits) {
        Made& made = held[random() % held.size()];
        if (!made.data.empty()) made.data[random() % made.data.size()] ^= 1;
      }
      if (random() % 3 == 0) held.erase(held.begin() + static_cast<long>(random() % held.size()));
      there.add(held);
      if (random() % 4 == 0) {
        std::string& data = there.files.back()->data();
        data.resize(data.size() - random() % (data.size() / 2 + 1));
      }
      if (random() % 4 == 0) {
        there.files.back()->before_read([left = random() % 9](auto& self, std::uint64_t) mutable {
          if (left-- == 0) std::ranges::fill(self.data(), 'z');
        });
      }
    }
    Pair pair(&here.home, there.home);
    const int failures = check::failures;
    load(pair, tensors, random, random() % 2 == 0);
    CHECK(pair.counts.needed_bytes == pair.crossed_bytes);
    CHECK(pair.counts.tensors == tensors.size());
    const auto& [head, worker] = std::tie(pair.head_counts, pair.counts);
    CHECK(head.home_bytes == worker.home_bytes && head.needed_bytes == worker.needed_bytes);
    CHECK(head.tensors == worker.tensors && head.tensors_differ >= worker.tensors_differ);
    CHECK(head.tensors_differ <= worker.tensors_differ + worker.tensors_missing);
    if (check::failures > failures) std::printf("with seed %u\n", seed);
  }
}

RUN_TESTS()
