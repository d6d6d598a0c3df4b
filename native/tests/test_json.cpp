#include "check.h"
#include "json.h"

using check::thrown;
using dllm::json::Object;
using dllm::json::parse;
using dllm::json::ParseError;
using dllm::json::quote;
using dllm::json::TypeError;
using dllm::json::Value;

namespace {

bool refused(const std::string& text) {
  return !thrown<ParseError>([&] { parse(text); }).empty();
}

std::string text(const std::string& json) {
  return parse(json).text("it");
}

}  // namespace

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

TEST(values_of_every_kind) {
  const Value value = parse(R"( {"a": [1, -2.5e3, true, false, null, "x"], "b": {"c": ""}} )");
  const Value::Array& items = value.find("a")->array("a");
  CHECK(items.size() == 6);
  CHECK(items[0].integer("it") == 1);
  CHECK(items[1].number("it") == -2500);
  CHECK(items[2].flag("it") && !items[3].flag("it") && items[4].is_null());
  CHECK(items[5].text("it") == "x");
  CHECK(value.find("b")->find("c")->text("c").empty());
  CHECK(value.find("d") == nullptr && items[0].find("a") == nullptr);
}

TEST(what_is_no_json_is_refused) {
  for (const char* bad : {"",
                          " ",
                          "{",
                          "[",
                          "[1",
                          "[1,",
                          "[1,]",
                          "[,1]",
                          "{\"a\"}",
                          "{\"a\":}",
                          "{a:1}",
                          "{\"a\":1,}",
                          "{\"a\":1 \"b\":2}",
                          "nul",
                          "truex",
                          "01",
                          "-",
                          "1.",
                          ".5",
                          "1e",
                          "1e+",
                          "+1",
                          "0x1",
                          "NaN",
                          "Infinity",
                          "1e999",
                          "\"",
                          "\"\\",
                          "\"\\x\"",
                          "\"\\u12\"",
                          "\"\\u12g4\"",
                          "\"\\u-123\"",
                          "\"a\nb\"",
                          "1 2",
                          "{}{}",
                          "'a'",
                          "\xEF\xBB\xBF{}"}) {
    CHECK(refused(bad));
  }
}

TEST(depth_and_number_of_values_are_bounded) {
  const auto nested = [](std::size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  CHECK(!refused(nested(dllm::json::kDepthMax + 1)));
  CHECK(refused(nested(dllm::json::kDepthMax + 2)));
  CHECK(refused(std::string(1 << 20, '[')));
  std::string many = "[0";
  for (std::size_t i = 0; i < dllm::json::kValuesMax; ++i) many += ",0";
  CHECK(refused(many + "]"));
}

TEST(escapes) {
  CHECK(text(R"("\"\\\/\b\f\n\r\t")") == "\"\\/\b\f\n\r\t");
  CHECK(text(R"("\u0041\u00e9\u20AC\ud83d\ude00")") == "Aé€😀");
  CHECK(text(R"("\u0000")") == std::string("\0", 1));
}

TEST(lone_surrogates_are_bytes_or_replacements) {
  CHECK(text(R"("a\udcffb\udc80")") ==
        "a\xFF"
        "b\x80");
  CHECK(text(R"("\udc7f\ud800x\ud83d\ud83d\ude00\udfff")") ==
        "\xEF\xBF\xBD\xEF\xBF\xBDx\xEF\xBF\xBD😀\xEF\xBF\xBD");
}

TEST(bytes_come_back) {
  std::string all;
  for (int i = 1; i < 256; ++i) all += static_cast<char>(i);
  CHECK(text(dllm::json::quote_bytes(all)) == all);
  CHECK(text(dllm::json::quote("é\xFF")) == "é\xEF\xBF\xBD");
}

TEST(whole_numbers_are_exact) {
  CHECK(parse("9223372036854775807").integer("it") == INT64_MAX);
  CHECK(parse("-9223372036854775808").integer("it") == INT64_MIN);
  CHECK(check::contains(
      thrown<TypeError>([] { static_cast<void>(parse("9223372036854775808").integer("it")); }),
      "whole number"));
  CHECK(check::contains(thrown<TypeError>([] { static_cast<void>(parse("1.5").integer("it")); }),
                        "'it'"));
}

TEST(members_are_checked) {
  const Value value = parse(R"({"n": 1, "t": "x", "l": ["a", 1], "z": null})");
  CHECK(dllm::json::integer_of(value, "n") == 1);
  CHECK(dllm::json::integer_of(value, "z", 7) == 7);
  CHECK(dllm::json::text_of(value, "none", "y") == "y");
  CHECK(check::contains(thrown<TypeError>([&] { dllm::json::text_of(value, "none"); }),
                        "'none' is missing"));
  CHECK(check::contains(thrown<TypeError>([&] { dllm::json::text_of(value, "n"); }),
                        "must be a text"));
  CHECK(check::contains(thrown<TypeError>([&] { dllm::json::texts_of(value, "l"); }),
                        "must be a text"));
  CHECK(check::contains(thrown<TypeError>([&] { dllm::json::pairs_of(value, "l"); }), "an object"));
}

RUN_TESTS()
