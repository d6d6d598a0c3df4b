#include "check.h"
#include "json.h"

using dllm::json::Object;
using dllm::json::quote;

TEST(plain_text_is_quoted) {
  CHECK(quote("") == R"("")");
  CHECK(quote("a b") == R"("a b")");
}

TEST(what_json_forbids_is_escaped) {
  CHECK(quote("a\"b\\c") == R"("a\"b\\c")");
  CHECK(quote("a\nb\tc") == R"("a\u000ab\u0009c")");
  CHECK(quote(std::string("\0\x1f\x7f", 3)) == R"("\u0000\u001f\u007f")");
}

TEST(utf8_passes_unchanged) {
  const std::string text = "é€😀 \xC2\x80 \xEF\xBF\xBF \xF4\x8F\xBF\xBF";
  CHECK(quote(text) == "\"" + text + "\"");
}

TEST(other_bytes_become_replacements) {
  const std::string sign = "\xEF\xBF\xBD";
  CHECK(quote("\xFF") == "\"" + sign + "\"");
  CHECK(quote("\x80") == "\"" + sign + "\"");
  CHECK(quote("a\xC3") == "\"a" + sign + "\"");
  CHECK(quote("\xE2\x82") == "\"" + sign + sign + "\"");
  CHECK(quote("\xC3(") == "\"" + sign + "(\"");
}

TEST(overlong_forms_and_surrogates_are_not_utf8) {
  const std::string sign = "\xEF\xBF\xBD";
  CHECK(quote("\xC0\xAF") == "\"" + sign + sign + "\"");
  CHECK(quote("\xE0\x80\xAF") == "\"" + sign + sign + sign + "\"");
  CHECK(quote("\xED\xA0\x80") == "\"" + sign + sign + sign + "\"");
  CHECK(quote("\xF4\x90\x80\x80") == "\"" + sign + sign + sign + sign + "\"");
}

TEST(arrays) {
  CHECK(dllm::json::array({}) == "[]");
  CHECK(dllm::json::array({"a", "b\"", ""}) == R"(["a","b\"",""])");
}

TEST(objects_keep_the_order) {
  Object object;
  object.number("pid", 7).text("id", "x").raw("code", "null").time("at", 1.5);
  CHECK(object.line() == "{\"pid\":7,\"id\":\"x\",\"code\":null,\"at\":1.500000}\n");
  CHECK(Object().str() == "{}");
}

RUN_TESTS()
