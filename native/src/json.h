// JSON: what we write, in the order it is added, and what others wrote, read within bounds.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace dllm::json {

// A JSON string. Bytes that are not UTF-8 become U+FFFD: the text is for readers.
std::string quote(std::string_view text);

// The same, but such bytes become \udc80 to \udcff, as `parse` reads them: for paths.
std::string quote_bytes(std::string_view text);

// A JSON array of values that are JSON already; of strings.
std::string list(const std::vector<std::string>& values);
std::string array(const std::vector<std::string>& texts);

// With three decimal places.
std::string decimal(double value);

// Builds one object on one line, keys in the order they are added.
class Object {
 public:
  Object& text(std::string_view key, std::string_view value) { return raw(key, quote(value)); }
  Object& number(std::string_view key, std::integral auto value) {
    return raw(key, std::to_string(value));
  }
  // Null where there is none.
  Object& number(std::string_view key, const std::optional<int>& value) {
    return raw(key, value ? std::to_string(*value) : "null");
  }
  Object& flag(std::string_view key, bool value) { return raw(key, value ? "true" : "false"); }
  // Unix time with microseconds.
  Object& time(std::string_view key, double seconds);
  // A value that is JSON already.
  Object& raw(std::string_view key, std::string_view value);
  // The object with a final newline.
  [[nodiscard]] std::string line() const { return str() + "\n"; }
  [[nodiscard]] std::string str() const { return "{" + members_ + "}"; }

 private:
  std::string members_;
};

// Of what is read: how deep values are nested, and how many there are.
inline constexpr int kDepthMax = 32;
inline constexpr std::size_t kValuesMax = 65'536;

// The text is no JSON, or more than the bounds allow; says where.
class ParseError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A member is missing or of another kind; says which.
class TypeError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Value {
 public:
  using Array = std::vector<Value>;
  using Members = std::vector<std::pair<std::string, Value>>;

  Value() = default;
  template <typename Held>
    requires(!std::is_same_v<std::remove_cvref_t<Held>, Value>)
  explicit Value(Held held) : held_(std::move(held)) {}

  [[nodiscard]] bool is_null() const { return holds<std::nullptr_t>(); }
  [[nodiscard]] bool is_object() const { return holds<Members>(); }

  // The member of that name (the first of several); none when it is missing, null, or this is no
  // object.
  [[nodiscard]] const Value* find(std::string_view name) const;

  // What this is, or TypeError; `what` names it in the message.
  [[nodiscard]] const std::string& text(std::string_view what) const;
  [[nodiscard]] const Array& array(std::string_view what) const;
  [[nodiscard]] const Members& members(std::string_view what) const;
  [[nodiscard]] std::int64_t integer(std::string_view what) const;
  [[nodiscard]] double number(std::string_view what) const;
  [[nodiscard]] bool flag(std::string_view what) const;

 private:
  template <typename Held>
  [[nodiscard]] bool holds() const {
    return std::holds_alternative<Held>(held_);
  }
  template <typename Held>
  [[nodiscard]] const Held& as(std::string_view what, const char* kind) const;

  std::variant<std::nullptr_t, bool, std::int64_t, double, std::string, Array, Members> held_;
};

// One JSON value with nothing behind it but white space. A lone low surrogate \udc80 to \udcff is
// the byte 80 to FF (Python's surrogateescape); any other lone surrogate is U+FFFD. Throws
// ParseError.
Value parse(std::string_view text);

// Members of an object, with TypeError where they are missing or of another kind, and a value for
// those that may be missing.
std::string text_of(const Value& object, std::string_view name);
std::string text_of(const Value& object, std::string_view name, const std::string& otherwise);
std::int64_t integer_of(const Value& object, std::string_view name);
std::int64_t integer_of(const Value& object, std::string_view name, std::int64_t otherwise);
double number_of(const Value& object, std::string_view name, double otherwise);
bool flag_of(const Value& object, std::string_view name, bool otherwise);
std::vector<std::string> texts_of(const Value& object, std::string_view name);
std::vector<std::pair<std::string, std::string>> pairs_of(const Value& object,
                                                          std::string_view name);

}  // namespace dllm::json
