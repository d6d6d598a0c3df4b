#include "prefetched_replies.h"

#include <string_view>

namespace dllm::link {

namespace {

void put_text(std::vector<std::uint8_t>& out, const std::string& text) {
  put(out, static_cast<std::uint16_t>(text.size()));
  out.insert(out.end(), text.begin(), text.end());
}

std::string take_text(View& payload) {
  std::uint16_t size = 0;
  if (payload.size() >= sizeof size) size = load<std::uint16_t>(payload.data());
  if (payload.size() < sizeof size + size) throw LinkBroken("the other end sent a damaged frame");
  const View text = payload.subspan(sizeof size, size);
  payload = payload.subspan(sizeof size + size);
  return {text.begin(), text.end()};
}

}  // namespace

std::vector<std::vector<std::uint8_t>> encode_prefetched(
    const std::vector<PrefetchedReply>& replies) {
  std::vector<std::vector<std::uint8_t>> frames;
  std::vector<std::uint8_t> one;
  for (const PrefetchedReply& each : replies) {
    one.clear();
    put_text(one, each.key);
    put_text(one, each.reply);
    if (frames.empty() || frames.back().size() + one.size() > kPayloadMaxBytes) {
      frames.emplace_back();
    }
    frames.back().insert(frames.back().end(), one.begin(), one.end());
  }
  return frames;
}

std::uint8_t id_of(const PrefetchedReply& prefetched) {
  return prefetched.key.empty() ? std::uint8_t{kCommands}
                                : static_cast<std::uint8_t>(prefetched.key[0]);
}

std::size_t encoded_bytes(const PrefetchedReply& prefetched) {
  return 2 * sizeof(std::uint16_t) + prefetched.key.size() + prefetched.reply.size();
}

std::vector<PrefetchedReply> decode_prefetched(View payload) {
  std::vector<PrefetchedReply> replies;
  while (!payload.empty()) {
    std::string key = take_text(payload);
    replies.push_back({std::move(key), take_text(payload)});
  }
  return replies;
}

}  // namespace dllm::link
