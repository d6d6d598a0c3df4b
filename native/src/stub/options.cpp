#include "options.h"

#include <array>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

namespace dllm {

namespace {

// llama.cpp takes no more (llama_max_devices).
constexpr std::size_t kDevicesMax = 16;
constexpr std::array<std::pair<std::string_view, int>, 5> kUnits{
    {{"", 0}, {"B", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}}};

// A whole number at the beginning of `text`, which it is cut off.
template <typename Number>
std::optional<Number> cut_number(std::string_view& text) {
  Number number{};
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(stop - text.data()));
  return number;
}

std::optional<std::uint64_t> parse_size(std::string_view text) {
  const auto number = cut_number<std::uint64_t>(text);
  for (const auto& [unit, shift] : kUnits) {
    if (number && text == unit && *number <= UINT64_MAX >> shift) return *number << shift;
  }
  return std::nullopt;
}

StubDevice parse_device(const std::string& text) {
  const std::size_t first = text.find(':');
  const std::size_t second = first == std::string::npos ? first : text.find(':', first + 1);
  const auto size = [&](std::size_t from, std::size_t to) {
    return from == std::string::npos ? std::nullopt
                                     : parse_size(text.substr(from + 1, to - from - 1));
  };
  const auto total = size(first, second);
  const auto free = second == std::string::npos ? total : size(second, text.size());
  if (first == 0 || !total || !free || *free > *total) {
    throw UsageError("--device needs NAME:TOTAL[:FREE] such as CUDA0:24GiB:20GiB, not '" + text +
                     "'");
  }
  return {text.substr(0, first), *total, *free};
}

Endpoint parse_listen(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  std::string_view rest = text;
  rest.remove_prefix(colon == std::string::npos ? text.size() : colon + 1);
  const auto port = cut_number<std::uint16_t>(rest);
  if (colon == 0 || !port || !rest.empty()) {
    throw UsageError("--listen needs ADDRESS:PORT, not '" + text + "'");
  }
  return {text.substr(0, colon), *port};
}

Version parse_protocol(const std::string& text) {
  std::string_view rest = text;
  std::array<std::uint8_t, 3> parts{};
  bool valid = true;
  for (std::size_t i = 0; valid && i < parts.size(); ++i) {
    if (i != 0) {
      valid = rest.starts_with('.');
      rest.remove_prefix(valid ? 1 : 0);
    }
    const auto part = cut_number<std::uint8_t>(rest);
    valid = valid && part.has_value();
    parts[i] = part.value_or(0);
  }
  const Version version{parts[0], parts[1], parts[2]};
  if (!valid || !rest.empty() || !Protocol::covers(version)) {
    throw UsageError("--protocol needs a version from 1.0.0 to 8.x.x, not '" + text + "'");
  }
  return version;
}

void apply(StubOptions& options, const std::string& option, const std::string& value) {
  if (option == "--device") {
    options.devices.push_back(parse_device(value));
  } else if (option == "--listen") {
    options.listen = parse_listen(value);
  } else if (option == "--protocol") {
    options.protocol = parse_protocol(value);
  } else {
    throw UsageError("unknown option '" + option + "'");
  }
}

}  // namespace

StubOptions parse_stub_options(std::span<const char* const> args) {
  StubOptions options;
  for (std::size_t at = 0; at < args.size(); at += 2) {
    const std::string option = args[at];
    if (at + 1 == args.size()) throw UsageError("'" + option + "' is unknown or needs a value");
    apply(options, option, args[at + 1]);
  }
  if (options.devices.empty()) throw UsageError("paper needs --device NAME:TOTAL[:FREE]");
  if (options.devices.size() > kDevicesMax) throw UsageError("paper takes 16 devices at most");
  return options;
}

}  // namespace dllm
