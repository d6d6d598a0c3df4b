#include "hello.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string_view>

#include "key.h"
#include "posix.h"

namespace dllm::link {

namespace {

// The same in every major version: magic, major, minor, size of the whole.
constexpr std::string_view kMagic = "dllmlink";
constexpr std::size_t kMajorAt = 8, kSizeAt = 12, kPreambleBytes = 16;
// Version 3.
constexpr std::size_t kFeaturesAt = 16, kCreditAt = 24, kRoleAt = 28, kNameBytesAt = 29;
constexpr std::size_t kIdAt = 32, kNameAt = 48;
// With a name of no bytes, and the link behind it.
constexpr std::size_t kHelloLeastBytes = kNameAt + sizeof Hello::link;
constexpr const char* kDamaged = "the other end's hello is damaged";
// The first bytes of a TLS connection.
constexpr std::uint8_t kTlsHandshake = 0x16, kTlsMajor = 0x03;

void judge_magic(View begun) {
  const std::size_t count = std::min(begun.size(), kMagic.size());
  if (std::memcmp(begun.data(), kMagic.data(), count) == 0) return;
  const bool is_tls = begun.size() > 1 && begun[0] == kTlsHandshake && begun[1] == kTlsMajor;
  if (begun[0] == kTlsHandshake && begun.size() < 2) return;
  throw LinkBroken(is_tls ? "the other end speaks TLS: give both ends the key, or none"
                          : "the other end is no relay of dllm-tui");
}

void judge_major(View preamble) {
  const auto major = load<std::uint16_t>(preamble.data() + kMajorAt);
  if (major == kMajor) return;
  throw LinkRefused("the other relay speaks link version " + std::to_string(major) + ", this one " +
                    std::to_string(kMajor) + ": install the same dllm-tui on both machines");
}

Hello decode(View all) {
  Hello hello;
  hello.features = load<std::uint64_t>(all.data() + kFeaturesAt);
  hello.credit = load<std::uint32_t>(all.data() + kCreditAt);
  hello.role = static_cast<Role>(all[kRoleAt]);
  std::copy_n(all.data() + kIdAt, hello.id.size(), hello.id.begin());
  const std::size_t name_bytes = all[kNameBytesAt];
  if (kHelloLeastBytes + name_bytes > all.size()) throw LinkBroken(kDamaged);
  hello.name = printable(all.subspan(kNameAt, name_bytes), kNameMaxBytes);
  hello.link = load<std::uint64_t>(all.data() + kNameAt + name_bytes);
  return hello;
}

}  // namespace

Id new_id() {
  std::random_device random;
  Id id;
  for (std::uint8_t& byte : id) byte = static_cast<std::uint8_t>(random());
  return id;
}

Id parse_id(const std::string& option, const std::string& digits) {
  Id id;
  if (!read_hex(digits, id)) throw UsageError(option + " needs 32 hexadecimal digits");
  return id;
}

std::vector<std::uint8_t> encode(const Hello& hello) {
  const std::size_t name_bytes = std::min(hello.name.size(), kNameMaxBytes);
  std::vector<std::uint8_t> out;
  out.reserve(kHelloMaxBytes);
  out.insert(out.end(), kMagic.begin(), kMagic.end());
  put(out, kMajor);
  put(out, kMinor);
  put(out, static_cast<std::uint32_t>(kHelloLeastBytes + name_bytes));
  put(out, hello.features);
  put(out, hello.credit);
  put(out, hello.role);
  put(out, static_cast<std::uint8_t>(name_bytes));
  put(out, std::uint16_t{0});
  out.insert(out.end(), hello.id.begin(), hello.id.end());
  out.insert(out.end(), hello.name.begin(),
             hello.name.begin() + static_cast<std::ptrdiff_t>(name_bytes));
  put(out, hello.link);
  return out;
}

std::optional<Hello> take_hello(ByteQueue& in, Role own) {
  const View all = in.all();
  if (!all.empty()) judge_magic(all);
  if (all.size() < kPreambleBytes) return std::nullopt;
  judge_major(all);
  const auto size = load<std::uint32_t>(all.data() + kSizeAt);
  if (size < kHelloLeastBytes || size > kHelloMaxBytes) throw LinkBroken(kDamaged);
  if (all.size() < size) return std::nullopt;
  Hello hello = decode(all.first(size));
  in.drop(size);
  if (hello.role == own) {
    throw LinkRefused(own == Role::kHead ? "the other end is a head too, no worker's relay"
                                         : "the other end is a worker's relay too, no head");
  }
  return hello;
}

}  // namespace dllm::link
