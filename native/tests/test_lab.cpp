#include <atomic>
#include <future>
#include <thread>

#include "check.h"
#include "netem/lab.h"
#include "netem/delay_line.h"

using dllm::Bytes;
using dllm::Lab;
using dllm::LabSettings;
using dllm::Nanos;
using dllm::parse_lab_command;
using dllm::Schedule;

namespace {

constexpr Nanos kMilli = 1'000'000;

std::string text(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Bytes bytes_of(std::string& text) {
  return {reinterpret_cast<std::uint8_t*>(text.data()), text.size()};
}

}  // namespace

TEST(pipelined_messages_are_delayed_once) {
  Schedule schedule(0);
  schedule.apply({10, 0, 0, 1});
  for (int i = 0; i < 7; ++i)
    CHECK(schedule.arrival(i * 1000, 500, i == 0) == 10 * kMilli + i * 1000);
}

TEST(a_rate_delays_by_size_and_queues) {
  Schedule schedule(0);
  schedule.apply({1, 0, 10, 1});  // 10 MB/s: 100 ns a byte
  CHECK(schedule.arrival(0, 10'000, true) == 2 * kMilli);
  CHECK(schedule.arrival(0, 10'000, false) == 3 * kMilli);
  CHECK(schedule.arrival(50 * kMilli, 10'000, true) == 52 * kMilli);
}

TEST(jitter_keeps_the_order_and_repeats_with_its_seed) {
  const auto run = [](std::uint64_t seed) {
    Schedule schedule(1);
    schedule.apply({5, 3, 0, seed});
    std::vector<Nanos> arrivals;
    for (int i = 0; i < 1000; ++i) arrivals.push_back(schedule.arrival(i * kMilli, 100, true));
    return arrivals;
  };
  const auto first = run(7);
  CHECK(first == run(7));
  CHECK(first != run(8));
  for (std::size_t i = 1; i < first.size(); ++i) CHECK(first[i] >= first[i - 1]);
}

TEST(without_lab_bytes_go_straight_through) {
  const Lab lab;
  const auto caller = std::this_thread::get_id();
  bool direct = false;
  dllm::Pacer pacer(lab, 0, [&](Bytes) { return direct = std::this_thread::get_id() == caller; });
  std::string data = "x";
  CHECK(pacer.send(bytes_of(data)));
  CHECK(direct);
}

TEST(order_survives_switching_the_lab) {
  Lab lab;
  std::string got;
  dllm::Pacer pacer(lab, 0, [&](Bytes bytes) {
    got += text(bytes);
    return true;
  });
  std::string sent;
  for (int i = 0; i < 200; ++i) {
    if (i % 20 == 0) lab.set({i % 40 == 0 ? 3.0 : 0.0, 1, 0, 1});
    if (i == 150) lab.set({});
    std::string piece = std::to_string(i) + ",";
    sent += piece;
    CHECK(pacer.send(bytes_of(piece)));
  }
  pacer.drain();
  CHECK(got == sent);
}

TEST(an_old_delay_is_forgotten) {
  Schedule schedule(0);
  schedule.apply({3000, 0, 0, 1});
  CHECK(schedule.arrival(0, 100, true) == 3000 * kMilli);
  schedule.apply({1, 0, 0, 1});
  CHECK(schedule.arrival(0, 100, true) == 1 * kMilli);
}

TEST(bytes_under_way_arrive_by_the_new_delay) {
  Lab lab;
  lab.set({60'000, 0, 0, 1});
  std::string got;
  dllm::Pacer pacer(lab, 0, [&](Bytes bytes) {
    got += text(bytes);
    return true;
  });
  std::string first = "first,", second = "second";
  CHECK(pacer.send(bytes_of(first)));
  // Off for so short a time that nobody looks.
  lab.set({});
  lab.set({1, 0, 0, 1});
  CHECK(pacer.send(bytes_of(second)));
  const Nanos start = dllm::monotonic_now();
  pacer.drain();
  CHECK(dllm::monotonic_now() - start < 30'000 * kMilli);
  CHECK(got == "first,second");
}

TEST(a_delay_alone_takes_nothing_off_the_rate) {
  Lab lab;
  lab.set({60'000, 0, 0, 1});
  dllm::Pacer pacer(lab, 0, [](Bytes) { return true; });
  // As much as ten gigabits a second bring under way in 20 ms: nobody waits for its arrival.
  std::string block(23 << 20, 'x');
  CHECK(dllm::DelayLine::under_way_max({20, 0, 0, 1}) >= block.size());
  CHECK(pacer.send(bytes_of(block)));
  lab.set({});
  pacer.drain();
}

TEST(what_is_under_way_is_bounded) {
  const LabSettings slow{60'000, 0, 0.01, 1};
  Lab lab;
  lab.set(slow);
  std::atomic<std::size_t> got = 0;
  dllm::Pacer pacer(lab, 0, [&](Bytes bytes) {
    got += bytes.size();
    return true;
  });
  std::string block(dllm::DelayLine::under_way_max(slow), 'x');
  CHECK(pacer.send(bytes_of(block)));
  // As much again waits until there is room.
  auto more = std::async(std::launch::async, [&] { return pacer.send(bytes_of(block)); });
  CHECK(more.wait_for(std::chrono::milliseconds(200)) == std::future_status::timeout);
  CHECK(got == 0);
  lab.set({});
  CHECK(more.get());
  pacer.drain();
  CHECK(got == 2 * block.size());
  CHECK(dllm::DelayLine::under_way_max({60'000, 0, 0, 1}) <= 256 << 20);
}

TEST(commands) {
  const auto lab = parse_lab_command(
      R"( {"lab": {"latency_ms": 20, "jitter_ms":2.5, "rate_mb_s": 30, "seed": 9}} )");
  CHECK(lab && lab->latency_ms == 20 && lab->jitter_ms == 2.5 && lab->rate_mb_s == 30);
  CHECK(lab && lab->seed == 9 && lab->on());
  const auto off = parse_lab_command(R"({"lab":null})");
  CHECK(off && !off->on());
  CHECK(parse_lab_command(R"({"lab":{}})") && !parse_lab_command(R"({"lab":{}})")->on());
  for (const char* bad :
       {"", "{}", "{\"lab\"", R"({"lab":{"latency_ms":-1}})", R"({"lab":{"latency_ms":1e9}})",
        R"({"lab":{"latency_ms":nan}})", R"({"lab":{"other":1}})", R"({"lab":{"latency_ms":1,}})",
        R"({"lab":null}x)", R"({"lab":{"latency_ms":}})", R"({"lab":{"latency_ms":"1"}})"}) {
    CHECK(!parse_lab_command(bad));
  }
}

RUN_TESTS()
