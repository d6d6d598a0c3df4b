#include "json.h"

#include <cstdint>
#include <cstdio>

namespace dllm::json {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

bool continues(std::string_view text, std::size_t at) {
  return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
}

std::size_t announced_length(unsigned char lead) {
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

// Overlong forms, surrogates and code points beyond U+10FFFF differ in the second byte only.
bool second_byte_allowed(unsigned char lead, unsigned char second) {
  if (lead == 0xE0) return second >= 0xA0;
  if (lead == 0xED) return second <= 0x9F;
  if (lead == 0xF0) return second >= 0x90;
  if (lead == 0xF4) return second <= 0x8F;
  return true;
}

// Bytes of the UTF-8 sequence that starts at `at`; 0 when there is none.
std::size_t sequence_length(std::string_view text, std::size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  const std::size_t length = announced_length(lead);
  for (std::size_t i = 1; i < length; ++i) {
    if (!continues(text, at + i)) return 0;
  }
  if (length == 0 || !second_byte_allowed(lead, static_cast<unsigned char>(text[at + 1]))) {
    return 0;
  }
  return length;
}

void append_ascii(std::string& out, char c) {
  if (c == '"' || c == '\\') {
    out += '\\';
    out += c;
  } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
    char escaped[8];
    std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(c));
    out += escaped;
  } else {
    out += c;
  }
}

// `replacement` says what becomes of a byte that is not UTF-8.
template <typename Replacement>
std::string quoted(std::string_view text, Replacement&& replacement) {
  std::string out = "\"";
  for (std::size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      append_ascii(out, text[at++]);
      continue;
    }
    const std::size_t length = sequence_length(text, at);
    if (length > 0) {
      out += text.substr(at, length);
    } else {
      out += replacement(static_cast<unsigned char>(text[at]));
    }
    at += length ? length : 1;
  }
  return out + "\"";
}

std::string escaped_byte(unsigned char byte) {
  char escaped[8];
  std::snprintf(escaped, sizeof escaped, "\\udc%02x", static_cast<unsigned>(byte));
  return escaped;
}

}  // namespace

std::string quote(std::string_view text) {
  return quoted(text, [](unsigned char) { return kReplacement; });
}

std::string quote_bytes(std::string_view text) {
  return quoted(text, escaped_byte);
}

std::string list(const std::vector<std::string>& values) {
  std::string out = "[";
  for (const std::string& value : values) {
    if (out.size() > 1) out += ',';
    out += value;
  }
  return out + "]";
}

std::string array(const std::vector<std::string>& texts) {
  std::vector<std::string> quoted;
  for (const std::string& text : texts) quoted.push_back(quote(text));
  return list(quoted);
}

std::string decimal(double value) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%.3f", value);
  return digits;
}

Object& Object::time(std::string_view key, double seconds) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%.6f", seconds);
  return raw(key, digits);
}

Object& Object::raw(std::string_view key, std::string_view value) {
  if (!members_.empty()) members_ += ',';
  members_ += quote(key);
  members_ += ':';
  members_ += value;
  return *this;
}

}  // namespace dllm::json
