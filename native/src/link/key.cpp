#include "key.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <stdexcept>

#include "posix.h"

namespace dllm::link {

namespace {

constexpr std::size_t kTextMaxBytes = 256;
constexpr mode_t kOthers = S_IRWXG | S_IRWXO;
constexpr const char* kSpace = " \t\r\n";

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

}  // namespace

bool read_hex(std::string_view digits, std::span<std::uint8_t> bytes) {
  if (digits.size() != 2 * bytes.size()) return false;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const char* at = digits.data() + 2 * i;
    const auto [stop, error] = std::from_chars(at, at + 2, bytes[i], 16);
    if (error != std::errc{} || stop != at + 2) return false;
  }
  return true;
}

Key parse_key(std::string_view text, const std::string& where) {
  Key key;
  if (!read_hex(trimmed(text), key)) {
    throw std::runtime_error("the key " + where +
                             " must be 64 hexadecimal digits (openssl rand -hex 32)");
  }
  return key;
}

Key read_key_file(const std::string& path) {
  const UniqueFd file = open_at(AT_FDCWD, path, O_RDONLY | O_NOCTTY);
  struct stat status {};
  check(::fstat(file.get(), &status), "cannot look at " + path);
  if ((status.st_mode & kOthers) != 0 || status.st_uid != ::geteuid()) {
    throw std::runtime_error("others may read the key file " + path + ": chmod 600 it");
  }
  return parse_key(read_all(file.get(), kTextMaxBytes), "in " + path);
}

}  // namespace dllm::link
