#include "frames.h"

#include <algorithm>

namespace dllm::link {

namespace {

// The header: type and size in one number, session.
constexpr unsigned kSizeShift = 8;
constexpr std::uint32_t kTypeMask = 0xff;

}  // namespace

void append_frame(ByteQueue& out, FrameType type, std::uint32_t session, View payload) {
  const auto size = static_cast<std::uint32_t>(payload.size());
  const std::uint32_t header[] = {static_cast<std::uint32_t>(type) | size << kSizeShift, session};
  out.append({reinterpret_cast<const std::uint8_t*>(header), sizeof header});
  out.append(payload);
}

std::optional<Frame> first_frame(ByteQueue& in) {
  const Bytes all = in.all();
  if (all.size() < kFrameHeaderBytes) return std::nullopt;
  const auto first = load<std::uint32_t>(all.data());
  const std::size_t size = first >> kSizeShift;
  if (size > kPayloadMaxBytes) throw LinkBroken("the other end sent a frame longer than any");
  if (all.size() - kFrameHeaderBytes < size) return std::nullopt;
  const auto session = load<std::uint32_t>(all.data() + sizeof first);
  return Frame{static_cast<FrameType>(first & kTypeMask), session,
               all.subspan(kFrameHeaderBytes, size)};
}

std::string printable(View text, std::size_t most) {
  std::string shown(text.begin(),
                    text.begin() + static_cast<std::ptrdiff_t>(std::min(text.size(), most)));
  std::ranges::replace_if(
      shown, [](char c) { return c < ' ' || c > '~'; }, '?');
  return shown;
}

}  // namespace dllm::link
