// llama.cpp's RPC protocol as a table: what every command looks like, version by version.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

namespace dllm {

struct Version {
  std::uint8_t major = 0;
  std::uint8_t minor = 0;
  std::uint8_t patch = 0;
  auto operator<=>(const Version&) const = default;
  [[nodiscard]] std::string text() const;
};

// Ids have stood still since 1.0, the first version with a HELLO.
enum Command : std::uint8_t {
  kAllocBuffer = 0,
  kGetAlignment = 1,
  kGetMaxSize = 2,
  kBufferGetBase = 3,
  kFreeBuffer = 4,
  kBufferClear = 5,
  kSetTensor = 6,
  kSetTensorHash = 7,
  kGetTensor = 8,
  kCopyTensor = 9,
  kGraphCompute = 10,
  kGetDeviceMemory = 11,
  kInitTensor = 12,
  kGetAllocSize = 13,
  kHello = 14,
  kDeviceCount = 15,
  kGraphRecompute = 16,
  kMemsetTensor = 17,
  kSetTensor2d = 18,
  kGetTensor2d = 19,
  kCommInit = 20,
  kCommAllreduce = 21,
  kCommFree = 22,
  kCommands = 23,
};

inline bool is_one_of(std::uint8_t id, std::initializer_list<Command> commands) {
  return std::ranges::find(commands, id) != commands.end();
}

// A request is command u8, size u64, payload; a reply is size u64, payload.
inline constexpr std::size_t kRequestHeaderBytes = 9;
inline constexpr std::size_t kReplyHeaderBytes = 8;
inline constexpr std::size_t kTensorBytes = 296;
inline constexpr std::size_t kGraphNodeBytes = 8;
inline constexpr std::size_t kGraphCountBytes = 4;
// The HELLO reply starts with major, minor, patch; from 4.0 on it has capabilities behind them.
inline constexpr std::uint64_t kShortHelloReply = 3;
inline constexpr std::uint64_t kLongHelloReply = 28;
inline constexpr std::size_t kHelloReplyCaps = 4;
inline constexpr std::uint64_t kHelloCapsBytes = 24;
// The longest run of fixed fields in any request: GET_ALLOC_SIZE since 3.6.
inline constexpr std::size_t kFieldsMax = 4 + 11 * kTensorBytes;

enum class Reply : std::uint8_t {
  kNone,
  kFixed,       // Rule::reply bytes
  kTensor,      // as many bytes as the request's last size field says
  kTensorRows,  // size times n_copies
  kHello,       // 3 or 28 bytes
};

struct Rule {
  std::uint8_t id;
  const char* name;
  Version from;
  Version before;
  std::uint32_t fields;  // bytes of the fixed part of the payload
  bool data_follows;     // more than the fixed part is allowed
  Reply reply_kind = Reply::kNone;
  std::uint32_t reply = 0;
};

// The rules of one version.
class Protocol {
 public:
  // Whether the table covers this major version; unknown minors use the rules of the newest known.
  static bool covers(Version version);
  explicit Protocol(Version version);

  [[nodiscard]] Version version() const { return version_; }
  // Whether the table has this minor version: its commands are all there are.
  [[nodiscard]] bool is_exact() const;
  // Null for a command this version does not have.
  [[nodiscard]] const Rule* rule(std::uint8_t id) const;

 private:
  Version version_;
  std::array<const Rule*, kCommands> rules_{};
};

// HELLO, which comes before the version is known. Its request is empty up to 3.x.
const Rule& hello_rule();
// "SET_TENSOR", or "?" for an id no version has.
const char* command_name(std::uint8_t id);

// GGML_OP_COUNT and the number of MAP_CUSTOM1.
struct Ops {
  Version version;
  std::uint32_t count;
  std::uint32_t first_custom;
};

// Those of this version, or of the one before it that is known; null before the first, as up to
// 3.6.0 the version does not tell them.
const Ops* find_ops(Version version);

// So many sources, the first ones, an op reads whatever else it is given. None where it computes
// nothing, or we do not know.
std::optional<std::uint32_t> needed_sources(Version version, std::uint32_t op);

// Whether the op numbers of exactly this version are known. Of a patch between, the range of the
// ops that may call into memory is refused; of versions before 3.6.1 nothing tells the ops.
bool knows_ops(Version version);

}  // namespace dllm
