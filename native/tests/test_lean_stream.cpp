// Streams of requests, cut anywhere, through a Sender and a Receiver.
#include "check.h"
#include "lean/stream.h"
#include "lean_masks.h"
#include "recordings.h"

using dllm::Version;
using dllm::View;
using lean_masks::Mask;
using transcript::Random;
namespace lean = dllm::lean;

namespace {

View view(const std::string& bytes) {
  return {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
}

// Pieces of all lengths; of long streams most are long.
std::vector<std::string> cut(Random& random, const std::string& bytes) {
  std::vector<std::string> pieces;
  const std::size_t longest = bytes.size() > 100000 ? 17 : 11;
  for (std::size_t at = 0; at < bytes.size(); at += pieces.back().size()) {
    pieces.push_back(bytes.substr(at, 1 + random() % (std::size_t{1} << (1 + random() % longest))));
  }
  return pieces;
}

// Two ends, and between them frames that end anywhere.
struct Link {
  explicit Link(std::uint32_t seed) : random(seed) {}
  Random random;
  lean::Sender sender;
  lean::Receiver receiver;
  std::string received;
  std::size_t wire_bytes = 0;
  std::size_t held_most = 0;  // of what a receiver gave at a time

  void send(const std::string& requests) {
    for (const std::string& piece : cut(random, requests)) {
      lean::Buffer wire;
      sender.requests(view(piece), wire);
      carry(wire);
    }
  }
  void end() {
    lean::Buffer wire;
    sender.end(wire);
    carry(wire);
  }
  void carry(const lean::Buffer& wire) {
    wire_bytes += wire.size();
    const std::string text(wire.begin(), wire.end());
    for (const std::string& frame : cut(random, text)) take(view(frame));
  }
  void take(View frame) {
    while (!frame.empty() && !receiver.is_lost()) {
      lean::Buffer out;
      frame = frame.subspan(receiver.take(frame, out));
      held_most = std::max(held_most, out.size());
      received.append(out.begin(), out.end());
    }
  }
};

}  // namespace

TEST(streams_of_real_sessions_come_out_as_they_went_in) {
  for (const auto* sessions : {&recordings::all(), &recordings::depth()}) {
    for (const recordings::Session& session : *sessions) {
      Link link(1);
      const auto& conversation = session.conversations.back();
      const std::string stream = recordings::stream(conversation, true);
      const std::size_t greeting = conversation.front().bytes.size();
      link.send(stream.substr(0, greeting));
      CHECK(link.received == stream.substr(0, greeting));
      if (session.version) link.sender.learned(*session.version);
      link.send(stream.substr(greeting));
      link.end();
      CHECK(link.received == stream);
      CHECK(link.held_most <= lean::Receiver::kMostBytes + lean::kGraphRequestBytes);
      if (session.version) CHECK(link.wire_bytes < stream.size());
    }
  }
}

TEST(a_version_is_told_between_requests_and_empties_both_ends) {
  Link link(2);
  const Version version{8, 0, 0};
  const std::string request = transcript::get_tensor({}, 0, 16);
  link.send(request.substr(0, 20));
  link.sender.learned(version);
  link.send(request.substr(20) + request + request);
  const std::size_t before = link.wire_bytes;
  link.send(request);
  CHECK(link.wire_bytes - before == 2);
  link.sender.learned(version);
  link.send(request);
  CHECK(link.wire_bytes - before > 20);
  CHECK(link.received == request + request + request + request + request);
}

TEST(data_that_go_another_way_leave_their_heads) {
  for (const Version version : {Version{3, 6, 0}, Version{7, 0, 0}, Version{8, 0, 0}}) {
    Link link(6);
    link.sender.learned(version);
    const std::string other = transcript::get_tensor({}, 0, 16);
    transcript::TensorSpec spec = transcript::row_of(1 << 20);
    std::string expected;
    std::size_t of_heads = 0;
    for (int i = 0; i < 100; ++i) {
      spec.name = "blk." + std::to_string(i) + ".weight";
      spec.data += 1 << 20;
      const std::string whole = transcript::set_tensor(version, spec, std::string(1 << 10, 'w'));
      const std::string head = whole.substr(0, whole.size() - (1 << 10));
      const std::size_t before = link.wire_bytes;
      lean::Buffer wire;
      link.sender.head(view(head), wire);
      link.carry(wire);
      of_heads += link.wire_bytes - before;
      if (i % 3 == 0) link.send(other);
      expected += head + (i % 3 == 0 ? other : "");
    }
    // A whole one follows as ever.
    const std::string last = transcript::set_tensor(version, spec, std::string(5000, 'w'));
    link.send(last);
    CHECK(link.received == expected + last && !link.receiver.is_lost());
    CHECK(of_heads < 100 * 40);
  }
}

TEST(what_is_no_protocol_comes_out_too) {
  Random random(3);
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    Link link(seed);
    const std::string junk = transcript::random_bytes(random, random() % 3000);
    if (seed % 2) link.sender.learned({7, 0, 0});
    link.send(junk);
    link.end();
    CHECK(link.received == junk);
  }
}

TEST(a_client_that_ends_in_the_middle_of_a_request_is_heard_to_the_end) {
  const Version version{8, 0, 0};
  const std::string stream = lean_masks::request(version, Mask{.cells = 1024, .tokens = 512}) +
                             transcript::graph(version, {transcript::tensor({})});
  for (std::size_t bytes = 0; bytes < stream.size(); bytes += 1 + bytes * 7 % 90001) {
    Link link(4);
    link.sender.learned(version);
    link.send(stream.substr(0, bytes));
    link.end();
    CHECK(link.received == stream.substr(0, bytes));
  }
}

TEST(a_few_bytes_make_only_so_many_at_a_time) {
  Link link(5);
  const Version version{8, 0, 0};
  link.sender.learned(version);
  lean::Buffer wire;
  const std::string request =
      lean_masks::request(version, {.cells = 8192, .tokens = 512, .before = 7600});
  link.sender.requests(view(request), wire);
  CHECK(wire.size() < 8192);
  link.take(wire);
  CHECK(link.received == request);
  CHECK(link.held_most < 512 << 10);
}

TEST(what_no_sender_wrote_is_refused) {
  const lean::Buffer messages[] = {
      {0},
      {0x80, 0x80, 0x80, 0x80},
      {0xff, 0xff, 0xff, 0x7f},
      {2, lean::kVersion, 8},
      {2, lean::kLoose, 0},
      {1, lean::kSameHead},
      {1, 0xff},
  };
  for (const lean::Buffer& message : messages) {
    Link link(6);
    link.take(message);
    CHECK(link.receiver.is_lost() && link.received.empty());
  }
}

RUN_TESTS()
