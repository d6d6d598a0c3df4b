// Either end of a link before another that says anything at all, at first a well-formed greeting
// and frames of the right types, later not: an end refuses it in a sentence or goes on; it keeps to
// its bounds, hands on nothing that was not allowed, and never sends more than it may.
#include <algorithm>
#include <set>

#include "input.h"
#include "link_ends.h"
#include "model_worker.h"

namespace {

using dllm::link::LinkBroken;
using dllm::link::LinkEnd;
using fuzz::demand;
using link_ends::frame;
using link_ends::Role;

constexpr std::uint8_t kTypes[] = {0x01, 0x02, 0x03, 0x04, 0x10, 0x11, 0x11, 0x11,
                                   0x12, 0x13, 0x14, 0x15, 0x30, 0x31, 0x32, 0x7f, 0x05};

// Takes numbers off the front of an input; 0 when there are no more.
struct Numbers {
  std::span<const std::uint8_t> left;
  std::uint8_t next() {
    if (left.empty()) return 0;
    const std::uint8_t number = left[0];
    left = left.subspan(1);
    return number;
  }
  std::string bytes(std::size_t most) {
    const auto part = left.first(std::min(most, left.size()));
    left = left.subspan(part.size());
    return std::string(text_of(part));
  }
};

// Right sizes for most types; wrong ones now and then.
std::string some_frame(Numbers& numbers) {
  const std::uint8_t type = kTypes[numbers.next() % std::size(kTypes)];
  const std::uint8_t shape = numbers.next();
  std::size_t size = shape % 64;
  if (type == 0x01 || type == 0x02 || type == 0x15) size = 16;
  if (type == 0x12 || type == 0x05) size = 4;
  // Behind another connection a welcome is a count.
  if (type == 0x04) size = shape % 2 ? 8 : 0;
  if (type == 0x10 || type == 0x13) size = 0;
  if (shape == 0xff) ++size;
  const std::uint32_t session = type >= 0x10 && type != 0x31 ? numbers.next() % 5 : 0;
  std::string payload = numbers.bytes(size);
  payload.resize(size);
  // A count that may be one of ours.
  if (type == 0x04 || type == 0x05) std::fill(payload.begin() + std::min<long>(1, size), payload.end(), '\0');
  // A row of answers: two sizes that fit.
  if (type == 0x32 && shape != 0xff && size >= 4) {
    const auto rest = static_cast<std::uint16_t>(size - 4);
    payload.replace(0, 4, std::string({static_cast<char>(rest), 0}) + payload.substr(4, rest));
    payload.resize(2U + rest);
    payload += std::string(2, '\0');
  }
  if (type == 0x11 && shape == 0xfe) payload.resize(dllm::link::kPayloadMaxBytes, 'd');
  return frame(type, session, payload);
}

// What the end itself is made to do.
void act(link_ends::End& end, Role role, Numbers& numbers, dllm::Nanos now) {
  const std::uint32_t session = numbers.next() % 5;
  LinkEnd& link = end.link;
  switch (numbers.next() % 9) {
    case 0:
      if (role == Role::kHead && link.is_up() && link.sessions() < 4) link.open();
      break;
    case 1: {
      const std::string data = numbers.bytes(std::min<std::size_t>(link.credit(session), 50));
      if (!data.empty()) link.send(session, dllm::link::view(data));
      break;
    }
    case 2:
      link.finish(session);
      break;
    case 3:
      link.reset(session, "enough");
      break;
    case 4:
      link.grant(session, numbers.next());
      break;
    case 8:
      if (link.may_resume()) end.resume();
      break;
    case 5:
      link.send_home(session, dllm::link::view(numbers.bytes(50)));
      break;
    default:
      link.tick(now);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Numbers numbers{{data, size}};
  const std::uint8_t choice = numbers.next();
  const Role role = choice & 1 ? Role::kHead : Role::kWorker;
  const std::uint64_t features =
      (choice & 8 ? dllm::link::kHome : 0) | (choice & 16 ? dllm::link::kAhead : 0);
  link_ends::End end(role, features);
  dllm::Nanos now = 1;
  std::size_t said = 0, heard = 0, again = 0;
  try {
    if (choice & 2) {
      dllm::link::ByteQueue hello;
      hello.append(
          encode(link_ends::hello_of(role == Role::kHead ? Role::kWorker : Role::kHead, features)));
      end.take(link_ends::taken(hello) + frame(0x04, 0, ""), ++now);
    }
    while (!numbers.left.empty()) {
      now += 100'000'000;
      const std::string bytes =
          choice & 4 ? some_frame(numbers) : numbers.bytes(1 + numbers.next() % 40);
      heard += bytes.size();
      const std::size_t cut = numbers.next() % (bytes.size() + 1);
      end.take(bytes.substr(0, cut), now);
      end.take(bytes.substr(cut), now);
      act(end, role, numbers, now);
      // All that is kept may be sent anew, each time that the other end asks for it.
      again += end.link.unacked();
      said += link_ends::taken(end.link.out()).size();
      demand(end.in.size() <= dllm::link::kPayloadMaxBytes + dllm::link::kHelloMaxBytes);
    }
  } catch (const LinkBroken& broken) {
    demand(*broken.what() != '\0' || heard > 0);
  }
  std::size_t got = 0;
  for (const auto& [session, bytes] : end.got) got += bytes.size();
  for (const auto& [session, messages] : end.home) {
    for (const std::string& message : messages) got += message.size();
  }
  for (const std::string& message : end.lists) got += message.size();
  for (const auto& [session, replies] : end.prefetched_replies) {
    for (const dllm::PrefetchedReply& each : replies) got += each.key.size() + each.reply.size();
  }
  demand(features & dllm::link::kHome || (end.home.empty() && end.lists.empty()));
  demand(features & dllm::link::kAhead || end.prefetched_replies.empty());
  demand(got <= heard);
  demand(end.link.sessions() <= LinkEnd::kSessionsMax);
  // An answer is never longer than what it answers, beside what this end was made to say.
  demand(said <= 2 * heard + 100 * size + 10'000 + again);
  return 0;
}
