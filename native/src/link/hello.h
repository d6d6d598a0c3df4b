// What each end of a link says first.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "frames.h"

namespace dllm::link {

inline constexpr std::uint16_t kMajor = 3;
inline constexpr std::uint16_t kMinor = 0;
inline constexpr std::size_t kHelloMaxBytes = 1024;
inline constexpr std::size_t kNameMaxBytes = 64;

// Bits of Hello::features.
inline constexpr std::uint64_t kCompression = 1;  // of requests
inline constexpr std::uint64_t kHome = 2;  // references go up instead of weights
inline constexpr std::uint64_t kAhead = 4;  // what is wanted next is asked for at the worker's end

enum class Role : std::uint8_t { kHead = 1, kWorker = 2 };

using Id = std::array<std::uint8_t, 16>;

struct Hello {
  Role role = Role::kHead;
  std::uint64_t features = 0;
  // So many bytes the other end may send in each session before it is given more.
  std::uint32_t credit = 0;
  Id id{};  // of this end: a link anew is told from a link of another
  std::string name;
  // A head: the link it begins, or goes on with. A worker's end: the one it holds; 0: none.
  std::uint64_t link = 0;
};

// At random.
Id new_id();
// From 32 hexadecimal digits. Throws UsageError, which names the option.
Id parse_id(const std::string& option, const std::string& digits);

std::vector<std::uint8_t> encode(const Hello& hello);
// Takes the other end's hello from what came; none while it is incomplete. Throws LinkBroken when
// it is none, and LinkRefused when it is of another major version or of an end like ours.
std::optional<Hello> take_hello(ByteQueue& in, Role own);

}  // namespace dllm::link
