// The key both ends of a link share.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace dllm::link {

inline constexpr std::size_t kKeyBytes = 32;

using Key = std::array<std::uint8_t, kKeyBytes>;

// Whether the text is that many bytes in hexadecimal digits, and nothing else.
bool read_hex(std::string_view digits, std::span<std::uint8_t> bytes);

// From 64 hexadecimal digits; white space around them is allowed. Throws std::runtime_error, whose
// text holds nothing of the key. `where` it was found.
Key parse_key(std::string_view text, const std::string& where);
// From a file of ours that nobody else may read.
Key read_key_file(const std::string& path);

}  // namespace dllm::link
