// Both ends of a link where the worker's end asks ahead: who is asked what, and that nobody hangs
// when one of them leaves meanwhile.
#include <functional>

#include "pair_ends.h"

using namespace pair_ends;
using namespace transcript;

namespace {

const std::string kAsk = request(dllm::kGetDeviceMemory, std::string(4, '\0'));

// Answers as many connections as come, each to its end, and counts.
class Server {
 public:
  Server(int listener, dllm::Version told, std::function<bool(int)> answering = {})
      : major(told.major), answers_(std::move(answering)) {
    thread_ = std::thread([this, listener] {
      while (!ending_) {
        if (!dllm::wait_readable(listener, 20)) continue;
        serve(dllm::accept_client(listener));
      }
    });
  }
  ~Server() {
    ending_ = true;
    thread_.join();
  }
  std::atomic<std::uint8_t> major;
  std::atomic<int> connections = 0, questions = 0;

 private:
  void serve(const UniqueFd& client) {
    ++connections;
    for (std::string header; (header = read_text(client.get(), 9)).size() == 9 && !ending_;) {
      std::uint64_t size = 0;
      std::memcpy(&size, &header[1], sizeof size);
      read_text(client.get(), size);
      const auto id = static_cast<std::uint8_t>(header[0]);
      const dllm::Version version{major, 0, 0};
      const dllm::Rule* rule = dllm::Protocol(version).rule(id);
      if (rule->reply_kind == dllm::Reply::kNone) continue;
      const int number = ++questions;
      if (answers_ && !answers_(number)) return;
      const std::string payload(rule->reply, '\1');
      write_text(client.get(), id == dllm::kHello ? hello_reply(version) : reply(payload));
    }
  }

  // Given the number of each question; false: the connection ends in its place.
  const std::function<bool(int)> answers_;
  std::thread thread_;
  std::atomic<bool> ending_ = false;
};

bool ask(int client, const std::string& asked, const std::string& wanted) {
  write_text(client, asked);
  return read_text(client, wanted.size()) == wanted;
}

// Answers what it may be told already, and waits for the others.
void start(Pair& pair, UniqueFd& client) {
  client = pair.head.connect();
  write_text(client.get(), hello(k7));
  if (read_text(client.get(), hello_reply(k7).size()) != hello_reply(k7)) return;
  write_text(client.get(), allocation(k7)[0].request);
}

void end(Pair& pair) {
  pair.head.outcome.wait();
  const std::lock_guard lock(pair.head.link.mutex);
  pair.head.link.reply_cache.forget();
}

// One that asks is cut off, and whoever comes next is served.
void check_next_is_served(Pair& pair) {
  UniqueFd client;
  start(pair, client);
  read_to_end(client.get());
  client.reset();
  end(pair);
  start(pair, client);
  const std::string given = reply(std::string(16, '\1'));
  CHECK(read_text(client.get(), given.size()) == given);
}

constexpr int kGreetingQuestions = 2 + 16 * 3;  // HELLO, and those it leads to

}  // namespace

TEST(connections_that_ask_what_is_known_never_reach_the_server) {
  Pair pair(kKey, dllm::kGoneAfter, no_models(), no_models(), true);
  Server server(pair.server.get(), k7);
  const std::string memory = reply(std::string(16, '\1')), address = reply(std::string(8, '\1'));
  for (int i = 0; i < 8; ++i) {
    UniqueFd client = pair.head.connect();
    CHECK(ask(client.get(), hello(k7), hello_reply(k7)));
    CHECK(ask(client.get(), kAsk, memory));
    client.reset();
    CHECK(pair.head.outcome.get() == Outcome::kEnded);
  }
  CHECK(server.connections == 1);
  const UniqueFd client = pair.head.connect();
  CHECK(ask(client.get(), hello(k7), hello_reply(k7)));
  CHECK(server.connections == 1);
  const auto buffer = allocation(k7);
  CHECK(ask(client.get(), buffer[0].request, memory));
  const int asked = server.questions;
  CHECK(ask(client.get(), request(dllm::kBufferGetBase, std::string(8, '\1')), address));
  CHECK(server.connections == 2 && server.questions == asked);
  CHECK(pair.head.tally().passthrough_reason.empty() && pair.head.tally().refused == 0);
  CHECK(pair.worker.link.tally.refused == 0);
}

TEST(what_is_told_ahead_belongs_to_the_questions_it_answers) {
  Pair pair({}, dllm::kGoneAfter, no_models(), no_models(), true);
  Server server(pair.server.get(), k7);
  const UniqueFd client = pair.head.connect();
  CHECK(ask(client.get(), hello(k7), hello_reply(k7)));
  CHECK(ask(client.get(), allocation(k7)[0].request, reply(std::string(16, '\1'))));
  CHECK(is_split_rightly(pair));
  const dllm::Tally tally = pair.head.tally();
  CHECK(tally.commands[dllm::kGetMaxSize].count == 0);
  CHECK(tally.commands[dllm::kGetMaxSize].wire_bytes_down > 0);
  CHECK(tally.commands[dllm::kGetMaxSize].wire_bytes_up == 0);
}

TEST(a_server_that_was_replaced_costs_one_client_at_most) {
  Pair pair(kKey, dllm::kGoneAfter, no_models(), no_models(), true);
  Server server(pair.server.get(), k7);
  UniqueFd client = pair.head.connect();
  CHECK(ask(client.get(), hello(k7), hello_reply(k7)));
  client.reset();
  CHECK(pair.head.outcome.get() == Outcome::kEnded);
  constexpr dllm::Version k8{8, 0, 0};
  server.major = k8.major;
  client = pair.head.connect();
  CHECK(ask(client.get(), hello(k7), hello_reply(k7)));
  write_text(client.get(), allocation(k7)[0].request);
  const std::string got = read_to_end(client.get());
  CHECK(got.empty() || got == "broken off");
  CHECK(pair.head.outcome.get() == Outcome::kWorkerLeft);
  CHECK(pair.head.was_told("its rpc-server is another one than a moment ago"));
  {
    const std::lock_guard lock(pair.head.link.mutex);
    pair.head.link.reply_cache.forget();
  }
  client = pair.head.connect();
  CHECK(ask(client.get(), hello(k8), hello_reply(k8)));
}

TEST(a_server_that_dies_while_it_is_asked_ahead_hangs_nobody) {
  for (const int last : {2, 3, kGreetingQuestions, kGreetingQuestions + 2}) {
    Pair pair(kKey, dllm::kGoneAfter, no_models(), no_models(), true);
    Server server(pair.server.get(), k7, [&](int number) { return number != last; });
    check_next_is_served(pair);
  }
}

TEST(a_link_cut_while_the_server_is_asked_ahead_costs_nothing) {
  for (const int last : {1, 2, 3, kGreetingQuestions, kGreetingQuestions + 2}) {
    Pair pair(kKey, dllm::kGoneAfter, no_models(), no_models(), true);
    CHECK(until([&] { return pair.head.tally().pair.is_up; }));
    Server server(pair.server.get(), k7, [&](int number) {
      if (number == last) pair.between.cut();
      return number != last || until([&] { return pair.between.is_cut(); });
    });
    UniqueFd client;
    start(pair, client);
    const std::string given = reply(std::string(16, '\1'));
    CHECK(read_text(client.get(), given.size()) == given);
  }
}

TEST(a_client_that_leaves_while_the_server_is_asked_ahead_costs_the_next_one_nothing) {
  for (const int last : {1, 2, kGreetingQuestions}) {
    Pair pair(kKey, dllm::kGoneAfter, no_models(), no_models(), true);
    std::promise<void> asked, gone;
    Server server(pair.server.get(), k7, [&](int number) {
      if (number != last) return true;
      asked.set_value();
      gone.get_future().wait();
      return true;
    });
    UniqueFd client = pair.head.connect();
    write_text(client.get(), hello(k7));
    asked.get_future().wait();
    client.reset();
    gone.set_value();
    pair.head.outcome.wait();
    start(pair, client);
    const std::string given = reply(std::string(16, '\1'));
    CHECK(read_text(client.get(), given.size()) == given);
    CHECK(pair.worker.link.tally.refused == 0);
  }
}

RUN_TESTS()
