// The JSON parser: it answers or refuses, within its bounds, and reads back what we write.
#include <algorithm>
#include <cstdlib>

#include "input.h"
#include "json.h"

namespace {

using dllm::json::Value;

void demand(bool holds) {
  if (!holds) std::abort();
}

// Everything in a value, so that a sanitizer sees all of it.
std::size_t weigh(const Value& value) {
  try {
    std::size_t sum = 0;
    for (const Value& item : value.array("it")) sum += weigh(item);
    return sum + 1;
  } catch (const dllm::json::TypeError&) {
  }
  if (!value.is_object()) return 1;
  std::size_t sum = 1;
  for (const auto& [name, member] : value.members("it")) sum += name.size() + weigh(member);
  return sum;
}

void try_to_parse(const std::string& text) {
  try {
    demand(weigh(dllm::json::parse(text)) > 0);
  } catch (const dllm::json::ParseError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // As libFuzzer has them: nothing is learnt of longer ones.
  const std::string text(text_of({data, std::min<std::size_t>(size, 4000)}));
  demand(dllm::json::parse(dllm::json::quote_bytes(text)).text("it") == text);
  static_cast<void>(dllm::json::parse(dllm::json::quote(text)).text("it"));
  try_to_parse(text);
  // The bytes as signs that matter to a parser: most inputs are no JSON at all otherwise.
  constexpr std::string_view kSigns = "{}[]\",:\\u0d8cfetrunl-1.E \n";
  std::string likely;
  for (const char sign : text) likely += kSigns[static_cast<unsigned char>(sign) % kSigns.size()];
  try_to_parse(likely);
  try_to_parse("{\"id\":1,\"do\":\"" + likely + "\",\"argv\":[" + likely + "]}");
  return 0;
}
