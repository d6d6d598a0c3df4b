// What is asked at the worker's end before the client asks it, and answered at the head's: the two
// sessions of a connection, joined without a link.
#include <map>

#include "link/size_guesses.h"
#include "prefetch_sessions.h"

using namespace prefetch_sessions;

namespace {

constexpr std::uint64_t kMiB = 1 << 20;

// Gives every buffer a place of its own, and knows how much is free.
struct Accountant final : Server {
  using Server::answer;
  using Server::Server;
  std::string answer(std::uint8_t id, const std::string& fields) override {
    std::uint64_t number = 0;
    if (fields.size() >= 8) std::memcpy(&number, &fields[fields.size() - 8], 8);
    if (id == dllm::kAllocBuffer) return allocate(number);
    if (id == dllm::kBufferGetBase) return reply(bytes(base(number)));
    if (id == dllm::kGetDeviceMemory) return reply(bytes(left(), kTotal));
    if (id == dllm::kFreeBuffer) CHECK(live.erase(number) == 1);
    return Server::answer(id, fields);
  }
  std::string allocate(std::uint64_t size) {
    const bool fits = size <= left();
    // As the next of a real one often lies where the last did.
    std::uint64_t handle = 1;
    while (live.contains(handle)) ++handle;
    if (fits) live[handle] = size;
    return reply(fits ? bytes(handle, size) : std::string(16, '\0'));
  }
  static std::uint64_t base(std::uint64_t handle) { return kBase + (handle << 32); }
  std::uint64_t left() const {
    std::uint64_t free = kFree;
    for (const auto& [handle, size] : live) free -= size;
    return free;
  }
  std::map<std::uint64_t, std::uint64_t> live;
};

std::string buffer_question(std::uint64_t size) {
  return request(dllm::kAllocBuffer, bytes(std::uint32_t{0}, size));
}

}  // namespace

TEST(a_start_greets_once_and_knows_the_devices) {
  for (const Version version : kVersions) {
    if (version < Version{3, 0, 0}) continue;
    Relays relays(version);
    look_around(relays, version);
    for (int again = 0; again < 5; ++again) {
      Connection next(relays);
      CHECK(next.ask(hello(version)) == hello_reply(version) && !next.crossed);
      for (std::uint32_t device = 0; device < 2; ++device) {
        const std::string memory = device_question(dllm::kGetDeviceMemory, device);
        CHECK(next.ask(memory) == reply(bytes(kFree, kTotal)) && !next.crossed);
        for (const std::uint8_t id : {dllm::kGetAlignment, dllm::kGetMaxSize}) {
          CHECK(next.ask(device_question(id, device)) == reply(bytes(std::uint64_t{64})));
          CHECK(!next.crossed);
        }
      }
    }
    CHECK(relays.server.count(dllm::kHello) == 1);
    CHECK(relays.server.count(dllm::kGetDeviceMemory) == 2);
    CHECK(relays.near.tally.passthrough_reason.empty() && relays.near.tally.refused == 0);
    const auto& hellos = relays.near.tally.commands[dllm::kHello];
    CHECK(hellos.count == 6 && hellos.answered == 5 && hellos.errors == 0);
  }
}

TEST(versions_without_devices_are_asked_as_ever) {
  for (const Version version : {Version{1, 0, 0}, Version{2, 0, 0}, Version{5, 3, 0}}) {
    Relays relays(version);
    for (std::size_t again = 1; again <= 2; ++again) {
      Connection next(relays);
      CHECK(next.ask(hello(version)) == hello_reply(version) && next.crossed);
      CHECK(relays.server.asked == std::vector<std::uint8_t>(again, dllm::kHello));
    }
  }
}

TEST(what_has_to_cross_takes_its_greeting_along) {
  Relays relays(k8);
  look_around(relays, k8);
  Connection loading(relays);
  CHECK(loading.ask(hello(k8)) == hello_reply(k8) && !loading.crossed);
  const std::string given = reply(bytes(kBuffer, kBufferBytes));
  CHECK(loading.ask(allocation_question()) == given && loading.crossed);
  CHECK(relays.server.count(dllm::kHello) == 2);
  // Again, and whether it is the same server is seen by what it says.
  CHECK(relays.server.count(dllm::kDeviceCount) == 2);
  CHECK(loading.ask(address_question()) == reply(bytes(kBase)) && !loading.crossed);
  const std::string set = set_tensor(k8, row_of(400), std::string(400, 'w'));
  CHECK(loading.ask(set).empty() && loading.crossed && !loading.refused);
  CHECK(loading.near.awaited() == 0 && loading.far.awaited() == 0);
}

TEST(an_address_is_told_as_long_as_its_buffer_lives) {
  Relays relays(k8);
  Connection loading(relays);
  loading.ask(hello(k8));
  loading.ask(allocation_question());
  CHECK(loading.ask(address_question()) == reply(bytes(kBase)) && !loading.crossed);
  loading.ask(request(dllm::kFreeBuffer, bytes(kBuffer)));
  CHECK(loading.ask(address_question()) == reply(bytes(kBase)) && loading.crossed);
  relays.server.has_room = false;
  const auto asked = relays.server.count(dllm::kBufferGetBase);
  CHECK(loading.ask(allocation_question()) == reply(std::string(16, '\0')));
  CHECK(relays.server.count(dllm::kBufferGetBase) == asked);
}

TEST(memory_is_told_anew_once_some_of_it_was_allocated) {
  const std::string memory = device_question(dllm::kGetDeviceMemory);
  const std::string left = reply(bytes(std::uint64_t{7}, kTotal));
  Relays relays(k8);
  look_around(relays, k8);
  {
    Connection loading(relays);
    loading.ask(hello(k8));
    CHECK(loading.ask(memory) == reply(bytes(kFree, kTotal)) && !loading.crossed);
    relays.server.free_bytes = 7;
    loading.ask(allocation_question());
    // A draft model is placed where the model before it has left room.
    CHECK(loading.ask(memory) == left && !loading.crossed);
    const std::string other = device_question(dllm::kGetDeviceMemory, 1);
    CHECK(loading.ask(other) == left && loading.crossed);
    relays.now += dllm::ReplyCache::kStartMax + 1;
    CHECK(loading.ask(memory) == left && loading.crossed);
    loading.ask(allocation_question());
    loading.ask(request(dllm::kFreeBuffer, bytes(kBuffer)));
    CHECK(loading.ask(memory) == left && loading.crossed);
  }
  Connection next(relays);
  CHECK(next.ask(hello(k8)) == hello_reply(k8) && next.crossed);
  CHECK(next.ask(memory) == left);
}

// Told behind the first of two allocations, both asked for without waiting.
TEST(what_was_told_before_another_question_is_not_believed_behind_it) {
  Relays relays(k8);
  Connection loading(relays);
  loading.ask(hello(k8));
  std::string asked = allocation_question() + allocation_question();
  loading.near.requests(bytes_of(asked), relays.now);
  const std::string device = bytes(std::uint32_t{0});
  CHECK(
      loading.near.keep_prefetched({char(dllm::kGetDeviceMemory) + device, bytes(kFree, kTotal)}));
  CHECK(loading.near.keep_prefetched(
      {dllm::ReplyCache::base(dllm::view(bytes(kBuffer))), bytes(kBase)}));
  std::string given = reply(bytes(kBuffer, kBufferBytes)) + reply(bytes(kBuffer, kBufferBytes));
  loading.near.replies(bytes_of(given), relays.now);
  for (std::string each : {device_question(dllm::kGetDeviceMemory), address_question()}) {
    CHECK(!loading.near.requests(bytes_of(each), relays.now).worker.empty());
    const bool is_address = each == address_question();
    std::string got = is_address ? reply(bytes(kBase)) : reply(bytes(kFree, kTotal));
    loading.near.replies(bytes_of(got), relays.now);
  }
}

TEST(memory_is_told_anew_once_llama_server_has_started) {
  const std::string memory = device_question(dllm::kGetDeviceMemory);
  for (const std::string& last : {recompute(k8), graph(k8, {})}) {
    Relays relays(k8);
    look_around(relays, k8);
    Connection loading(relays);
    loading.ask(hello(k8));
    loading.ask(last);
    CHECK(!loading.refused);
    relays.server.free_bytes = 7;
    const std::string left = reply(bytes(std::uint64_t{7}, kTotal));
    CHECK(loading.ask(memory) == left && loading.crossed);
    loading.ask(allocation_question());
    CHECK(loading.ask(memory) == left && loading.crossed);
  }
}

TEST(a_start_that_goes_on_for_long_is_told_anew) {
  Relays relays(k8);
  look_around(relays, k8);
  relays.server.free_bytes = 7;
  relays.now += dllm::ReplyCache::kStartMax + 1;
  Connection next(relays);
  CHECK(next.ask(hello(k8)) == hello_reply(k8) && next.crossed);
  const std::string memory = device_question(dllm::kGetDeviceMemory);
  CHECK(next.ask(memory) == reply(bytes(std::uint64_t{7}, kTotal)));
}

TEST(a_worker_that_became_another_is_noticed_before_it_is_believed) {
  Relays relays(k8);
  look_around(relays, k8);
  Connection loading(relays);
  CHECK(loading.ask(hello(k8)) == hello_reply(k8) && !loading.crossed);
  relays.server.version = k7;
  CHECK(loading.ask(allocation_question()).empty());
  CHECK(loading.near.is_contradicted());
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
  for (const int id : {dllm::kDeviceCount, dllm::kGetAlignment, dllm::kGetMaxSize}) {
    Other server(k8);
    Relays relays(server);
    look_around(relays, k8);
    server.changed = id;
    Connection loading(relays);
    CHECK(loading.ask(hello(k8)) == hello_reply(k8) && !loading.crossed);
    loading.ask(allocation_question());
    CHECK(loading.near.is_contradicted());
  }
}

TEST(what_is_not_understood_behind_a_greeting_told_here_ends_the_connection) {
  Relays relays(k8);
  look_around(relays, k8);
  dllm::Link open("w", true, false);
  open.reply_cache = relays.near.reply_cache;
  Session near(open);
  std::string greeting = hello(k8), unknown = request(99, "abc");
  CHECK(near.requests(bytes_of(greeting), relays.now).answers == hello_reply(k8));
  near.requests(bytes_of(unknown), relays.now);
  CHECK(near.is_contradicted());
}

TEST(answers_that_make_no_sense_are_none) {
  dllm::Link link("w", true, true);
  Session near(link);
  const std::string eight(8, '\1');
  using dllm::PrefetchedReply;
  for (const PrefetchedReply& bad :
       {PrefetchedReply{"", eight}, PrefetchedReply{{dllm::kGetTensor}, eight},
        PrefetchedReply{{dllm::kHello}, eight},
        PrefetchedReply{{dllm::kGetAlignment}, eight + eight},
        PrefetchedReply{{dllm::kDeviceCount}, ""},
        PrefetchedReply{std::string(513, dllm::kGetAllocSize), eight}}) {
    CHECK(!near.keep_prefetched(bad));
  }
  CHECK(near.keep_prefetched({{dllm::kGetAlignment}, eight}));
}

TEST(sizes_for_few_tokens_are_asked_with_those_for_many) {
  for (const Version version : {k7, k8}) {
    Relays relays(version);
    Connection loading(relays);
    loading.ask(hello(version));
    for (const auto& [asked, soon] :
         {std::pair{product(512), std::vector{product(1), product(2)}},
          {attention(512, 2048), {attention(1, 2048), attention(2, 256), attention(1, 256)}},
          {attention(64, 256), {attention(1, 256), attention(2, 256)}}}) {
      const auto told = [&](const std::string& fields) {
        return reply(bytes(std::uint64_t{std::hash<std::string>{}(fields)}));
      };
      CHECK(loading.ask(request(dllm::kGetAllocSize, asked)) == told(asked) && loading.crossed);
      for (const std::string& each : soon) {
        CHECK(loading.ask(request(dllm::kGetAllocSize, each)) == told(each) && !loading.crossed);
      }
    }
  }
}

// Ours would stand before those of the client, and count with them.
TEST(nothing_is_asked_ahead_of_what_the_client_asked_already) {
  Relays relays(k8);
  Connection loading(relays);
  loading.ask(hello(k8));
  const auto ask = [&](std::size_t count) {
    std::string all;
    for (std::size_t i = 0; i < count; ++i) all += request(dllm::kGetAllocSize, product(512));
    const Outgoing out = loading.far.requests(bytes_of(all), relays.now);
    CHECK(!out.refused && text(out) == all);
    return relays.server.answer(all);
  };
  std::string replies = ask(600);
  std::string most = replies.substr(0, 599 * 16);
  CHECK(text_of(loading.far.replies(bytes_of(most), relays.now)) == most);
  CHECK(text(loading.far.own_requests(relays.now)).empty());
  ask(1000);
  CHECK(!loading.far.is_contradicted() && relays.far.tally.passthrough_reason.empty());
}

TEST(a_greeting_taken_along_is_no_question_of_the_client) {
  Relays relays(k8);
  look_around(relays, k8);
  Connection loading(relays);
  loading.ask(hello(k8));
  for (std::size_t i = 0; i < dllm::Guard::kAwaitedMax; ++i) {
    std::string asked = request(dllm::kGetAllocSize, product(1));
    CHECK(!loading.near.requests(bytes_of(asked), relays.now).worker.empty());
  }
  CHECK(!loading.near.is_contradicted() && relays.near.tally.passthrough_reason.empty());
}

TEST(sizes_of_what_is_neither_product_nor_attention_lead_to_no_questions) {
  const auto guesses = [](const std::string& fields) {
    return dllm::size_guesses(dllm::view(fields));
  };
  CHECK(guesses(product(2)).empty() && guesses(product(1)).empty());
  CHECK(guesses(attention(2, 2048)).empty());
  CHECK(guesses(product(512).substr(0, 300)).empty() && guesses("").empty());
  std::string other = product(512);
  write<std::uint32_t>(other, 4 + 2 * dllm::kTensorBytes + 24, 511);
  CHECK(guesses(other).empty());
  Random random(1);
  for (int i = 0; i < 2000; ++i) guesses(random_bytes(random, 4 + 11 * dllm::kTensorBytes));
}

// Whatever it asks, it is told what it would be told by the server alone.
TEST(any_start_is_told_what_a_server_alone_would_tell) {
  Random random(11);
  Accountant server(k8);
  Relays relays(server);
  for (int round = 0; round < 100; ++round) {
    relays.near.reply_cache.forget();
    server.live.clear();
    Connection client(relays);
    CHECK(client.ask(hello(k8)) == hello_reply(k8));
    std::map<std::uint64_t, std::uint64_t> own;
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
}

RUN_TESTS()
