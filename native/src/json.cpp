#include "json.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>

namespace dllm::json {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
constexpr std::uint32_t kReplacementCode = 0xFFFD;
constexpr std::uint32_t kHighFirst = 0xD800, kLowFirst = 0xDC00, kLowEnd = 0xE000;
constexpr std::uint32_t kEscapedByteFirst = 0xDC80, kEscapedByteEnd = 0xDD00;

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

std::string hexadecimal(unsigned char byte) {
  constexpr char kDigits[] = "0123456789abcdef";
  return {kDigits[byte >> 4], kDigits[byte & 15]};
}

void append_ascii(std::string& out, char c) {
  if (c == '"' || c == '\\') {
    out += '\\';
    out += c;
  } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
    out += "\\u00" + hexadecimal(static_cast<unsigned char>(c));
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
  return "\\udc" + hexadecimal(byte);
}

void append_utf8(std::string& out, std::uint32_t code) {
  const auto byte = [&](std::uint32_t value) { out += static_cast<char>(value); };
  if (code < 0x80) {
    byte(code);
  } else if (code < 0x800) {
    byte(0xC0 | code >> 6);
    byte(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    byte(0xE0 | code >> 12);
    byte(0x80 | (code >> 6 & 0x3F));
    byte(0x80 | (code & 0x3F));
  } else {
    byte(0xF0 | code >> 18);
    byte(0x80 | (code >> 12 & 0x3F));
    byte(0x80 | (code >> 6 & 0x3F));
    byte(0x80 | (code & 0x3F));
  }
}

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Value whole() {
    Value value = any(0);
    skip_space();
    if (at_ != text_.size()) fail("something follows the value");
    return value;
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw ParseError(why + " at byte " + std::to_string(at_));
  }

  [[nodiscard]] bool at_end() const { return at_ == text_.size(); }

  void skip_space() {
    while (!at_end() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos)
      ++at_;
  }

  // Whether the next sign, after white space, is this one; passes it if so.
  bool took(char sign) {
    skip_space();
    if (at_end() || text_[at_] != sign) return false;
    ++at_;
    return true;
  }

  void expect(char sign) {
    if (!took(sign)) fail(std::string("'") + sign + "' is missing");
  }

  Value any(int depth) {
    if (depth > kDepthMax) fail("values are nested too deep");
    if (++values_ > kValuesMax) fail("there are too many values");
    skip_space();
    if (at_end()) fail("a value is missing");
    switch (text_[at_]) {
      case '{':
        return Value(object(depth));
      case '[':
        return Value(array(depth));
      case '"':
        return Value(string());
      case 't':
        return word("true", Value(true));
      case 'f':
        return word("false", Value(false));
      case 'n':
        return word("null", Value());
      default:
        return number();
    }
  }

  Value word(std::string_view name, Value value) {
    if (text_.substr(at_, name.size()) != name) fail("a value is no JSON");
    at_ += name.size();
    return value;
  }

  Value::Members object(int depth) {
    Value::Members members;
    expect('{');
    if (took('}')) return members;
    do {
      skip_space();
      if (at_end() || text_[at_] != '"') fail("the name of a member is missing");
      std::string name = string();
      expect(':');
      members.emplace_back(std::move(name), any(depth + 1));
    } while (took(','));
    expect('}');
    return members;
  }

  Value::Array array(int depth) {
    Value::Array items;
    expect('[');
    if (took(']')) return items;
    do {
      items.push_back(any(depth + 1));
    } while (took(','));
    expect(']');
    return items;
  }

  bool digits() {
    const std::size_t before = at_;
    while (!at_end() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
    return at_ > before;
  }

  bool sign_of(std::string_view signs) {
    if (at_end() || signs.find(text_[at_]) == std::string_view::npos) return false;
    ++at_;
    return true;
  }

  Value number() {
    const std::size_t first = at_;
    sign_of("-");
    const bool leading_zero = !at_end() && text_[at_] == '0';
    const std::size_t whole = at_;
    if (!digits() || (leading_zero && at_ > whole + 1)) fail("a value is no JSON");
    bool is_whole = true;
    if (sign_of(".")) {
      is_whole = false;
      if (!digits()) fail("a number ends too early");
    }
    if (sign_of("eE")) {
      is_whole = false;
      sign_of("+-");
      if (!digits()) fail("a number ends too early");
    }
    return numeral(text_.substr(first, at_ - first), is_whole);
  }

  Value numeral(std::string_view digits, bool is_whole) {
    const char* const end = digits.data() + digits.size();
    std::int64_t whole = 0;
    if (is_whole && std::from_chars(digits.data(), end, whole).ec == std::errc{}) {
      return Value(whole);
    }
    // Not from_chars: libc++ has none for double before version 20.
    const double value = std::strtod(std::string(digits).c_str(), nullptr);
    if (!std::isfinite(value)) fail("a number is too large");
    return Value(value);
  }

  std::string string() {
    std::string out;
    expect('"');
    while (true) {
      if (at_end()) fail("a text has no end");
      const char sign = text_[at_++];
      if (sign == '"') return out;
      if (static_cast<unsigned char>(sign) < 0x20) fail("a text holds a control character");
      if (sign == '\\') {
        escape(out);
      } else {
        out += sign;
      }
    }
  }

  void escape(std::string& out) {
    if (at_end()) fail("a text has no end");
    const char sign = text_[at_++];
    if (sign == 'u') return append_unit(out, unit());
    constexpr std::string_view kNames = "\"\\/bfnrt", kMeant = "\"\\/\b\f\n\r\t";
    const std::size_t found = kNames.find(sign);
    if (found == std::string_view::npos) fail("a text has an unknown escape");
    out += kMeant[found];
  }

  std::uint32_t unit() {
    std::uint32_t value = 0;
    const std::string_view digits = text_.substr(at_, 4);
    const char* const end = digits.data() + digits.size();
    const auto [stop, error] = std::from_chars(digits.data(), end, value, 16);
    if (digits.size() < 4 || error != std::errc{} || stop != end) fail("an escape is incomplete");
    at_ += 4;
    return value;
  }

  // The low half of a pair whose high half was just read.
  std::optional<std::uint32_t> low_half() {
    if (text_.substr(at_, 2) != "\\u") return std::nullopt;
    const std::size_t before = at_;
    at_ += 2;
    const std::uint32_t value = unit();
    if (value >= kLowFirst && value < kLowEnd) return value - kLowFirst;
    at_ = before;
    return std::nullopt;
  }

  void append_unit(std::string& out, std::uint32_t value) {
    if (value >= kEscapedByteFirst && value < kEscapedByteEnd) {
      out += static_cast<char>(value - kLowFirst);
      return;
    }
    if (value >= kHighFirst && value < kLowFirst) {
      const auto low = low_half();
      value = low ? 0x10000 + ((value - kHighFirst) << 10 | *low) : kReplacementCode;
    } else if (value >= kLowFirst && value < kLowEnd) {
      value = kReplacementCode;
    }
    append_utf8(out, value);
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t values_ = 0;
};

const Value& needed(const Value& object, std::string_view name) {
  if (const Value* const found = object.find(name)) return *found;
  throw TypeError("'" + std::string(name) + "' is missing");
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

const Value* Value::find(std::string_view name) const {
  const auto* const members = std::get_if<Members>(&held_);
  if (members == nullptr) return nullptr;
  for (const auto& [key, value] : *members) {
    if (key == name) return value.is_null() ? nullptr : &value;
  }
  return nullptr;
}

template <typename Held>
const Held& Value::as(std::string_view what, const char* kind) const {
  if (const auto* const held = std::get_if<Held>(&held_)) return *held;
  throw TypeError("'" + std::string(what) + "' must be " + kind);
}

const std::string& Value::text(std::string_view what) const {
  return as<std::string>(what, "a text");
}

const Value::Array& Value::array(std::string_view what) const {
  return as<Array>(what, "a list");
}

const Value::Members& Value::members(std::string_view what) const {
  return as<Members>(what, "an object");
}

std::int64_t Value::integer(std::string_view what) const {
  return as<std::int64_t>(what, "a whole number");
}

double Value::number(std::string_view what) const {
  if (holds<std::int64_t>()) return static_cast<double>(std::get<std::int64_t>(held_));
  return as<double>(what, "a number");
}

bool Value::flag(std::string_view what) const {
  return as<bool>(what, "true or false");
}

Value parse(std::string_view text) {
  return Reader(text).whole();
}

std::string text_of(const Value& object, std::string_view name) {
  return needed(object, name).text(name);
}

std::string text_of(const Value& object, std::string_view name, const std::string& otherwise) {
  const Value* const found = object.find(name);
  return found != nullptr ? found->text(name) : otherwise;
}

std::int64_t integer_of(const Value& object, std::string_view name) {
  return needed(object, name).integer(name);
}

std::int64_t integer_of(const Value& object, std::string_view name, std::int64_t otherwise) {
  const Value* const found = object.find(name);
  return found != nullptr ? found->integer(name) : otherwise;
}

double number_of(const Value& object, std::string_view name, double otherwise) {
  const Value* const found = object.find(name);
  return found != nullptr ? found->number(name) : otherwise;
}

bool flag_of(const Value& object, std::string_view name, bool otherwise) {
  const Value* const found = object.find(name);
  return found != nullptr ? found->flag(name) : otherwise;
}

std::vector<std::string> texts_of(const Value& object, std::string_view name) {
  std::vector<std::string> texts;
  const Value* const found = object.find(name);
  if (found == nullptr) return texts;
  for (const Value& item : found->array(name)) texts.push_back(item.text(name));
  return texts;
}

std::vector<std::pair<std::string, std::string>> pairs_of(const Value& object,
                                                          std::string_view name) {
  std::vector<std::pair<std::string, std::string>> pairs;
  const Value* const found = object.find(name);
  if (found == nullptr) return pairs;
  for (const auto& [key, value] : found->members(name)) pairs.emplace_back(key, value.text(name));
  return pairs;
}

}  // namespace dllm::json
