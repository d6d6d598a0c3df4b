// A start of llama-server like the one before: what it is told before it asks, and that what was
// allocated for it is neither in its way nor left over.
#include "starts.h"

using namespace starts;

TEST(a_start_like_the_last_waits_for_a_greeting_and_a_buffer) {
  for (const Version version : {Version{6, 0, 0}, k7, k8}) {
    for (const std::string& last : {recompute(version), graph(version, {})}) {
      Accountant server(version);
      Relays relays(server);
      CHECK(begin(relays, kUsual, version, last) == 1 + 3 + 2);
      for (int again = 0; again < 3; ++again) {
        CHECK(begin(relays, kUsual, version, last) == 2);
      }
      CHECK(server.count(dllm::kFreeBuffer) == 0);
      CHECK(server.count(dllm::kAllocBuffer) == 4 * 3);
      const auto& asked = relays.near.tally.commands[dllm::kAllocBuffer];
      CHECK(asked.count == 4 * 3 && asked.answered == 3 * 2 && asked.errors == 0);
      CHECK(asked.bytes_up == 12 * (9 + 12) && asked.bytes_down == 12 * (8 + 16));
      CHECK(relays.far.tally.commands[dllm::kAllocBuffer].answered == 3 * 2);
    }
  }
}

TEST(another_start_gets_its_own_buffers_and_no_memory_twice) {
  Accountant server(k8);
  Relays relays(server);
  begin(relays, kUsual);
  // The second is another: the one allocated for it goes first.
  const Start other{{900 * kMiB, 80 * kMiB, 30 * kMiB}, kUsual.tensors};
  CHECK(begin(relays, other) == 4);
  CHECK(server.count(dllm::kFreeBuffer) == 2);
  CHECK(begin(relays, other) == 2);
  const Start shorter{{900 * kMiB}, {}};
  CHECK(begin(relays, shorter) == 2);
  CHECK(server.count(dllm::kFreeBuffer) == 4);
}

TEST(nothing_is_allocated_ahead_where_there_is_no_room) {
  Accountant server(k8);
  Relays relays(server);
  begin(relays, kUsual);
  relays.near.answers.forget();
  server.hang_up();
  Connection loading(relays);
  loading.ask(hello(k8));
  // Somebody else has the rest.
  server.live[99] = kFree - 920 * kMiB;
  loading.ask(buffer_question(900 * kMiB));
  CHECK(server.live.size() == 2);
  server.live.erase(99);
  const std::string given = reply(bytes(std::uint64_t{2}, 70 * kMiB));
  CHECK(loading.ask(buffer_question(70 * kMiB)) == given && loading.waited);
}

TEST(what_is_there_is_handed_out_though_there_was_no_room_for_the_next) {
  Accountant server(k8);
  Relays relays(server);
  begin(relays, kUsual);
  relays.near.answers.forget();
  server.hang_up();
  Connection loading(relays);
  loading.ask(hello(k8));
  server.live[99] = kFree - 971 * kMiB;
  loading.ask(buffer_question(900 * kMiB));
  CHECK(server.live.size() == 3);
  const std::string given = reply(bytes(std::uint64_t{2}, 70 * kMiB));
  CHECK(loading.ask(buffer_question(70 * kMiB)) == given && !loading.waited);
  CHECK(!loading.near.is_contradicted() && server.count(dllm::kFreeBuffer) == 0);
}

TEST(whoever_asks_how_much_is_free_is_told_without_what_nobody_asked_for) {
  Accountant server(k8);
  Relays relays(server);
  begin(relays, kUsual);
  relays.near.answers.forget();
  server.hang_up();
  Connection loading(relays);
  loading.ask(hello(k8));
  loading.ask(buffer_question(900 * kMiB));
  CHECK(server.live.size() == 3);
  relays.now += dllm::Answers::kStartMax + 1;
  const std::string memory = device_question(dllm::kGetDeviceMemory);
  CHECK(loading.ask(memory) == reply(bytes(kFree - 900 * kMiB, kTotal)) && loading.waited);
  CHECK(server.count(dllm::kFreeBuffer) == 2 && server.live.size() == 3);
  const std::string given = reply(bytes(std::uint64_t{2}, 70 * kMiB));
  CHECK(loading.ask(buffer_question(70 * kMiB)) == given && !loading.waited);
}

TEST(a_head_that_does_not_know_of_spare_buffers_is_told_of_none) {
  Accountant server(k8);
  Relays relays(server);
  begin(relays, kUsual);
  relays.near.answers.forget();
  server.hang_up();
  Session far(relays.far);
  far.ask_ahead(false);
  std::string asked = hello(k8);
  const auto answered = [&](const Outgoing& out) {
    std::string replies = server.answer(text(out));
    far.replies(bytes_of(replies), relays.now);
    return text(out);
  };
  answered(far.requests(bytes_of(asked), relays.now));
  while (!answered(far.own_requests(relays.now)).empty()) continue;
  far.take_known();
  asked = buffer_question(900 * kMiB);
  answered(far.requests(bytes_of(asked), relays.now));
  while (!answered(far.own_requests(relays.now)).empty()) continue;
  CHECK(server.live.size() == 1);
  for (const dllm::Known& known : far.take_known()) CHECK(known.key[0] != dllm::kAllocBuffer);
}

TEST(a_server_with_other_devices_is_noticed_before_anything_is_believed) {
  struct Other final : Server {
    using Server::Server;
    std::string answer(std::uint8_t id, const std::string& fields) override {
      if (id == changed) return reply(std::string(id == dllm::kDeviceCount ? 4 : 8, '\1'));
      return Server::answer(id, fields);
    }
    int changed = -1;
  };
  for (const int id : {dllm::kDeviceCount, dllm::kGetAlignment, dllm::kGetMaxSize,
                       dllm::kGetAllocSize}) {
    Other server(k8);
    Relays relays(server);
    {
      Connection before(relays);
      before.ask(hello(k8));
      before.ask(request(dllm::kGetAllocSize, product(512)));
    }
    relays.near.answers.forget();
    look_around(relays, k8);
    server.changed = id;
    Connection loading(relays);
    CHECK(loading.ask(hello(k8)) == hello_reply(k8) && !loading.crossed);
    loading.ask(allocation_question());
    CHECK(loading.near.is_contradicted());
  }
}

// Sizes of devices that are no more would end the connection.
TEST(only_what_this_server_can_be_asked_is_asked_again) {
  dllm::Precedents precedents;
  precedents.learn(k8);
  precedents.size_asked(product(512));
  precedents.size_asked(product(512));
  CHECK(precedents.sizes().size() == 1);
  for (std::uint32_t i = 0; i < 2 * dllm::Precedents::kSizesMax; ++i) {
    precedents.size_asked(product(3 + i));
    precedents.allocated({std::to_string(i), "more"});
  }
  CHECK(precedents.sizes().size() == dllm::Precedents::kSizesMax);
  CHECK(precedents.behind("0").empty() && precedents.behind("95").size() == 1);
  precedents.learn(k7);
  CHECK(precedents.sizes().empty() && precedents.behind("95").empty());

  Server server(k8);
  Relays relays(server);
  relays.far.precedents.learn(k8);
  const std::uint64_t each = 64;
  relays.far.precedents.learn(bytes(std::uint32_t{2}, each, each, each, each));
  std::string of_third = product(512);
  of_third[0] = 2;
  relays.far.precedents.size_asked(of_third);
  Connection first(relays);
  first.ask(hello(k8));
  CHECK(server.count(dllm::kGetAllocSize) == 0 && relays.far.precedents.sizes().size() == 1);
}

// Whatever it asks, it is told what it would be told by the server alone.
TEST(any_start_is_told_what_a_server_alone_would_tell) {
  Random random(11);
  Accountant server(k8);
  Relays relays(server);
  for (int round = 0; round < 100; ++round) {
    relays.near.answers.forget();
    server.hang_up();
    Connection client(relays);
    CHECK(client.ask(hello(k8)) == hello_reply(k8));
    std::map<std::uint64_t, std::uint64_t> own;
    std::uint64_t most = 0;
    for (int step = 0; step < 12; ++step) {
      std::uint64_t taken = 0;
      for (const auto& [handle, size] : own) taken += size;
      const std::uint64_t size = (1 + random() % 2) * 500 * kMiB;
      std::string got;
      switch (random() % 8) {
        case 0:
        case 1:
        case 2:
        case 3: {
          got = client.ask(buffer_question(size));
          std::uint64_t handle = 0, given = 0;
          std::memcpy(&handle, &got[8], 8);
          std::memcpy(&given, &got[16], 8);
          CHECK((handle != 0) == (taken + size <= kFree) && (handle == 0 || !own.contains(handle)));
          if (handle) own[handle] = given;
          CHECK(handle == 0 || (given == size && server.live.at(handle) == size));
          most = std::max(most, taken + given);
          break;
        }
        case 4:
          CHECK(client.ask(device_question(dllm::kGetDeviceMemory)) ==
                reply(bytes(kFree - taken, kTotal)));
          break;
        case 5:
          if (own.empty()) break;
          CHECK(client.ask(request(dllm::kBufferGetBase, bytes(own.begin()->first))) ==
                reply(bytes(Accountant::base(own.begin()->first))));
          break;
        case 6:
          if (own.empty() || random() % 2) break;
          CHECK(client.ask(request(dllm::kFreeBuffer, bytes(own.begin()->first))).empty());
          own.erase(own.begin());
          break;
        default:
          if (random() % 2) client.ask(recompute(k8));
      }
      for (const auto& [handle, bytes_of_it] : own) CHECK(server.live.at(handle) == bytes_of_it);
    }
    client.ask(recompute(k8));
    CHECK(server.live == own);
    CHECK(!client.refused && !client.near.is_contradicted() && client.near.awaited() == 0);
    CHECK(client.far.awaited() == 0);
  }
  CHECK(relays.near.tally.commands[dllm::kAllocBuffer].answered > 10);
}

RUN_TESTS()
