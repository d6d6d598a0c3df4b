// Weights that stay home, over both ends as they run: whatever the worker's files hold, its
// rpc-server gets what the client sent.
#include "weights_loads.h"

using namespace home_loads;

constexpr std::uint64_t kFlushesBytes = 1000;

TEST(what_is_at_home_does_not_cross) {
  Random random(1);
  Files there(model());
  Pair pair({}, dllm::kGoneAfter, there.home);
  for (std::uint64_t load = 1; load <= 2; ++load) {
    Talk talk(pair);
    CHECK(talk.loads(requests_for(model()), random));
    const auto tally = counted(pair, load * model().size(), load * bytes_of_all(model()));
    CHECK(tally.weight_bytes_sent == 0 && tally.tensors_differ == 0 && tally.tensors_missing == 0);
    CHECK(tally.weight_bytes_home == load * bytes_of_all(model()));
    CHECK(tally.wire_bytes_up < load * 20'000);
    talk.client.reset();
    CHECK(read_to_end(talk.server.get()).empty());
    talk.server.reset();
    pair.head.outcome.wait();
  }
  // Counted as the client said it.
  CHECK(pair.head.tally().commands[dllm::kSetTensor].bytes_up == 2 * requests_for(model()).size());
}

TEST(every_byte_belongs_to_a_command_or_to_the_link_itself) {
  std::vector<Made> part = model();
  part.resize(3);
  Files there(part);
  std::uint64_t up_plain = 0;
  for (const bool is_sealed : {false, true}) {
    Random random(9);
    Pair pair(is_sealed ? std::optional(kKey) : std::nullopt, dllm::kGoneAfter, there.home);
    if (is_sealed) pair.head.link.lab.set({1, 0.1, 200, 1});
    Talk talk(pair);
    CHECK(talk.loads(requests_for(model()), random));
    counted(pair, model().size(), bytes_of_all(model()));
    if (!is_sealed) CHECK(is_split_rightly(pair));
    // Whatever is around them, and however long they wait: the same, but for the few bytes of
    // each flush of the compression, which comes where the client's bytes pause.
    CHECK(until([&] {
      const std::uint64_t up = Split(pair.head.tally()).up;
      return !is_sealed || (up + kFlushesBytes > up_plain && up < up_plain + kFlushesBytes);
    }));
    CHECK(until([&] {
      const dllm::Tally tally = pair.head.tally();
      return tally.commands[dllm::kGetDeviceMemory].wire_bytes_down == kTold.size();
    }));
    const dllm::Tally tally = pair.head.tally();
    const Split split(tally);
    CHECK(split.adds_up());
    if (!is_sealed) up_plain = split.up;
    const auto& weights = tally.commands[dllm::kSetTensor];
    const std::uint64_t sent = split.whole.weight_bytes_sent;
    std::uint64_t hashes = 0;
    for (const Made& made : model()) hashes += dllm::weights::chunks_in(made.data.size());
    const std::uint64_t most = sent + hashes * sizeof(dllm::weights::Blake3Hash) + 1000;
    CHECK(weights.wire_bytes_up > sent && weights.wire_bytes_up < most);
    CHECK(weights.wire_bytes_down > weights.bytes_down);
  }
}

TEST(a_worker_without_models_is_sent_them) {
  Random random(2);
  Pair pair;
  Talk talk(pair);
  CHECK(talk.loads(requests_for(model()), random));
  const auto tally = counted(pair, model().size(), bytes_of_all(model()));
  CHECK(tally.tensors_missing == model().size() && tally.weight_bytes_home == 0);
  CHECK(tally.weight_bytes_sent == bytes_of_all(model()));
}

TEST(another_file_costs_the_chunks_that_differ_and_is_told) {
  Random random(3);
  std::vector<Made> others = model();
  others[0].data[kChunkBytes + 7] ^= 1;
  others[3].data[0] ^= 1;
  others.erase(others.begin() + 1);
  Files there(others);
  Pair pair({}, dllm::kGoneAfter, there.home);
  Talk talk(pair);
  CHECK(talk.loads(requests_for(model()), random));
  const auto tally = counted(pair, model().size(), bytes_of_all(model()));
  CHECK(tally.tensors_differ == 2 && tally.tensors_missing == 1);
  CHECK(tally.weight_bytes_sent == kChunkBytes + 70'001 + 1000);
  CHECK(until([&] { return pair.head.was_told("2 of 5 tensors differ: another file?"); }));
}

TEST(a_known_hash_needs_no_bytes_of_the_client) {
  Files here(model()), there(model());
  Pair pair({}, dllm::kGoneAfter, there.home, here.home);
  Talk talk(pair);
  const Made& made = model()[0];
  write_text(talk.client.get(), ask_hash(made));
  const std::string expected = set_weight(made, false);
  CHECK(read_text(talk.server.get(), expected.size()) == expected);
  CHECK(read_text(talk.client.get(), 9) == transcript::reply("\1"));
  const auto tally = counted(pair, 1, made.data.size());
  CHECK(tally.weight_bytes_sent == 0 && tally.weight_bytes_home == made.data.size());
  CHECK(pair.head.tally().commands[dllm::kSetTensorHash].answered == 1);
}

TEST(without_both_tables_the_bytes_are_asked_for_and_stay_home_all_the_same) {
  Random random(4);
  for (const bool knows_there : {false, true}) {
    Files here(model(), !knows_there), there(model(), knows_there);
    Pair pair({}, dllm::kGoneAfter, there.home, here.home);
    Talk talk(pair);
    write_text(talk.client.get(), ask_hash(model()[0]));
    CHECK(read_text(talk.client.get(), 9) == transcript::reply(std::string(1, '\0')));
    CHECK(talk.loads(set_weight(model()[0]), random));
    CHECK(counted(pair, 1, model()[0].data.size()).weight_bytes_sent == 0);
  }
}

TEST(what_is_recalled_and_has_changed_comes_from_the_head_or_ends_the_session) {
  for (const bool has_here : {true, false}) {
    Files here(model()), there(model());
    Pair pair({}, dllm::kGoneAfter, there.home, here.home);
    Talk talk(pair);
    std::ranges::fill(there.files[0]->data(), 'x');
    if (!has_here) std::ranges::fill(here.files[0]->data(), 'x');
    write_text(talk.client.get(), ask_hash(model()[0]));
    CHECK(read_text(talk.client.get(), 9) == transcript::reply("\1"));
    if (has_here) {
      const std::string expected = set_weight(model()[0], false);
      CHECK(read_text(talk.server.get(), expected.size()) == expected);
      CHECK(counted(pair, 1, model()[0].data.size()).weight_bytes_sent == model()[0].data.size());
    } else {
      CHECK(pair.head.outcome.get() == Outcome::kWorkerLeft);
      CHECK(until([&] { return pair.head.was_told("blk.0.weight has changed"); }));
      // The rpc-server sees its client go, and the next one is served.
      read_to_end(talk.server.get());
      talk.server.reset();
      Talk next(pair);
    }
  }
}

TEST(a_disk_that_is_slow_keeps_the_link) {
  Random random(5);
  Files there(model());
  there.files[0]->before_read([](models::Memory&, std::uint64_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  });
  Pair pair({}, 2 * dllm::kNanosPerSecond, there.home);
  Talk talk(pair);
  CHECK(talk.loads(requests_for(model()), random));
  CHECK(counted(pair, model().size(), bytes_of_all(model())).weight_bytes_sent == 0);
  CHECK(!pair.head.was_told("the link broke") && !pair.head.was_told("not been heard"));
}

TEST(a_disk_that_hangs_longer_than_silence_is_borne_keeps_the_link) {
  Random random(5);
  Files there(model());
  there.files[0]->before_read([hung = false](models::Memory&, std::uint64_t) mutable {
    if (!std::exchange(hung, true)) std::this_thread::sleep_for(std::chrono::seconds(3));
  });
  Pair pair({}, dllm::kNanosPerSecond, there.home);
  Talk talk(pair);
  CHECK(talk.loads(requests_for(model()), random));
  CHECK(counted(pair, model().size(), bytes_of_all(model())).weight_bytes_sent == 0);
  CHECK(!pair.head.was_told("the link broke"));
}

TEST(a_disk_of_the_head_that_hangs_keeps_the_link) {
  Files here(model()), there(model());
  std::ranges::fill(there.files[0]->data(), 'x');
  here.files[0]->before_read([hung = false](models::Memory&, std::uint64_t) mutable {
    if (!std::exchange(hung, true)) std::this_thread::sleep_for(std::chrono::seconds(3));
  });
  Pair pair({}, dllm::kNanosPerSecond, there.home, here.home);
  Talk talk(pair);
  write_text(talk.client.get(), ask_hash(model()[0]));
  CHECK(read_text(talk.client.get(), 9) == transcript::reply("\1"));
  const std::string expected = set_weight(model()[0], false);
  CHECK(read_text(talk.server.get(), expected.size()) == expected);
  CHECK(!pair.head.was_told("the link broke"));
}

TEST(what_cannot_be_foreseen_ends_one_session_alone) {
  const auto odd = [](models::Memory&, std::uint64_t) { throw std::logic_error("unforeseen"); };
  Random random(5);
  Files here(model()), there(model());
  there.files[0]->before_read(odd);
  Pair pair({}, dllm::kGoneAfter, there.home, here.home);
  {
    // At the worker's end a file that cannot be read is one that differs.
    Talk talk(pair);
    CHECK(talk.loads(requests_for(model()), random));
  }
  here.files[0]->before_read(odd);
  {
    Talk talk(pair);
    write_text(talk.client.get(), ask_hash(model()[0]));
    CHECK(read_text(talk.client.get(), 9) == transcript::reply("\1"));
    CHECK(pair.head.outcome.get() == Outcome::kWorkerLeft);
    read_to_end(talk.server.get());
  }
  here.files[0]->before_read({});
  Talk talk(pair);
  CHECK(talk.loads(requests_for(model()), random));
  CHECK(!pair.head.was_told("the link broke"));
}

TEST(a_load_goes_on_over_any_cut) {
  Random random(6);
  Files there(model());
  Pair pair(kKey, dllm::kGoneAfter, there.home);
  Talk talk(pair);
  for (int cut = 0; cut < 12; ++cut) {
    pair.between.cut_after(1 + random() % 500);
    CHECK(talk.loads(requests_for(model()), random));
    CHECK(until([&] { return pair.between.is_cut(); }));
  }
  pair.between.cut_often(100'000);
  for (int load = 0; load < 3; ++load) CHECK(talk.loads(requests_for(model()), random));
  CHECK(!pair.head.was_told("the link broke"));
}

TEST(a_server_that_is_gone_in_a_load_is_told) {
  Files there(model());
  Pair pair({}, dllm::kGoneAfter, there.home);
  Talk talk(pair);
  std::thread asking([&] { write_text(talk.client.get(), requests_for(model())); });
  CHECK(read_text(talk.server.get(), kChunkBytes).size() == kChunkBytes);
  talk.server.reset();
  read_to_end(talk.client.get());
  talk.client.reset();
  asking.join();
  CHECK(pair.head.outcome.get() == Outcome::kWorkerLeft);
}

TEST(a_head_that_talks_nonsense_of_weights_loses_its_session_alone) {
  using link_ends::frame;
  check::TempDir dir;
  const UniqueFd server = dllm::listen_unix(dir / "server");
  Files there(model());
  Worker worker({path_in(dir, "worker"), false, {}}, path_in(dir, "server"), there.home);
  const UniqueFd head = dllm::connect_to(path_in(dir, "worker"));
  dllm::link::ByteQueue said;
  const auto hello = link_ends::hello_of(link_ends::Role::kHead, dllm::link::kHome);
  said.append(encode(hello));
  const auto home = [](std::uint32_t session, const std::string& message) {
    return frame(0x10, session, "") + frame(0x30, session, message);
  };
  write_text(head.get(), link_ends::taken(said) + frame(0x04, 0, "") + home(1, "\10") +
                             home(2, std::string(1, '\4') + "unasked") + home(3, ""));
  std::string heard;
  const auto is_told = [&](const char* why) {
    while (!check::contains(heard, why)) {
      const std::string more = read_text(head.get(), 1);
      if (more.size() != 1) return false;
      heard += more;
    }
    return true;
  };
  CHECK(is_told("blk.0.weight"));
  CHECK(is_told("there is no message 8"));
  CHECK(is_told("bytes come that nobody needs"));
  CHECK(is_told("ends too early"));
  // An offer without a tensor is only understood in its turn, when the rpc-server is there.
  const dllm::weights::Message offer{.kind = dllm::weights::Message::Kind::kOffer};
  const auto offered = encode(offer);
  write_text(head.get(), home(4, {offered.begin(), offered.end()}));
  CHECK(is_told("belongs to no tensor"));
}

// Against a plain pipe: any model, any file there, any order of requests.
TEST(whatever_is_there_the_same_bytes_arrive) {
  const int rounds =
      std::getenv("DLLM_ROUNDS") != nullptr ? std::atoi(std::getenv("DLLM_ROUNDS")) : 12;
  const std::uint32_t first = std::random_device{}();
  for (std::uint32_t seed = first; seed < first + static_cast<std::uint32_t>(rounds); ++seed) {
    Random random(seed);
    std::vector<Made> tensors;
    for (int i = 0; i < 1 + static_cast<int>(random() % 40); ++i) {
      const std::size_t sizes[] = {1 + random() % 2000, 1 + random() % 100'000,
                                   kChunkBytes + random() % 3 - 1,
                                   1 + random() % (3 * kChunkBytes)};
      tensors.push_back(weight(i, models::noise(static_cast<std::uint32_t>(random()),
                                                sizes[random() % (i < 4 ? 4 : 2)])));
    }
    Files here(tensors), there(tensors);
    for (std::uint32_t edits = random() % 4; edits > 0; --edits) {
      std::string& data = there.files[0]->data();
      data[random() % data.size()] ^= 1;
    }
    if (random() % 3 == 0)
      there.files[0]->data().resize(there.files[0]->data().size() * 3 / 4);
    if (random() % 4 == 0) {
      there.files[0]->before_read([left = random() % 9](auto& self, std::uint64_t) mutable {
        if (left-- == 0) std::ranges::fill(self.data(), 'z');
      });
    }
    Pair pair(random() % 2 ? std::optional(kKey) : std::nullopt, dllm::kGoneAfter, there.home,
              here.home);
    Talk talk(pair);
    std::string requests;
    for (const Made& made : tensors) {
      if (random() % 3 == 0) requests += transcript::recompute(k7);
      requests += set_weight(made);
    }
    const int failures = check::failures;
    CHECK(talk.loads(requests, random));
    const auto tally = counted(pair, tensors.size(), bytes_of_all(tensors));
    CHECK(tally.weight_bytes_home + tally.weight_bytes_sent == bytes_of_all(tensors));
    if (check::failures > failures) std::printf("with seed %u\n", seed);
  }
}

TEST(a_tensor_without_bytes_is_no_reference_and_disturbs_none) {
  const Made none = weight(9, ""), some = weight(1, models::noise(4, 1000));
  Files there({none, some}), here({none, some});
  dllm::link::HeadWeights weights{here.home, {}, {}};
  for (auto& message : dllm::weights::encode_list(there.home.list())) weights.listing.add(message);
  link_ends::Link link(dllm::link::kHome);
  dllm::link::RequestSender up(weights);
  up.begin(link.head.link);
  const auto sums = models::sums_of(models::opened({models::gguf({none, some})}));
  const auto recalls = [&](const Made& made, std::size_t i) {
    const std::string tensor = row_in_buffer(made);
    return up.recalls(dllm::Tensor(reinterpret_cast<const std::uint8_t*>(tensor.data())),
                      sums[i].fnv1a);
  };
  CHECK(recalls(none, 0) == 0);
  CHECK(!up.has_decided());
  CHECK(recalls(some, 1) == some.data.size());
  CHECK(up.has_decided());
}

TEST(more_tensors_than_can_be_listed_cross_and_the_link_holds) {
  Files there({});
  const std::string name(50, 'n');
  for (int model = 0; model < 4; ++model) {
    std::vector<Made> tensors;
    for (int i = 0; i < 60'000; ++i) {
      tensors.push_back(models::tensor(name + std::to_string(i), "d"));
    }
    there.add(tensors, false);
  }
  Pair pair(kKey, dllm::kGoneAfter, there.home);
  const UniqueFd client = pair.head.connect(), server = pair.accept();
  greet(client.get(), server.get());
  CHECK(!pair.head.was_told("the link broke"));
  const std::lock_guard lock(pair.worker.link.mutex);
  CHECK(check::contains(pair.worker.link.told.back(), "more tensors than can be listed"));
}

int main() {
  ::signal(SIGPIPE, SIG_IGN);
  return check::run_tests();
}
