// The frames of the link between two relays; native/PROTOCOL.md has the language.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>

#include "byte_queue.h"

namespace dllm::link {

// The link cannot go on; the text says why in one sentence.
class LinkBroken : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The other end will not have it, for now or for ever.
class LinkRefused : public LinkBroken {
  using LinkBroken::LinkBroken;
};

enum class FrameType : std::uint8_t {
  kPing = 0x01,
  kPong = 0x02,
  kGoodbye = 0x03,
  kWelcome = 0x04,
  kReceived = 0x05,
  kOpen = 0x10,
  kData = 0x11,
  kCredit = 0x12,
  kFinish = 0x13,
  kReset = 0x14,
  kTrip = 0x15,
  kHome = 0x30,
  kList = 0x31,
  kKnown = 0x32,
};

inline constexpr std::size_t kFrameHeaderBytes = 8;
inline constexpr std::size_t kPayloadMaxBytes = 64 << 10;
// Of a reason, in GOODBYE and RESET.
inline constexpr std::size_t kReasonMaxBytes = 512;

struct Frame {
  FrameType type;
  std::uint32_t session;
  Bytes payload;
  [[nodiscard]] std::size_t bytes() const { return kFrameHeaderBytes + payload.size(); }
};

void append_frame(ByteQueue& out, FrameType type, std::uint32_t session, View payload);
// The first frame of what came, which stays where it is; none while it is incomplete. Throws
// LinkBroken when it is longer than any.
std::optional<Frame> first_frame(ByteQueue& in);

// As text from the other end may be shown: plain ASCII, not too long.
std::string printable(View text, std::size_t most);
inline View view(const std::string& text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

// Numbers are little endian.
template <typename Value>
void put(std::vector<std::uint8_t>& out, Value value) {
  const auto* at = reinterpret_cast<const std::uint8_t*>(&value);
  out.insert(out.end(), at, at + sizeof value);
}

}  // namespace dllm::link
