// What protects a link: both ends with the key, one with another, and what was changed on the way.
#include <sys/stat.h>

#include <cstdlib>

#include "check.h"
#include "link/link_address.h"
#include "link/transport_security.h"
#include "text_of.h"

using namespace dllm::link;

namespace {

constexpr Key kKey{1, 2, 3};

std::string taken(ByteQueue& queue) {
  std::string text(text_of(queue.all()));
  queue.clear();
  return text;
}

// Both ends, and what is on its way between them.
struct Two {
  explicit Two(const Key& dialer = kKey, const Key& listener = kKey)
      : ends{make_tls_security(dialer, true), make_tls_security(listener, false)} {
    for (int end : {0, 1}) ends[end]->begin(on_way[end]);
  }
  // Hands on what one end sent, in pieces of this size.
  void carry(int from, std::size_t piece = 1 << 20) {
    const std::string bytes = taken(on_way[from]);
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      const std::string part = bytes.substr(at, piece);
      ends[1 - from]->open(view(part), opened[1 - from], on_way[1 - from]);
    }
  }
  void meet(std::size_t piece = 1 << 20) {
    for (int round = 0; round < 4; ++round) {
      carry(0, piece);
      carry(1, piece);
    }
  }
  std::unique_ptr<TransportSecurity> ends[2];
  ByteQueue on_way[2];  // from each
  ByteQueue opened[2];  // at each
};

std::string why_not(Two& two) {
  return check::thrown<LinkBroken>([&] { two.meet(); });
}

}  // namespace

TEST(two_ends_with_the_key_understand_each_other) {
  for (const std::size_t piece : {std::size_t{1}, std::size_t{7}, std::size_t{1} << 20}) {
    Two two;
    two.meet(piece);
    CHECK(two.ends[0]->is_ready() && two.ends[1]->is_ready());
    for (const int from : {0, 1}) {
      const std::string said(100'000, static_cast<char>('a' + from));
      ByteQueue plain;
      plain.append(view(said));
      two.ends[from]->close(plain, two.on_way[from]);
      CHECK(plain.empty());
      CHECK(two.on_way[from].size() > said.size());
      two.carry(from, piece);
      CHECK(taken(two.opened[1 - from]) == said);
    }
  }
}

TEST(another_key_learns_nothing_and_is_named) {
  for (const bool dialer : {false, true}) {
    Key wrong = kKey;
    wrong.back() ^= 1;
    Two two(dialer ? wrong : kKey, dialer ? kKey : wrong);
    CHECK(check::contains(why_not(two), "another key"));
    CHECK(!two.ends[0]->is_ready() && !two.ends[1]->is_ready());
    CHECK(two.opened[0].empty() && two.opened[1].empty());
  }
}

TEST(what_was_changed_on_the_way_ends_the_link) {
  Two two;
  two.meet();
  ByteQueue plain;
  plain.append(view("four"));
  two.ends[0]->close(plain, two.on_way[0]);
  two.on_way[0].all().back() ^= 1;
  CHECK(check::contains(check::thrown<LinkBroken>([&] { two.carry(0); }), "changed on the way"));
  CHECK(two.opened[1].empty());
}

TEST(no_tls_at_the_other_end_is_named) {
  Two two;
  const std::string plain = "dllmlink and what follows, which is no TLS at all";
  const auto open = [&] { two.ends[1]->open(view(plain), two.opened[1], two.on_way[1]); };
  CHECK(check::contains(check::thrown<LinkBroken>(open), "speaks no TLS"));
}

TEST(a_key_is_64_digits_in_a_file_of_ours) {
  const check::TempDir dir;
  const std::string path = dir / "key";
  const std::string digits(64, 'a');
  check::spill(path, digits + "\n");
  ::chmod(path.c_str(), 0600);
  CHECK(read_key_file(path)[31] == 0xaa);
  for (const mode_t mode : {0640, 0604, 0660}) {
    ::chmod(path.c_str(), mode);
    const std::string told = check::thrown<std::runtime_error>([&] { read_key_file(path); });
    CHECK(check::contains(told, "chmod 600"));
  }
  std::string odd = digits, space = digits;
  odd[0] = 'x';
  space[3] = ' ';
  for (const std::string& wrong : {digits.substr(1), digits + "a", odd, std::string(), space}) {
    const std::string told = check::thrown<std::runtime_error>([&] { parse_key(wrong, "here"); });
    CHECK(told == "the key here must be 64 hexadecimal digits (openssl rand -hex 32)");
  }
}

TEST(where_others_can_come_a_key_is_needed) {
  const auto refusal = [](const std::string& where) {
    const LinkAddress place{*dllm::parse_endpoint(where), false, std::nullopt};
    return check::thrown<std::runtime_error>([&] { judge(place); });
  };
  CHECK(refusal("unix:/tmp/x").empty());
  // Every user of this machine comes to its loopback.
  for (const char* open : {"127.0.0.1:1", "[::1]:1", "0.0.0.0:1", "192.168.0.2:1", "[fe80::1]:1"}) {
    CHECK(check::contains(refusal(open), "give both ends the same key"));
  }
  judge({*dllm::parse_endpoint("0.0.0.0:1"), false, kKey});
}

RUN_TESTS()
