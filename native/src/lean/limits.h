// What both ends agree on: the bounds of what they keep and the first bytes of what they say.
// ENCODINGS.md has the whole of it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dllm::lean {

inline constexpr std::size_t kHeads = 64;                   // heads of requests kept
inline constexpr std::size_t kGraphs = 16;                  // graphs kept
inline constexpr std::size_t kBaseBytes = 256 << 10;        // of one graph or one tensor's data
inline constexpr std::size_t kDataKeptBytes = 4 << 20;      // of all tensors' data together
inline constexpr std::size_t kBlockBytes = 256 << 10;       // of data encoded at a time
inline constexpr std::size_t kGraphRequestBytes = 1 << 20;  // larger ones go plain
inline constexpr std::size_t kSmallDataBytes = 4 << 10;     // goes in one message with its head
inline constexpr std::size_t kProbeBytes = 64;              // of larger data, to tell a mask by

// The first byte of a message: its upper two bits, or all of it.
inline constexpr std::uint8_t kSameHead = 0x00;     // | slot
inline constexpr std::uint8_t kChangedHead = 0x40;  // | slot
inline constexpr std::uint8_t kNewHead = 0x80;      // | slot
inline constexpr std::uint8_t kFormMask = 0xc0;
inline constexpr std::uint8_t kGraph = 0xc0;
inline constexpr std::uint8_t kBlock = 0xc1;
inline constexpr std::uint8_t kPlain = 0xc2;
inline constexpr std::uint8_t kVersion = 0xc3;  // of streams alone: major, minor, patch
inline constexpr std::uint8_t kLoose = 0xc4;    // of streams alone: all that follows is as it is
inline constexpr std::uint8_t kNoBase = 0xff;

// How the data behind a head come.
enum class Data : std::uint8_t { kVerbatim = 0, kHere = 1, kInBlocks = 2, kElsewhere = 3 };

}  // namespace dllm::lean
