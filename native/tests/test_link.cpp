// The link between two relays without sockets: hello, frames, credit, heartbeat, and a model of it.
#include <random>

#include "check.h"
#include "link/link_end.h"
#include "link_ends.h"
#include "transcript.h"

using namespace link_ends;
using dllm::link::LinkBroken;
using dllm::link::LinkRefused;

namespace {

constexpr Nanos kSecond = dllm::kNanosPerSecond;
constexpr std::uint8_t kPing = 0x01, kPong = 0x02, kGoodbye = 0x03, kWelcome = 0x04;
constexpr std::uint8_t kReceived = 0x05;
constexpr std::uint8_t kOpen = 0x10, kData = 0x11, kCredit = 0x12, kFinish = 0x13;
constexpr std::uint8_t kTrip = 0x15, kHomeFrame = 0x30, kListFrame = 0x31, kKnownFrame = 0x32;

std::string greeting(Role role) {
  ByteQueue out;
  out.append(encode(hello_of(role)));
  return taken(out);
}

template <typename Error = LinkBroken>
std::string why(End& end, const std::string& bytes) {
  return check::thrown<Error>([&] { end.take(bytes); });
}

// Why the worker's end of a link that is up refuses this.
std::string refusal(const std::string& bytes, std::uint64_t features = 0) {
  Link link(features);
  link.head.link.open();
  link.settle();
  return why(link.worker, bytes);
}

}  // namespace

TEST(both_ends_learn_who_the_other_is_at_every_cut) {
  const std::string said = greeting(Role::kWorker) + frame(kWelcome, 0, "");
  for (std::size_t cut = 0; cut <= said.size(); ++cut) {
    End head(Role::kHead);
    head.take(said.substr(0, cut));
    CHECK(head.is_welcome == (cut == said.size()));
    head.take(said.substr(cut));
    CHECK(head.is_welcome && head.link.is_up());
    CHECK(head.other->name == "somebody" && head.other->role == Role::kWorker);
  }
}

TEST(features_nobody_knows_and_a_longer_hello_are_passed_over) {
  std::string said = greeting(Role::kWorker);
  for (std::size_t at = 16; at < 24; ++at) said[at] = '\xff';
  said[10] = '\x7f';
  said[12] = static_cast<char>(said.size() + 5);
  End head(Role::kHead);
  head.take(said + "later" + frame(kWelcome, 0, ""));
  CHECK(head.is_welcome && head.other->features == ~std::uint64_t{0});
}

TEST(another_major_version_is_refused_in_one_sentence) {
  for (const Role role : {Role::kHead, Role::kWorker}) {
    std::string said = greeting(role == Role::kHead ? Role::kWorker : Role::kHead);
    said[8] = 2;
    End end(role);
    // All that is the same in every version is enough.
    CHECK(why<LinkRefused>(end, said.substr(0, 16)) ==
          "the other relay speaks link version 2, this one 3: install the same dllm-tui on both "
          "machines");
  }
}

TEST(who_is_no_other_end_is_named) {
  const auto told = [](const std::string& said) {
    End head(Role::kHead);
    return why(head, said);
  };
  CHECK(told("GET / HTTP/1.1") == "the other end is no relay of dllm-tui");
  CHECK(told("x") == "the other end is no relay of dllm-tui");
  CHECK(check::contains(told("\x16\x03\x01"), "speaks TLS"));
  CHECK(check::contains(told(greeting(Role::kHead)), "is a head too"));
  std::string damaged = greeting(Role::kWorker);
  damaged[12] = 9;
  CHECK(told(damaged) == "the other end's hello is damaged");
  damaged = greeting(Role::kWorker);
  damaged[29] = '\xff';
  CHECK(told(damaged) == "the other end's hello is damaged");
}

TEST(names_and_reasons_are_shown_as_plain_text) {
  std::string said = greeting(Role::kWorker);
  said[48] = '\x1b';
  End head(Role::kHead);
  head.take(said);
  CHECK(head.other->name == "?omebody");
  CHECK(why<LinkRefused>(head, frame(kGoodbye, 0, "no\x07\n")) == "no??");
}

TEST(what_no_end_would_send_is_refused) {
  CHECK(check::contains(refusal(std::string("\x11\x01\0\x01\1\0\0\0", 8)), "longer than any"));
  CHECK(check::contains(refusal(frame(0x7f, 0, "")), "unknown type"));
  CHECK(check::contains(refusal(frame(kOpen, 3, "")), "out of turn"));
  CHECK(check::contains(refusal(frame(kOpen, 1, "")), "out of turn"));
  CHECK(check::contains(refusal(frame(kData, 2, "x")), "never opened"));
  CHECK(check::contains(refusal(frame(kData, 0, "x")), "never opened"));
  CHECK(check::contains(refusal(frame(kCredit, 1, "123")), "damaged frame"));
  CHECK(check::contains(refusal(frame(kTrip, 1, "123")), "damaged frame"));
  CHECK(check::contains(refusal(frame(kPing, 0, "")), "damaged frame"));
  CHECK(check::contains(refusal(frame(kPong, 0, std::string(16, '\x7f'))), "nobody sent"));
  CHECK(check::contains(refusal(frame(kWelcome, 0, "")), "out of turn"));
  const std::string finish = frame(kFinish, 1, "");
  CHECK(check::contains(refusal(finish + finish), "twice"));
  CHECK(check::contains(refusal(finish + frame(kData, 1, "x")), "behind the end"));
  End early(Role::kWorker);
  CHECK(check::contains(why(early, greeting(Role::kHead) + frame(kOpen, 1, "")), "out of turn"));
  Link link;
  CHECK(check::contains(why(link.head, frame(kOpen, 1, "")), "out of turn"));
  std::string many;
  for (std::uint32_t i = 1; i <= LinkEnd::kSessionsMax + 1; ++i) many += frame(kOpen, i, "");
  CHECK(check::contains(why(link.worker, many), "too many sessions"));
}

TEST(what_is_known_ahead_is_told_where_both_ends_can) {
  using dllm::link::kAhead;
  const std::vector<dllm::PrefetchedReply> known{{std::string(500, 'k'), "12345678"}, {"", ""}};
  Link with(kAhead);
  const std::uint32_t session = with.head.link.open();
  with.settle();
  std::vector<dllm::PrefetchedReply> many;
  for (int i = 0; i < 300; ++i) many.insert(many.end(), known.begin(), known.end());
  with.worker.link.send_prefetched(session, many);
  with.settle();
  CHECK(with.head.prefetched_replies[session].size() == many.size());
  CHECK(with.head.prefetched_replies[session].back().key.empty());
  CHECK(with.head.prefetched_replies[session].front().reply == "12345678");
  const std::string told = frame(kKnownFrame, 1, std::string(4, '\0'));
  CHECK(check::contains(why(with.worker, told), "was not asked to"));
  for (const std::string& cut : {std::string("\2", 1), std::string("\2\0k", 3),
                                 std::string("\1\0k\1\0", 5), std::string("\0\0\0", 3)}) {
    Link link(kAhead);
    link.head.link.open();
    CHECK(check::contains(why(link.head, frame(kKnownFrame, 1, cut)), "damaged"));
  }
  Link without;
  without.head.link.open();
  CHECK(check::contains(why(without.head, told), "was not asked to"));
}

TEST(weights_are_spoken_of_where_both_ends_can) {
  const std::string home = frame(kHomeFrame, 1, "w"), list = frame(kListFrame, 0, "l");
  CHECK(check::contains(refusal(home), "was not asked to"));
  CHECK(refusal(home, dllm::link::kHome).empty());
  CHECK(check::contains(refusal(frame(kHomeFrame, 2, "w"), dllm::link::kHome), "never opened"));
  const std::string late = frame(kFinish, 1, "") + home;
  CHECK(check::contains(refusal(late, dllm::link::kHome), "behind the end"));
  // No head lists anything.
  CHECK(check::contains(refusal(list, dllm::link::kHome), "was not asked to"));
  Link without, with(dllm::link::kHome), wrong(dllm::link::kHome);
  CHECK(check::contains(why(without.head, list), "was not asked to"));
  CHECK(check::contains(why(wrong.head, frame(kListFrame, 1, "l")), "was not asked to"));
  with.head.take(list);
  CHECK(with.head.lists == std::vector<std::string>{"l"});
  End one(Role::kHead, dllm::link::kHome);
  CHECK(check::contains(why(one, greeting(Role::kWorker) + list), "was not asked to"));
}

TEST(what_is_said_of_weights_keeps_its_place_and_needs_no_credit) {
  Link link(dllm::link::kHome);
  const std::uint32_t session = link.head.link.open();
  const std::string all(LinkEnd::kWindowBytes, 'd');
  link.head.link.send(session, view(all));
  link.head.link.send_home(session, view("first"));
  link.head.link.send_home(session, view("second"));
  CHECK(link.head.link.credit(session) == 0);
  link.settle();
  CHECK(link.worker.got[session].size() == all.size());
  CHECK((link.worker.home[session] == std::vector<std::string>{"first", "second"}));
  link.worker.link.send_home(session, view("answer"));
  link.settle();
  CHECK(link.head.home[session] == std::vector<std::string>{"answer"});
  link.worker.link.reset(session, "enough");
  link.worker.link.send_home(session, view("nothing"));
  link.head.link.send_home(session, view("too late"));
  link.settle();
  CHECK(link.worker.home[session].size() == 2 && link.head.home[session].size() == 1);
}

TEST(no_more_is_sent_than_the_other_end_allows_and_what_it_takes_is_allowed_anew) {
  Link link;
  const std::uint32_t session = link.head.link.open();
  CHECK(link.head.link.credit(session) == LinkEnd::kWindowBytes);
  const std::string all(LinkEnd::kWindowBytes, 'd');
  link.head.link.send(session, view(all));
  link.settle();
  CHECK(link.head.link.credit(session) == 0);
  CHECK(link.worker.got[session] == all);
  link.worker.link.grant(session, LinkEnd::kWindowBytes);
  link.settle();
  CHECK(link.head.link.credit(session) == 0);
  link.worker.link.grant(session, 100);
  link.settle();
  CHECK(link.head.link.credit(session) == LinkEnd::kWindowBytes - 100);
  // Who sends more is refused.
  const std::string more(dllm::link::kPayloadMaxBytes, 'm');
  std::string said;
  for (std::size_t i = 0; i <= LinkEnd::kWindowBytes / more.size(); ++i) {
    said += frame(kData, session, more);
  }
  CHECK(why(link.worker, said) == "the other end sent more than it was allowed");
}

TEST(what_comes_in_a_session_that_is_over_here_is_passed_over) {
  Link link;
  const std::uint32_t session = link.head.link.open();
  link.settle();
  link.worker.link.reset(session, "refused");
  link.head.link.send(session, view("on its way"));
  link.head.link.finish(session);
  link.settle();
  CHECK(link.worker.got.empty() && link.head.reset[session] == "refused");
  CHECK(!link.head.link.has(session) && !link.worker.link.has(session));
  CHECK(link.head.link.open() == session + 1);
}

TEST(pings_measure_and_silence_counts_only_while_this_process_runs) {
  Link link;
  CHECK(link.head.link.rtt() == 0);
  link.head.link.tick(1);
  const std::string ping = taken(link.head.link.out());
  link.worker.take(ping, 5);
  const std::string pong = taken(link.worker.link.out());
  link.head.take(pong, 4'000'001);
  CHECK(link.head.link.rtt() == 4'000'000);
  CHECK(link.head.link.silence(4'000'001) == 0);
  // Ticks come by at least every half second, or this process did not run.
  for (Nanos now = kSecond / 2; now <= 3 * kSecond; now += kSecond / 2) link.head.link.tick(now);
  CHECK(link.head.link.silence(3 * kSecond) >= 2 * kSecond);
  link.head.link.tick(60 * kSecond);
  CHECK(link.head.link.silence(60 * kSecond) < 4 * kSecond);
}

TEST(an_end_that_waits_to_be_greeted_is_not_asked_again_at_once) {
  End head(Role::kHead);
  for (Nanos now = 1; now < 3 * kSecond; now = head.link.next_tick()) {
    head.link.tick(now);
    CHECK(head.link.next_tick() >= now + LinkEnd::kPingEvery);
  }
}

TEST(a_trip_is_told_before_its_reply) {
  Link link;
  const std::uint32_t session = link.head.link.open();
  link.settle();
  link.worker.link.send_trip(session, {10, 30});
  link.worker.link.send(session, view("reply"));
  link.settle();
  CHECK(link.head.trips.size() == 1 && link.head.trips[0].ended - link.head.trips[0].began == 20);
}

namespace {

// Two ends that talk, and between them so many bytes of each way and no more, one time after the
// other.
class Cut {
 public:
  explicit Cut(std::vector<std::array<std::size_t, 2>> allowed = {}) : allowed_(std::move(allowed)) {}

  void talk() {
    LinkEnd& head = link_.head.link;
    LinkEnd& worker = link_.worker.link;
    const std::uint32_t session = head.open();
    for (char c = 'a'; c < 'd'; ++c) {
      head.send(session, view(std::string(30, c)));
      head.send_home(session, view(std::string(9, c)));
      carry();
      worker.send_list(view(std::string(11, c)));
      worker.send_prefetched(session, {{std::string(1, '\1'), std::string(8, c)}});
      worker.send_trip(session, {c, c + 1});
      worker.send(session, view(std::string(20, c)));
      carry();
      head.tick(now_ += kSecond);
      worker.tick(now_);
    }
    head.finish(session);
    worker.finish(session);
    carry();
  }

  // What each was told, in words.
  std::string told() {
    std::string all = link_.worker.got[1] + '|' + link_.head.got[1];
    for (const std::string& said : link_.worker.home[1]) all += '|' + said;
    for (const std::string& said : link_.head.lists) all += '|' + said;
    for (const dllm::PrefetchedReply& prefetched : link_.head.prefetched_replies[1])
      all += '|' + prefetched.reply;
    for (const dllm::Trip trip : link_.head.trips) all += '|' + std::to_string(trip.ended);
    return all + (link_.worker.ended.contains(1) && link_.head.ended.contains(1) ? "|over" : "");
  }
  [[nodiscard]] std::size_t carried(int from) const { return carried_[from]; }

 private:
  void carry() {
    End* ends[] = {&link_.head, &link_.worker};
    while (link_.head.link.waiting() || link_.worker.link.waiting()) {
      for (const int from : {0, 1}) {
        const std::string bytes = taken(ends[from]->link.out());
        const std::size_t most = cuts_ < allowed_.size() ? allowed_[cuts_][from] - passed_[from] : bytes.size();
        ends[1 - from]->take(bytes.substr(0, most), now_);
        carried_[from] += bytes.size();
        passed_[from] += std::min(most, bytes.size());
        if (most >= bytes.size()) continue;
        ++cuts_;
        passed_ = {};
        for (End* end : ends) end->resume();
        break;
      }
    }
  }

  Link link_{dllm::link::kHome | dllm::link::kAhead};
  const std::vector<std::array<std::size_t, 2>> allowed_;
  std::size_t cuts_ = 0;
  std::array<std::size_t, 2> passed_{};
  std::array<std::size_t, 2> carried_{};
  Nanos now_ = 1;
};

}  // namespace

TEST(a_link_that_is_cut_behind_any_byte_goes_on_where_it_was) {
  Cut whole;
  whole.talk();
  CHECK(whole.told().ends_with("|over"));
  constexpr std::size_t kEndless = std::size_t{1} << 40;
  for (const int from : {0, 1}) {
    CHECK(whole.carried(from) > 300);
    for (std::size_t at = 0; at < whole.carried(from); ++at) {
      // Again within what each says first then, and soon behind it.
      for (const std::size_t again : {at % 17, 17 + at % 101}) {
        std::array<std::size_t, 2> first{kEndless, kEndless}, second{kEndless, kEndless};
        first[static_cast<std::size_t>(from)] = at;
        second[at % 2] = again;
        Cut cut({first, second});
        cut.talk();
        CHECK(cut.told() == whole.told());
      }
    }
  }
}

TEST(what_the_other_end_has_is_kept_no_longer) {
  Link link;
  const std::uint32_t session = link.head.link.open();
  link.settle();
  for (int i = 0; i < 20; ++i) {
    link.head.link.send(session, view(std::string(100'000, 'd')));
    link.settle();
    link.worker.link.grant(session, 0);
    CHECK(link.head.link.unacked() < 700'000);
  }
  for (const Nanos now : {kSecond, 2 * kSecond}) {
    link.head.link.tick(now);
    link.worker.link.tick(now);
    link.settle(now);
  }
  CHECK(link.head.link.unacked() < 100 && link.worker.link.unacked() < 100);
}

TEST(counts_of_what_was_never_sent_are_refused) {
  CHECK(check::contains(refusal(frame(kReceived, 0, "1234")), "never sent"));
  Link other;
  other.head.resume();
  CHECK(check::contains(why(other.head, frame(kData, 1, "x")), "what it has received"));
  other.worker.resume();
  CHECK(check::contains(why(other.worker, frame(kWelcome, 0, std::string(8, '\1'))), "never sent"));
}

namespace {

// What a session should have carried one way.
struct Way {
  std::string sent;
  std::vector<std::string> said;  // of weights
  bool finished = false;
};

// Random sessions over a link whose bytes come in random pieces, beside plain strings.
class Model {
 public:
  explicit Model(std::uint32_t seed) : random_(seed) {}

  void run(int steps) {
    for (int step = 0; step < steps; ++step) act();
    for (auto& [session, ways] : ways_) {
      for (const int from : {0, 1}) {
        while (!resets_.contains(session) && !ways[from].sent.empty() && !all_arrived(session)) {
          deliver(1 << 20);
        }
      }
    }
    deliver_all();
    for (auto& [session, ways] : ways_) judge(session, ways);
  }

 private:
  End& end(int index) { return index == 0 ? link_.head : link_.worker; }
  std::uint32_t one_of(std::uint32_t most) { return static_cast<std::uint32_t>(random_() % most); }

  void act() {
    const std::uint32_t choice = one_of(22);
    if (choice == 0 && link_.head.link.sessions() < 8) open();
    if (ways_.empty()) return;
    const std::uint32_t session = 1 + one_of(static_cast<std::uint32_t>(ways_.size()));
    const int from = static_cast<int>(one_of(2));
    if (choice >= 1 && choice <= 8) send(session, from);
    if (choice == 9) finish(session, from);
    if (choice == 10 && one_of(8) == 0) reset(session, from);
    if (choice >= 20) say(session, from);
    if (choice >= 11) deliver(std::size_t{1} << one_of(18));
    if (one_of(40) == 0) cut();
  }

  // Nothing of what is on its way arrives.
  void cut() {
    for (const int index : {0, 1}) {
      on_way_[index].clear();
      end(index).resume();
    }
  }

  void open() {
    if (link_.head.link.sessions() < LinkEnd::kSessionsMax) ways_[link_.head.link.open()];
  }

  bool is_open_at(std::uint32_t session, int from) {
    const bool known = from == 0 || link_.worker.open.contains(session);
    return known && end(from).link.has(session) && !ways_[session][from].finished;
  }

  void send(std::uint32_t session, int from) {
    if (!is_open_at(session, from)) return;
    const std::size_t credit = end(from).link.credit(session);
    const std::size_t count = std::min<std::size_t>(credit, one_of(1U << one_of(20)));
    const std::string data = transcript::random_bytes(random_, count);
    end(from).link.send(session, view(data));
    ways_[session][from].sent += data;
  }

  void say(std::uint32_t session, int from) {
    if (!is_open_at(session, from)) return;
    ways_[session][from].said.emplace_back(one_of(1U << one_of(16)), 'w');
    end(from).link.send_home(session, view(ways_[session][from].said.back()));
  }

  void finish(std::uint32_t session, int from) {
    if (!is_open_at(session, from)) return;
    end(from).link.finish(session);
    ways_[session][from].finished = true;
  }

  void reset(std::uint32_t session, int from) {
    if (!is_open_at(session, from)) return;
    end(from).link.reset(session, "enough");
    resets_.insert(session);
  }

  // Moves some bytes both ways, and lets the ends take them.
  void deliver(std::size_t most) {
    for (const int from : {0, 1}) {
      on_way_[from] += taken(end(from).link.out());
      const std::string part = on_way_[from].substr(0, most);
      on_way_[from].erase(0, part.size());
      end(1 - from).take(part, 1);
      for (auto& [session, ways] : ways_) end(1 - from).link.grant(session, one_of(3) * 1000);
    }
  }

  void deliver_all() {
    for (int round = 0; round < 50; ++round) deliver(~std::size_t{0});
  }

  bool all_arrived(std::uint32_t session) {
    return link_.worker.got[session] == ways_[session][0].sent &&
           link_.head.got[session] == ways_[session][1].sent;
  }

  void judge(std::uint32_t session, const std::array<Way, 2>& ways) {
    for (const int from : {0, 1}) {
      const std::string& got = end(1 - from).got[session];
      CHECK(ways[from].sent.starts_with(got));
      if (resets_.contains(session)) continue;
      CHECK(got == ways[from].sent);
      CHECK(end(1 - from).home[session] == ways[from].said);
      CHECK(end(1 - from).ended.contains(session) == ways[from].finished);
    }
    if (!resets_.contains(session)) return;
    CHECK(!link_.head.link.has(session) && !link_.worker.link.has(session));
  }

  std::minstd_rand random_;
  Link link_{dllm::link::kHome};
  std::map<std::uint32_t, std::array<Way, 2>> ways_;
  std::set<std::uint32_t> resets_;
  std::string on_way_[2];
};

}  // namespace

TEST(a_link_carries_what_plain_pipes_would) {
  for (std::uint32_t seed = 1; seed <= 60; ++seed) Model(seed).run(400);
}

RUN_TESTS()
