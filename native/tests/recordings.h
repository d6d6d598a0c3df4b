// Sessions recorded from stock clients and workers of many protocol versions, as they lie in
// tests/native/recordings; CMake unpacks them. Read by the framing alone, which has no version.
#pragma once

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "check.h"
#include "protocol/commands.h"

namespace recordings {

// What one side sent until the other side spoke.
struct Turn {
  bool up;  // client to worker
  std::string bytes;
};
using Conversation = std::vector<Turn>;

struct Session {
  std::string name;
  std::optional<dllm::Version> version;  // none: its client says no HELLO
  std::vector<Conversation> conversations;
};

struct Message {
  std::uint8_t id;  // of a request
  std::string bytes;
  std::string payload;
};

template <typename Value>
Value read(const std::string& bytes, std::size_t at) {
  Value value{};
  if (at + sizeof value <= bytes.size()) std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

inline std::string stream(const Conversation& conversation, bool up) {
  std::string out;
  for (const Turn& turn : conversation) {
    if (turn.up == up) out += turn.bytes;
  }
  return out;
}

// The messages of one direction; CHECKs that they fill it exactly.
inline std::vector<Message> messages(const Conversation& conversation, bool up) {
  const std::string bytes = stream(conversation, up);
  const std::size_t header = up ? dllm::kRequestHeaderBytes : dllm::kReplyHeaderBytes;
  std::vector<Message> all;
  std::size_t at = 0;
  while (at + header <= bytes.size()) {
    const auto size = read<std::uint64_t>(bytes, at + header - sizeof(std::uint64_t));
    const auto id = static_cast<std::uint8_t>(bytes[at]);
    all.push_back({id, bytes.substr(at, header + size), bytes.substr(at + header, size)});
    at += header + size;
  }
  CHECK(at == bytes.size());
  return all;
}

inline Conversation unpack(const std::string& packed) {
  Conversation made;
  constexpr std::size_t header = 1 + sizeof(std::uint64_t);
  for (std::size_t at = 0; at < packed.size();) {
    const auto size = read<std::uint64_t>(packed, at + 1);
    made.push_back({packed[at] == '>', packed.substr(at + header, size)});
    at += header + size;
  }
  return made;
}

inline std::optional<dllm::Version> told_version(const Conversation& conversation) {
  if (stream(conversation, true)[0] != static_cast<char>(dllm::kHello)) return std::nullopt;
  const std::string told = stream(conversation, false).substr(dllm::kReplyHeaderBytes, 3);
  return dllm::Version{static_cast<std::uint8_t>(told[0]), static_cast<std::uint8_t>(told[1]),
                       static_cast<std::uint8_t>(told[2])};
}

inline Session load(const std::filesystem::path& folder) {
  Session session{folder.filename().string(), std::nullopt, {}};
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension().empty()) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  for (const auto& file : files) session.conversations.push_back(unpack(check::slurp(file)));
  session.version = told_version(session.conversations.front());
  return session;
}

inline std::vector<Session> load_all(const std::filesystem::path& folder) {
  std::vector<Session> made;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    made.push_back(load(entry.path()));
  }
  return made;
}

#ifdef DLLM_RECORDINGS
inline const std::vector<Session>& all() {
  static const std::vector<Session> sessions = load_all(DLLM_RECORDINGS);
  return sessions;
}

// Requests alone, at 1 k and 8 k of context.
inline const std::vector<Session>& depth() {
  static const std::vector<Session> sessions = load_all(DLLM_RECORDINGS "-depth");
  return sessions;
}

// Those that say HELLO.
inline std::vector<Session> with_version() {
  std::vector<Session> some;
  std::ranges::copy_if(all(), std::back_inserter(some),
                       [](const Session& each) { return each.version.has_value(); });
  return some;
}
#endif

}  // namespace recordings
