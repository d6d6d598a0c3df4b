// Just enough JSON to write our records.
#pragma once

#include <concepts>
#include <string>
#include <string_view>
#include <vector>

namespace dllm::json {

// A JSON string. Bytes that are not UTF-8 become U+FFFD: the text is for readers.
std::string quote(std::string_view text);

// The same, but such bytes become \udc80 to \udcff, as json_value.h reads them: for paths.
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

}  // namespace dllm::json
