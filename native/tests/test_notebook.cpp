// What the relay beside a worker remembers: of which rpc-server, and from one relay to the next.
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "pair/notebook.h"
#include "posix.h"
#include "starts.h"

using namespace starts;
using check::TempDir;
using dllm::pair::decode_notebook;
using dllm::pair::encode_notebook;
using dllm::pair::Notebook;

namespace {

// Its last news are kept.
void end(Notebook& notebook) {
  dllm::Pipe stop = dllm::make_pipe();
  stop.writer.reset();
  notebook.run(stop.reader.get());
}

}  // namespace

TEST(what_another_set_of_devices_was_asked_is_forgotten) {
  struct Other final : Server {
    using Server::Server;
    std::string answer(std::uint8_t id, const std::string& fields) override {
      if (id == changed) return reply(std::string(id == dllm::kDeviceCount ? 4 : 8, '\1'));
      return Server::answer(id, fields);
    }
    int changed = -1;
  };
  for (const int id : {dllm::kDeviceCount, dllm::kGetAlignment, dllm::kGetMaxSize}) {
    Accountant usual(k8);
    Relays before(usual);
    begin(before, kUsual);
    Other server(k8);
    server.changed = id;
    Relays relays(server);
    relays.far.precedents = before.far.precedents;
    Connection first(relays);
    first.ask(hello(k8));
    CHECK(server.count(dllm::kGetAllocSize) == 0);
    CHECK(relays.far.precedents.sizes().empty() && relays.far.precedents.rows().empty());
  }
}

TEST(questions_that_may_have_been_too_much_are_not_asked_again) {
  Accountant server(k8);
  Relays relays(server);
  begin(relays, kUsual);
  relays.near.answers.forget();
  Session far(relays.far);
  far.ask_ahead(true);
  std::string asked = hello(k8);
  std::string replies = server.answer(text(far.requests(bytes_of(asked), relays.now)));
  far.replies(bytes_of(replies), relays.now);
  CHECK(!far.own_requests(relays.now).worker.empty());
  // It broke off.
  far.take_held();
  CHECK(relays.far.precedents.sizes().empty() && relays.far.precedents.rows().empty());
}

TEST(questions_whose_replies_cannot_be_told_apart_are_not_asked_again) {
  Accountant server(k8);
  Relays relays(server);
  begin(relays, kUsual);
  Session far(relays.far);
  far.ask_ahead(true);
  std::string asked = hello(k8);
  std::string replies = server.answer(text(far.requests(bytes_of(asked), relays.now)));
  far.replies(bytes_of(replies), relays.now);
  CHECK(!far.own_requests(relays.now).worker.empty());
  std::string odd = reply("neither");
  far.replies(bytes_of(odd), relays.now);
  CHECK(far.is_contradicted());
  CHECK(relays.far.precedents.sizes().empty() && relays.far.precedents.rows().empty());
}

TEST(a_client_that_asks_how_many_devices_there_are_has_nothing_forgotten) {
  Accountant server(k8);
  Relays relays(server);
  begin(relays, kUsual);
  relays.near.answers.forget();
  Connection asking(relays);
  asking.ask(hello(k8));
  relays.near.answers.forget();
  CHECK(asking.ask(request(dllm::kDeviceCount, "")) == reply(bytes(std::uint32_t{2})));
  CHECK(asking.crossed && server.asked.back() == dllm::kGetDeviceMemory);
  CHECK(!relays.far.precedents.sizes().empty() && !relays.far.precedents.rows().empty());
}

TEST(the_first_start_through_the_next_relay_waits_for_a_greeting_and_a_buffer) {
  for (const Version version : {Version{6, 0, 0}, k7, k8}) {
    Accountant server(version);
    std::string notebook;
    {
      Relays relays(server);
      CHECK(begin(relays, kUsual, version, recompute(version)) == 1 + 3 + 2);
      notebook = encode_notebook(relays.far.precedents, "1.2");
    }
    Relays relays(server);
    const auto kept = decode_notebook(notebook, "1.2");
    CHECK(kept && encode_notebook(*kept, "1.2") == notebook);
    relays.far.precedents = *kept;
    CHECK(begin(relays, kUsual, version, recompute(version)) == 2);
    // Answers are this server's, whatever the memory is now.
    CHECK(server.count(dllm::kFreeBuffer) == 0 && server.count(dllm::kAllocBuffer) == 2 * 3);
  }
}

TEST(a_notebook_that_is_not_whole_or_of_another_release_tells_nothing) {
  Accountant server(k8);
  Relays relays(server);
  begin(relays, kUsual);
  const std::string notebook = encode_notebook(relays.far.precedents, "1.2");
  CHECK(!decode_notebook(notebook, "1.3") && !decode_notebook(notebook, "1.20"));
  Random random(5);
  for (std::size_t size = 0; size < notebook.size(); size += 1 + random() % 8) {
    CHECK(!decode_notebook(notebook.substr(0, size), "1.2"));
    std::string flipped = notebook;
    flipped[size] = static_cast<char>(flipped[size] ^ (1 << random() % 8));
    CHECK(!decode_notebook(flipped, "1.2"));
  }
  CHECK(!decode_notebook(notebook + '\0', "1.2"));
  // Whole, but nothing that could be asked.
  dllm::Precedents odd;
  odd.learn(k8);
  odd.size_asked("short");
  CHECK(!decode_notebook(encode_notebook(odd, "1.2"), "1.2"));
  odd.forget();
  odd.allocated({"longer than that"});
  CHECK(!decode_notebook(encode_notebook(odd, "1.2"), "1.2"));
  odd.learn(Version{99, 0, 0});
  CHECK(!decode_notebook(encode_notebook(odd, "1.2"), "1.2"));
}

TEST(the_longest_notebook_is_read_again) {
  dllm::Precedents most;
  most.learn(k8);
  for (std::uint32_t i = 0; i < dllm::Precedents::kSizesMax; ++i) most.size_asked(product(3 + i));
  for (std::uint64_t row = 0; row < dllm::Precedents::kRowsMax; ++row) {
    most.allocated(dllm::Precedents::Row(dllm::Precedents::kRowMax, bytes(0U, row)));
  }
  const auto kept = decode_notebook(encode_notebook(most, "1.2"), "1.2");
  CHECK(kept && kept->sizes() == most.sizes() && kept->rows() == most.rows());
}

TEST(a_notebook_is_kept_in_a_file_of_its_owner) {
  const TempDir folder;
  const std::string directory = folder / "cache/starts";
  const auto write_down = [&](dllm::Link& link) {
    Notebook notebook(link, directory, "1.2");
    dllm::Pipe stop = dllm::make_pipe();
    std::thread thread([&] { notebook.run(stop.reader.get()); });
    {
      const std::lock_guard lock(link.mutex);
      link.precedents.learn(k8);
      link.precedents.allocated({bytes(0U, kMiB)});
    }
    stop.writer.reset();
    thread.join();
    return notebook.path();
  };
  dllm::Link link("mini", false, true);
  const std::string path = write_down(link);
  struct stat status{};
  CHECK(::stat(path.c_str(), &status) == 0 && (status.st_mode & 0777) == 0600);
  CHECK(::stat(directory.c_str(), &status) == 0 && (status.st_mode & 0777) == 0700);
  dllm::Link next("mini", false, true), other("nuc", false, true), later("mini", false, true);
  CHECK(Notebook(next, directory, "1.2").path() == path);
  CHECK(next.precedents.rows() == link.precedents.rows());
  CHECK(Notebook(other, directory, "1.2").path() != path && other.precedents.rows().empty());
  const Notebook of_later(later, directory, "1.3");
  CHECK(later.precedents.rows().empty());
  // Junk in its place does no harm, and is replaced.
  check::spill(path, "junk");
  dllm::Link after("mini", false, true);
  CHECK(write_down(after) == path && after.told.empty());
  dllm::Link last("mini", false, true);
  const Notebook of_last(last, directory, "1.2");
  CHECK(last.precedents.rows() == after.precedents.rows());
}

TEST(two_heads_that_call_their_workers_the_same_keep_a_notebook_each) {
  const TempDir folder;
  dllm::Link ours("mini", false, true), theirs("mini", false, true);
  const Notebook of_ours(ours, folder / "starts", "1.2", "/run/ours/key");
  const Notebook of_theirs(theirs, folder / "starts", "1.2", "/run/theirs/key");
  CHECK(of_ours.path() != of_theirs.path());
  dllm::Link again("mini", false, true);
  CHECK(Notebook(again, folder / "starts", "1.2", "/run/ours/key").path() == of_ours.path());
}

TEST(of_many_notebooks_those_used_last_are_kept) {
  const TempDir folder;
  const std::string directory = folder / "starts";
  const auto file = [&](int worker) {
    return directory + "/" + std::to_string(worker) + ".starts";
  };
  std::filesystem::create_directory(directory);
  dllm::Link link("mini", false, true);
  link.precedents.learn(k8);
  Notebook notebook(link, directory, "1.2");
  link.precedents.allocated({bytes(0U, kMiB)});
  end(notebook);
  const std::filesystem::path first = notebook.path();
  using std::filesystem::file_time_type;
  const auto age = [](const std::filesystem::path& path, int days) {
    std::filesystem::last_write_time(path, file_time_type::clock::now() - std::chrono::days(days));
  };
  constexpr int kOthers = 80;
  for (int worker = 0; worker < kOthers; ++worker) {
    check::spill(file(worker), "another");
    age(file(worker), 1 + worker);
  }
  check::spill(file(0) + ".tmp", "of a relay that was killed");
  age(file(0) + ".tmp", 1000);
  age(first, 1000);
  // That it is read is use enough, and what is new elsewhere makes the others go.
  dllm::Link again("mini", false, true), other("nuc", false, true);
  const Notebook of_again(again, directory, "1.2");
  CHECK(again.precedents.rows() == link.precedents.rows());
  Notebook of_other(other, directory, "1.2");
  other.precedents.learn(k8);
  other.precedents.allocated({bytes(0U, kMiB)});
  end(of_other);
  CHECK(other.told.empty());
  CHECK(std::filesystem::exists(first) && std::filesystem::exists(of_other.path()));
  CHECK(!std::filesystem::exists(file(0) + ".tmp"));
  constexpr int kLeft = 64 - 2;
  for (int worker = 0; worker < kOthers; ++worker) {
    CHECK(std::filesystem::exists(file(worker)) == (worker < kLeft));
  }
}

TEST(where_nothing_can_be_kept_that_is_told_once_and_tried_again) {
  const TempDir folder;
  const std::string file = folder / "file";
  check::spill(file, "in the way");
  dllm::Link link("mini", false, true);
  link.precedents.learn(k8);
  Notebook notebook(link, file, "1.2");
  for (std::uint64_t size = 1; size < 3; ++size) {
    link.precedents.allocated({bytes(0U, size)});
    end(notebook);
  }
  CHECK(link.told.size() == 1 && link.told[0].starts_with("mini: cannot keep in " + file));
  CHECK(::unlink(file.c_str()) == 0);
  end(notebook);
  dllm::Link next("mini", false, true);
  const Notebook of_next(next, file, "1.2");
  CHECK(next.precedents.rows() == link.precedents.rows());
}

RUN_TESTS()
