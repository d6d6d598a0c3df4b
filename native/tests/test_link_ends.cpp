// Both ends of a link, as they run: what goes in at one comes out at the other, and how everybody's
// leaving is told.
#include <ctime>

#include "link_ends.h"
#include "pair_ends.h"

using namespace pair_ends;
using namespace transcript;

namespace {

const std::string kAsk = request(dllm::kGetDeviceMemory, std::string(4, '\0'));
const std::string kTold = reply(std::string(16, 'm'));

void converse(std::optional<Key> key, const dllm::LabSettings& lab) {
  Random random(5);
  Pair pair(key);
  pair.head.link.lab.set(lab);
  const UniqueFd client = pair.head.connect(), server = pair.accept();
  greet(client.get(), server.get());
  const auto all = conversation(random, k7, 120);
  std::string requests, replies;
  for (std::size_t i = 3; i < all.size(); ++i) requests += all[i].request;
  for (std::size_t i = 3; i < all.size(); ++i) replies += all[i].reply;
  const std::string bulk = set_tensor(k7, row_of(8 << 20), std::string(8 << 20, 'b'));
  std::thread asking([&] {
    for (const std::string& piece : split(random, requests)) write_text(client.get(), piece);
    write_text(client.get(), bulk);
  });
  // Only bytes that can change: nothing is answered at the head.
  CHECK(read_text(server.get(), requests.size() + bulk.size()) == requests + bulk);
  asking.join();
  std::thread answering([&] { write_text(server.get(), replies); });
  CHECK(read_text(client.get(), replies.size()) == replies);
  answering.join();
  CHECK(pair.head.tally().passthrough_reason.empty() && pair.head.tally().refused == 0);
  CHECK(pair.worker.link.tally.passthrough_reason.empty());
}

}  // namespace

TEST(what_goes_in_comes_out_plain_and_sealed) {
  converse({}, {});
  converse(kKey, {});
}

TEST(the_lab_is_below_the_seal) {
  converse(kKey, {2, 0.5, 200, 1});
}

TEST(one_link_carries_one_client_after_the_other) {
  Pair pair(kKey);
  for (int i = 0; i < 20; ++i) {
    UniqueFd client = pair.head.connect();
    const UniqueFd server = pair.accept();
    greet(client.get(), server.get());
    client.reset();
    CHECK(read_to_end(server.get()).empty());
    ::shutdown(server.get(), SHUT_RDWR);
    CHECK(pair.head.outcome.get() == Outcome::kEnded);
  }
  CHECK(pair.head.tally().connections == 20);
  CHECK(pair.worker.link.tally.connections == 20);
}

TEST(a_client_that_stops_sending_still_gets_its_reply) {
  Pair pair;
  const UniqueFd client = pair.head.connect(), server = pair.accept();
  greet(client.get(), server.get());
  write_text(client.get(), kAsk);
  ::shutdown(client.get(), SHUT_WR);
  CHECK(read_to_end(server.get()) == kAsk);
  write_text(server.get(), kTold);
  ::shutdown(server.get(), SHUT_WR);
  CHECK(read_to_end(client.get()) == kTold);
  CHECK(pair.head.outcome.get() == Outcome::kEnded);
}

TEST(a_client_that_takes_slowly_gets_all_though_its_worker_has_ended) {
  constexpr std::size_t kMiB = 1 << 20, kSize = 8 * kMiB;
  Pair pair;
  const UniqueFd client = pair.head.connect();
  UniqueFd server = pair.accept();
  greet(client.get(), server.get());
  const std::string ask = get_tensor(row_of(kSize), 0, kSize);
  write_text(client.get(), ask);
  CHECK(read_text(server.get(), ask.size()) == ask);
  const std::string told = reply(std::string(kSize, 'r'));
  auto answered = std::async(std::launch::async, [&] {
    write_text(server.get(), told);
    server.reset();
  });
  std::string got = read_text(client.get(), kSize - 3 * kMiB);
  answered.wait();
  for (int i = 0; i < 4; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(800));
    got += read_text(client.get(), i < 3 ? kMiB * 3 / 4 : told.size() - got.size());
  }
  CHECK(got == told);
}

TEST(a_worker_can_send_a_reply_nobody_waits_for_and_the_next_client_waits_for_that) {
  Pair pair;
  const std::size_t size = 8 << 20;
  UniqueFd client = pair.head.connect(), server = pair.accept();
  greet(client.get(), server.get());
  const std::string ask = get_tensor(row_of(size), 0, size);
  write_text(client.get(), ask);
  CHECK(read_text(server.get(), ask.size()) == ask);
  client.reset();
  CHECK(read_to_end(server.get()).empty());
  CHECK(write_text(server.get(), reply(std::string(size, 'r'))));
  server.reset();
  pair.head.outcome.wait();
  client = pair.head.connect();
  server = pair.accept();
  greet(client.get(), server.get());
}

TEST(a_relay_that_ends_reads_first_what_its_server_still_owes) {
  check::TempDir dir;
  const UniqueFd listener = dllm::listen_unix(dir / "server");
  std::optional<Worker> worker;
  worker.emplace(LinkAddress{path_in(dir, "worker"), false, {}}, path_in(dir, "server"));
  Head head({path_in(dir, "worker"), true, {}}, "studio");
  const UniqueFd client = head.connect();
  UniqueFd server = dllm::accept_client(listener.get());
  greet(client.get(), server.get());
  write_text(client.get(), kAsk);
  CHECK(read_text(server.get(), kAsk.size()) == kAsk);
  auto ended = std::async(std::launch::async, [&] { worker.reset(); });
  CHECK(read_to_end(server.get()).empty());
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  // In two pieces, as a stock one does: the second fails where the first was not taken.
  CHECK(write_text(server.get(), kTold.substr(0, 8)));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(write_text(server.get(), kTold.substr(8)));
  server.reset();
  ended.wait();
}

TEST(a_worker_that_ends_is_told_and_noticed) {
  Pair pair;
  UniqueFd client = pair.head.connect(), server = pair.accept();
  greet(client.get(), server.get());
  server.reset();
  CHECK(read_to_end(client.get()).empty());
  client.reset();
  CHECK(pair.head.outcome.get() == Outcome::kWorkerLeft);
  CHECK(until([&] { return pair.head.tally().pair.is_up; }));
}

TEST(a_server_that_is_not_there_is_told_to_the_head) {
  Pair pair;
  pair.server.reset();
  const UniqueFd client = pair.head.connect();
  const std::string got = read_to_end(client.get());
  CHECK(got.empty() || got == "broken off");
  CHECK(pair.head.outcome.get() == Outcome::kWorkerLeft);
  CHECK(until([&] { return pair.head.was_told("cannot reach the rpc-server"); }));
}

TEST(the_far_guard_refuses_and_says_why) {
  // A head without guard stands for one that is not ours.
  check::TempDir dir;
  const UniqueFd listener = dllm::listen_unix(dir / "server");
  Worker worker({path_in(dir, "worker"), false, {}}, path_in(dir, "server"));
  dllm::Link link("w", false, false);
  HeadEnd head(link, {path_in(dir, "worker"), true, {}}, "studio", no_models());
  head.start();
  int ends[2];
  dllm::check(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
  const UniqueFd client(ends[0]);
  auto outcome = std::async(std::launch::async, [&] { return head.carry(UniqueFd(ends[1])); });
  const UniqueFd server = dllm::accept_client(listener.get());
  greet(client.get(), server.get());
  TensorSpec custom;
  custom.op = 95;
  const std::string bad = graph(k7, {tensor({}), tensor(custom)});
  write_text(client.get(), bad);
  CHECK(read_to_end(server.get()).size() < bad.size());
  CHECK(outcome.get() == Outcome::kWorkerLeft);
  {
    const std::lock_guard lock(link.mutex);
    CHECK(!link.told.empty() && check::contains(link.told.back(), "refused GRAPH_COMPUTE"));
  }
}

TEST(a_worker_that_takes_and_says_nothing_keeps_its_link) {
  constexpr dllm::Nanos kGoneAfter = dllm::kNanosPerSecond;
  Pair pair(kKey, kGoneAfter);
  const UniqueFd client = pair.head.connect(), server = pair.accept();
  greet(client.get(), server.get());
  const std::size_t size = 16 << 20;
  // What cannot be said shorter.
  Random random(9);
  const std::string sent = set_tensor(k7, row_of(size), random_bytes(random, size));
  std::thread asking([&] { write_text(client.get(), sent); });
  std::this_thread::sleep_for(std::chrono::milliseconds(1800));
  const auto tally = pair.head.tally();
  CHECK(tally.pair.is_up && tally.pair.unheard == 0 && tally.pair.rtt > 0);
  CHECK(tally.bytes_up < sent.size());
  CHECK(pair.head.link.sending_since > 0);
  CHECK(read_text(server.get(), sent.size()) == sent);
  asking.join();
}

TEST(a_machine_that_is_not_heard_is_told_long_before_it_is_given_up) {
  Pair pair(kKey);
  const UniqueFd client = pair.head.connect(), server = pair.accept();
  greet(client.get(), server.get());
  pair.between.pause(true);
  CHECK(until([&] { return pair.head.tally().pair.unheard > 0; }));
  CHECK(pair.head.tally().pair.is_up && pair.head.was_told("has not been heard"));
  // It was but a pause.
  write_text(client.get(), kAsk);
  pair.between.pause(false);
  CHECK(read_text(server.get(), kAsk.size()) == kAsk);
  CHECK(until([&] { return pair.head.tally().pair.unheard == 0; }));
}

// A head that dials two places, of which the first goes through `near`, the last through `far`.
struct TwoWays {
  explicit TwoWays(std::optional<Key> key)
      : server(dllm::listen_unix(dir / "server")),
        worker({path_in(dir, "worker"), false, key}, path_in(dir, "server")),
        near(path_in(dir, "near"), path_in(dir, "worker")),
        far(path_in(dir, "far"), path_in(dir, "worker")),
        head({path_in(dir, "near"), true, key, {}, {path_in(dir, "far")}}, "studio", kGoneAfter) {}

  bool is_met(const char* place) {
    const std::string wanted = dllm::text(path_in(dir, place));
    return until([&] { return head.tally().pair.place == wanted; });
  }

  static constexpr dllm::Nanos kGoneAfter = 4 * dllm::kNanosPerSecond;
  check::TempDir dir;
  UniqueFd server;
  Worker worker;
  Between near;
  Between far;
  Head head;
};

TEST(a_way_that_is_silent_is_left_for_one_that_answers) {
  TwoWays pair(kKey);
  CHECK(pair.is_met("near"));
  pair.near.pause(true);
  CHECK(pair.is_met("far"));
  CHECK(until([&] { return pair.head.was_told("went on over another"); }));
  CHECK(!pair.head.tally().pair.detour.empty());
  CHECK(!pair.head.was_told("the link broke"));
}

TEST(a_machine_that_is_silent_by_all_ways_keeps_its_link) {
  TwoWays pair(kKey);
  CHECK(pair.is_met("near"));
  const auto silent = [&](dllm::Nanos least) { return pair.head.tally().pair.unheard > least; };
  pair.near.pause(true);
  pair.far.pause(true);
  CHECK(until([&] { return silent(TwoWays::kGoneAfter); }));
  pair.far.pause(false);
  pair.near.pause(false);
  CHECK(until([&] { return !silent(0); }));
  CHECK(!pair.head.was_told("the link broke"));
}

// Takes no connection before the queue of those that wait is emptied.
struct FullPort {
  FullPort() : listener(::socket(AF_INET, SOCK_STREAM, 0)) {
    const auto address = dllm::address_of({"127.0.0.1", 0});
    dllm::check(::bind(listener.get(), address.get(), address.length), "bind");
    dllm::check(::listen(listener.get(), 0), "listen");
    do {
      waiting.push_back(dllm::begin_connect(endpoint()));
    } while (is_taken(waiting.back().get()));
  }
  [[nodiscard]] dllm::Endpoint endpoint() const {
    return {"127.0.0.1", dllm::bound_port(listener.get())};
  }
  void take_all() {
    waiting.clear();
    while (dllm::wait_readable(listener.get(), 100)) taken.push_back(accepted());
  }

  UniqueFd listener;
  std::vector<UniqueFd> waiting, taken;

 private:
  static bool is_taken(int fd) {
    pollfd question{fd, POLLOUT, 0};
    return ::poll(&question, 1, 100) == 1;
  }
  [[nodiscard]] UniqueFd accepted() const { return dllm::accept_client(listener.get()); }
};

TEST(a_connection_half_made_when_the_old_one_works_again_costs_nothing) {
  check::TempDir dir;
  const UniqueFd server = dllm::listen_unix(dir / "server");
  Worker worker({path_in(dir, "worker"), false, kKey}, path_in(dir, "server"));
  Between near(path_in(dir, "near"), path_in(dir, "worker"));
  FullPort far;
  Head head({path_in(dir, "near"), true, kKey, {}, {far.endpoint()}}, "studio");
  CHECK(until([&] { return head.tally().pair.is_up; }));
  near.pause(true);
  // Two seconds of silence, two for the first place again; then the other one is dialled.
  CHECK(until([&] { return head.tally().pair.unheard > 9 * dllm::kNanosPerSecond / 2; }));
  near.pause(false);
  CHECK(until([&] { return head.tally().pair.unheard == 0; }));
  far.take_all();
  // The kernel tries a refused connection again within so long.
  std::this_thread::sleep_for(std::chrono::milliseconds(3500));
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::seconds(1));
  CHECK(std::clock() - before < CLOCKS_PER_SEC / 4);
}

TEST(a_relay_that_is_gone_closes_the_client_and_comes_again) {
  for (const bool sealed : {false, true}) {
    Pair pair(sealed ? std::optional(kKey) : std::nullopt, 4 * dllm::kNanosPerSecond);
    UniqueFd client = pair.head.connect(), server = pair.accept();
    greet(client.get(), server.get());
    CHECK(until([&] { return Split(pair.head.tally()).up > 0; }));
    const Split first(pair.head.tally());
    // Whoever answers there now is another.
    const dllm::UniqueFd listener = dllm::listen_unix(pair.dir / "other server");
    Worker other({path_in(pair.dir, "other"), false, sealed ? std::optional(kKey) : std::nullopt},
                 path_in(pair.dir, "other server"));
    pair.between.lead_to(path_in(pair.dir, "other"));
    pair.between.cut();
    const std::string got = read_to_end(client.get());
    CHECK(got.empty() || got == "broken off");
    CHECK(pair.head.outcome.get() == Outcome::kWorkerLeft);
    CHECK(until([&] { return pair.head.was_told("does not know the link any more"); }));
    client = pair.head.connect();
    const UniqueFd other_server = dllm::accept_client(listener.get());
    greet(client.get(), other_server.get());
    CHECK(until([&] { return Split(pair.head.tally()).up > first.up; }));
    CHECK(Split(pair.head.tally()).adds_up());
    CHECK(pair.head.tally().pair.reconnects == 0);
  }
}

TEST(where_nobody_listens_any_more_the_client_is_closed) {
  check::TempDir dir;
  const UniqueFd listener = dllm::listen_unix(dir / "server");
  Worker worker({path_in(dir, "worker"), false, kKey}, path_in(dir, "server"));
  std::optional<Between> between;
  between.emplace(path_in(dir, "between"), path_in(dir, "worker"));
  Head head({path_in(dir, "between"), true, kKey}, "studio");
  const UniqueFd client = head.connect(), server = dllm::accept_client(listener.get());
  greet(client.get(), server.get());
  between.reset();
  const std::string got = read_to_end(client.get());
  CHECK(got.empty() || got == "broken off");
  CHECK(head.outcome.get() == Outcome::kWorkerLeft);
  CHECK(head.was_told("the link broke: cannot reach"));
  // Another head is let in, and the rpc-server sees its client go, and is left in peace.
  Head other({path_in(dir, "worker"), true, kKey}, "laptop");
  CHECK(until([&] { return other.tally().pair.is_up; }));
  CHECK(read_to_end(server.get()).empty());
}

TEST(cut_again_and_again_all_arrives_once_and_in_order) {
  for (const bool sealed : {false, true}) {
    Random random(3);
    Pair pair(sealed ? std::optional(kKey) : std::nullopt);
    const UniqueFd client = pair.head.connect(), server = pair.accept();
    greet(client.get(), server.get());
    pair.between.cut_often(150'000);
    const auto all = conversation(random, k7, 120);
    std::string requests, replies;
    for (std::size_t i = 3; i < all.size(); ++i) requests += all[i].request;
    for (std::size_t i = 3; i < all.size(); ++i) replies += all[i].reply;
    // Not in pieces: of one byte each they would take longer than all else.
    const std::string large = set_tensor(k7, row_of(2 << 20), random_bytes(random, 2 << 20));
    std::thread asking([&] {
      for (const std::string& piece : split(random, requests)) write_text(client.get(), piece);
      write_text(client.get(), large);
    });
    CHECK(read_text(server.get(), requests.size()) == requests);
    CHECK(read_text(server.get(), large.size()) == large);
    asking.join();
    std::thread answering([&] { write_text(server.get(), replies); });
    CHECK(read_text(client.get(), replies.size()) == replies);
    answering.join();
    pair.between.cut_often(0);
    CHECK(pair.between.cuts() > 10);
    CHECK(!pair.head.was_told("the link broke"));
    // Several cuts count as one where the link did not work between them.
    for (dllm::Link* end : {&pair.head.link, &pair.worker.link}) {
      CHECK(until([&] {
        const std::lock_guard lock(end->mutex);
        return end->tally.pair.reconnects > 0;
      }));
    }
  }
}

TEST(one_that_comes_back_is_not_taken_for_another_nor_another_for_it) {
  check::TempDir dir;
  const UniqueFd listener = dllm::listen_unix(dir / "server");
  Worker worker({path_in(dir, "worker"), false, kKey}, path_in(dir, "server"));
  Between between(path_in(dir, "between"), path_in(dir, "worker"));
  Head head({path_in(dir, "between"), true, kKey}, "studio");
  const UniqueFd client = head.connect(), server = dllm::accept_client(listener.get());
  greet(client.get(), server.get());
  between.pause(true);
  Head other({path_in(dir, "worker"), true, kKey}, "laptop");
  CHECK(until([&] { return check::contains(other.tally().pair.reason, "is held by the head"); }));
  between.pause(false);
  between.cut();
  write_text(client.get(), kAsk);
  CHECK(read_text(server.get(), kAsk.size()) == kAsk);
  CHECK(!other.tally().pair.is_up);
}

TEST(another_head_is_told_at_once_who_is_there) {
  Pair pair(kKey);
  CHECK(until([&] { return pair.head.tally().pair.is_up; }));
  Head other({path_in(pair.dir, "worker"), true, kKey}, "laptop");
  const UniqueFd client = other.connect();
  CHECK(other.outcome.get() == Outcome::kWorkerLeft);
  const std::string told = "w is held by the head studio";
  CHECK(until([&] { return check::contains(other.tally().pair.reason, told); }));
  CHECK(!other.tally().pair.is_up && pair.head.tally().pair.is_up);
}

TEST(an_end_of_another_version_is_greeted_before_it_is_refused) {
  check::TempDir dir;
  const UniqueFd listener = dllm::listen_unix(dir / "server");
  Worker worker({path_in(dir, "worker"), false, {}}, path_in(dir, "server"));
  dllm::link::ByteQueue hello;
  hello.append(encode(link_ends::hello_of(dllm::link::Role::kHead)));
  std::string said = link_ends::taken(hello);
  said[8] = 2;
  for (int i = 0; i < 20; ++i) {
    const UniqueFd head = dllm::connect_to(path_in(dir, "worker"));
    write_text(head.get(), said);
    CHECK(read_to_end(head.get()).starts_with(std::string("dllmlink\3\0", 10)));
  }
}

TEST(who_has_not_the_key_reaches_nothing_and_disturbs_nobody) {
  Pair pair(kKey);
  const UniqueFd client = pair.head.connect(), server = pair.accept();
  greet(client.get(), server.get());
  Key wrong = kKey;
  wrong[0] ^= 1;
  Head stranger({path_in(pair.dir, "worker"), true, wrong}, "stranger");
  CHECK(until([&] { return check::contains(stranger.tally().pair.reason, "another key"); }));
  const UniqueFd junk = dllm::connect_to(path_in(pair.dir, "worker"));
  write_text(junk.get(), std::string(100'000, 'j'));
  const std::string answer = read_to_end(junk.get());
  CHECK(!check::contains(answer, "dllm"));
  Head plain({path_in(pair.dir, "worker"), true, {}}, "plain");
  CHECK(until([&] { return !plain.tally().pair.reason.empty(); }));
  CHECK(!stranger.tally().pair.is_up && !plain.tally().pair.is_up);
  write_text(client.get(), kAsk);
  CHECK(read_text(server.get(), kAsk.size()) == kAsk);
}

TEST(who_connects_and_says_nothing_keeps_nobody_out) {
  check::TempDir dir;
  Worker worker({path_in(dir, "worker"), false, kKey}, path_in(dir, "server"));
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(dllm::connect_to(path_in(dir, "worker")));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const dllm::Nanos begun = dllm::monotonic_now();
  Head head({path_in(dir, "worker"), true, kKey}, "studio");
  CHECK(until([&] { return head.tally().pair.is_up; }));
  CHECK(dllm::monotonic_now() - begun < 3 * dllm::kNanosPerSecond);
  // Nor does it take the place of a link.
  for (int i = 0; i < 20; ++i) silent.push_back(dllm::connect_to(path_in(dir, "worker")));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(head.tally().pair.is_up && !head.was_told("the link broke"));
}

TEST(a_flood_of_strangers_keeps_no_link_from_coming_up) {
  check::TempDir dir;
  Worker worker({path_in(dir, "worker"), false, kKey}, path_in(dir, "server"));
  std::atomic<bool> over = false;
  std::thread flood([&] {
    for (std::deque<UniqueFd> held; !over;) {
      held.push_back(dllm::connect_to(path_in(dir, "worker")));
      if (held.size() > 200) held.pop_front();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const dllm::Nanos begun = dllm::monotonic_now();
  Head head({path_in(dir, "worker"), true, kKey}, "studio");
  head.link.lab.set({.latency_ms = 15});
  CHECK(until([&] { return head.tally().pair.is_up; }));
  CHECK(dllm::monotonic_now() - begun < 30 * dllm::kNanosPerSecond);
  over = true;
  flood.join();
}

TEST(an_end_that_asks_and_takes_no_answer_is_given_up) {
  int ends[2];
  dllm::check(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
  const UniqueFd other(ends[1]);
  dllm::set_blocking(ends[0], false);
  link_ends::End owner(dllm::link::Role::kWorker);
  const dllm::Lab lab;
  dllm::link::LiveLink link(UniqueFd{ends[0]}, dllm::link::make_plain_security(),
                            link_ends::hello_of(dllm::link::Role::kWorker), owner, lab,
                            dllm::kGoneAfter);
  dllm::link::ByteQueue said;
  said.append(encode(link_ends::hello_of(dllm::link::Role::kHead)));
  // It has received nothing.
  const std::string ping = link_ends::frame(0x01, 0, std::string(12, '\1') + std::string(4, '\0'));
  std::string pings;
  while (pings.size() < 64 << 10) pings += ping;
  // The time stands still: nothing is given up for being late.
  const dllm::Nanos now = dllm::monotonic_now();
  const auto ask = [&] {
    for (int round = 0; round < 2000; ++round) {
      if (said.size() < pings.size()) said.append(link_ends::view(pings));
      said.drop(static_cast<std::size_t>(dllm::send_some(other.get(), said.all())));
      link.take_in(now);
      link.give_out(now);
    }
  };
  CHECK(check::thrown<dllm::link::LinkBroken>(ask) == "the other end asks and takes no answer");
}

TEST(the_workers_end_may_dial) {
  check::TempDir dir;
  const UniqueFd listener = dllm::listen_unix(dir / "server");
  Head head({path_in(dir, "head"), false, kKey}, "studio");
  Worker worker({path_in(dir, "head"), true, kKey}, path_in(dir, "server"));
  const UniqueFd client = head.connect();
  const UniqueFd server = dllm::accept_client(listener.get());
  greet(client.get(), server.get());
}

int main() {
  ::signal(SIGPIPE, SIG_IGN);
  return check::run_tests();
}
