// A head whose file has holes, over both ends as they run: its worker gets what the holes stand for
// from files of its own, or nothing; never the zeros that llama-server reads there.
#include <filesystem>
#include <fstream>

#include "weights_loads.h"

using namespace home_loads;

namespace {

const std::set<std::string> kEnds = {"blk.0.weight", "blk.4.weight"};
const std::set<std::string> kMiddle = {"blk.1.weight", "blk.2.weight", "blk.3.weight"};

// Sparse files, with these tensors in them.
struct Sparse : Files {
  explicit Sparse(const std::set<std::string>& kept) : Files({}) {
    home.add(models::opened({models::sparse_gguf(model(), kept)}, &files));
  }
};

// What llama-server reads of the model where all but these are holes.
std::vector<Made> as_read(const std::set<std::string>& kept) {
  std::vector<Made> tensors = model();
  for (Made& made : tensors) {
    if (!kept.contains(made.name)) std::ranges::fill(made.data, '\0');
  }
  return tensors;
}

// Whether these requests end the session, the reason holds this, and no data came of the last.
bool ends_load(Pair& pair, const std::string& requests, const char* why) {
  Talk talk(pair);
  std::thread asking([&] { write_text(talk.client.get(), requests); });
  const std::string got = read_to_end(talk.server.get());
  talk.server.reset();
  read_to_end(talk.client.get());
  talk.client.reset();
  asking.join();
  CHECK(pair.head.outcome.get() == Outcome::kWorkerLeft);
  CHECK(until([&] { return pair.head.was_told(why); }));
  CHECK(check::contains(pair.head.tally().refused_reason, why));
  return got.size() < 2 * set_weight(model()[4]).size();
}

}  // namespace

TEST(holes_are_filled_by_the_worker) {
  Random random(1);
  Sparse here(kEnds);
  Files whole(model());
  Sparse rest(kMiddle);
  for (const Files* there : {static_cast<const Files*>(&whole), static_cast<const Files*>(&rest)}) {
    Pair pair({}, dllm::kGoneAfter, there->home, here.home);
    Talk talk(pair);
    std::vector<Made> read = as_read(kEnds), meant = model();
    for (auto* tensors : {&read, &meant}) {
      std::erase_if(*tensors, [](const Made& made) { return kEnds.contains(made.name); });
    }
    CHECK(talk.loads(requests_for(read), random, requests_for(meant)));
    const auto tally = counted(pair, meant.size(), bytes_of_all(meant));
    CHECK(tally.weight_bytes_sent == 0 && tally.tensors_differ == 0 && tally.tensors_missing == 0);
    CHECK(tally.wire_bytes_up < 20'000);
  }
}

TEST(what_is_there_crosses_as_ever) {
  Random random(2);
  Sparse here(kEnds), there(kMiddle);
  Pair pair({}, dllm::kGoneAfter, there.home, here.home);
  Talk talk(pair);
  CHECK(talk.loads(requests_for(as_read(kEnds)), random, requests_for(model())));
  const auto tally = counted(pair, model().size(), bytes_of_all(model()));
  CHECK(tally.tensors_missing == 2);
  CHECK(tally.weight_bytes_sent == model()[0].data.size() + model()[4].data.size());
}

TEST(a_hole_has_no_hash) {
  Random random(3);
  Sparse here(kEnds);
  Files there(model());
  Pair pair({}, dllm::kGoneAfter, there.home, here.home);
  Talk talk(pair);
  const Made read = as_read(kEnds)[2];
  for (const Made& asked : {read, model()[2]}) {
    write_text(talk.client.get(), ask_hash(asked));
    CHECK(read_text(talk.client.get(), 9) == transcript::reply(std::string(1, '\0')));
  }
  CHECK(talk.loads(set_weight(read), random, set_weight(model()[2])));
}

TEST(the_model_itself_may_stand_in_the_place_of_a_sparse_file) {
  Random random(4);
  Sparse here(kEnds);
  Files there(model());
  Pair pair({}, dllm::kGoneAfter, there.home, here.home);
  Talk talk(pair);
  CHECK(talk.loads(requests_for(model()), random));
}

TEST(no_hole_is_sent) {
  Sparse here(kEnds);
  const std::vector<Made> read = as_read(kEnds);
  {
    Files there({model()[0], model()[2]});
    Pair pair({}, dllm::kGoneAfter, there.home, here.home);
    CHECK(ends_load(pair, set_weight(read[1]), "blk.1.weight is a hole"));
    // Whoever comes next is served, and is refused the same.
    CHECK(ends_load(pair, set_weight(read[3]), "in no file of the worker's machine"));
  }
  {
    Sparse there(kEnds);
    Pair pair({}, dllm::kGoneAfter, there.home, here.home);
    CHECK(ends_load(pair, set_weight(read[1]), "in no file of the worker's machine"));
  }
  {
    Pair pair({}, dllm::kGoneAfter, no_models(), here.home);
    CHECK(ends_load(pair, set_weight(read[1]), "in no file of the worker's machine"));
  }
}

TEST(other_bytes_are_no_stand_in) {
  Sparse here(kEnds);
  std::vector<Made> others = model();
  others[1].data[7] ^= 1;
  Files there(others);
  Pair pair({}, dllm::kGoneAfter, there.home, here.home);
  CHECK(ends_load(pair, set_weight(as_read(kEnds)[1]), "blk.1.weight holds other bytes"));
}

TEST(a_tensor_of_another_model_is_not_taken_for_a_hole) {
  Sparse here(kEnds);
  Files there(model());
  Pair pair({}, dllm::kGoneAfter, there.home, here.home);
  Made other = model()[1];
  other.data[3] ^= 1;
  CHECK(ends_load(pair, set_weight(other), "blk.1.weight comes from another model"));
  Made shorter = models::tensor(other.name, std::string(999, '\0'));
  CHECK(ends_load(pair, set_weight(shorter), "another tensor of that name"));
  Made part = as_read(kEnds)[1];
  std::string request = set_weight(part);
  const std::size_t offset_at = request.size() - part.data.size() - sizeof(std::uint64_t);
  request[offset_at] = 1;
  request.resize(request.size() - 1);
  transcript::write<std::uint64_t>(request, 1, request.size() - 9);
  CHECK(ends_load(pair, request, "or a part of it"));
}

TEST(a_hole_that_comes_in_rows_is_not_sent) {
  const transcript::Version version{8, 0, 0};
  Sparse here(kEnds);
  Files there(model());
  Pair pair({}, dllm::kGoneAfter, there.home, here.home);
  UniqueFd client = pair.head.connect(), server = pair.accept();
  greet(client.get(), server.get(), version);
  const Made rows = as_read(kEnds)[3];
  std::string payload = row_in_buffer(rows);
  for (const std::uint64_t field : {std::uint64_t{0}, std::uint64_t{rows.data.size()},
                                    std::uint64_t{1}, std::uint64_t{rows.data.size()}}) {
    transcript::put(payload, field);
  }
  write_text(client.get(), transcript::request(dllm::kSetTensor2d, payload + rows.data));
  CHECK(read_to_end(server.get()).empty());
  CHECK(until([&] { return pair.head.was_told("blk.3.weight is a hole"); }));
  client.reset();
  server.reset();
  CHECK(pair.head.outcome.get() == Outcome::kWorkerLeft);
}

TEST(a_sparse_file_that_was_changed_since_is_not_read) {
  const check::TempDir folder;
  const std::string path = folder.path() + "/head.gguf";
  const auto put = [&](const std::string& at, const std::set<std::string>& kept) {
    std::ofstream(at, std::ios::binary) << models::sparse_gguf(model(), kept);
  };
  put(path, kEnds);
  dllm::weights::ResidentWeights here;
  here.open_sparse(path);
  Files there(model());
  Pair pair({}, dllm::kGoneAfter, there.home, here);
  Random random(6);
  const std::string asked = set_weight(as_read(kEnds)[1]) + set_weight(model()[4]);
  {
    Talk talk(pair);
    CHECK(talk.loads(asked, random, set_weight(model()[1]) + set_weight(model()[4])));
  }
  // One in its place that lacks more: its zeros come by names that had no hole before.
  put(path + ".new", {"blk.0.weight"});
  std::filesystem::rename(path + ".new", path);
  CHECK(ends_load(pair, set_weight(as_read({"blk.0.weight"})[4]), "was changed after its holes"));
}

TEST(what_is_not_understood_is_not_sent) {
  Sparse here(kEnds);
  Files there(model());
  for (const transcript::Version version :
       {transcript::Version{6, 0, 0}, transcript::Version{99, 0, 0}}) {
    Pair pair({}, dllm::kGoneAfter, there.home, here.home);
    UniqueFd client = pair.head.connect(), server = pair.accept();
    const std::string asked = transcript::hello(version);
    const std::string told = transcript::hello_reply(version);
    write_text(client.get(), asked);
    CHECK(read_text(server.get(), asked.size()) == asked);
    write_text(server.get(), told);
    CHECK(read_text(client.get(), told.size()) == told);
    write_text(client.get(), kAsk + set_weight(as_read(kEnds)[4]));
    CHECK(read_to_end(server.get()).empty());
    CHECK(until([&] { return pair.head.was_told("an RPC protocol that is not understood"); }));
    client.reset();
    server.reset();
    CHECK(pair.head.outcome.get() == Outcome::kWorkerLeft);
  }
}

int main() {
  ::signal(SIGPIPE, SIG_IGN);
  return check::run_tests();
}
