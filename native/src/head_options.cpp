#include "head_options.h"

#include <charconv>
#include <limits>

#include "spawn_options.h"

namespace dllm {

namespace {

Endpoint parse_endpoint(const std::string& option, const std::string& text) {
  const std::size_t colon = text.rfind(':');
  unsigned port = 0;
  const char* end = text.data() + text.size();
  const char* digits = colon == std::string::npos ? end : text.data() + colon + 1;
  const auto [stop, error] = std::from_chars(digits, end, port);
  const bool valid = colon != 0 && error == std::errc{} && stop == end &&
                     port <= std::numeric_limits<std::uint16_t>::max();
  if (!valid) throw UsageError(option + " needs ADDRESS:PORT, not '" + text + "'");
  return {text.substr(0, colon), static_cast<std::uint16_t>(port)};
}

void apply(HeadOptions& options, const std::string& option, const std::string& value) {
  if (option == "--listen") {
    options.listen = parse_endpoint(option, value);
  } else if (option == "--worker") {
    options.worker = parse_endpoint(option, value);
  } else if (option == "--name") {
    options.name = value;
  } else if (option == "--stats") {
    options.stats = value;
  } else {
    throw UsageError("unknown option '" + option + "'");
  }
}

}  // namespace

HeadOptions parse_head_options(std::span<const char* const> args) {
  HeadOptions options;
  for (std::size_t at = 0; at < args.size(); ++at) {
    const std::string option = args[at];
    if (option == "--no-answers" || option == "--no-guard") {
      (option == "--no-guard" ? options.guard : options.answers) = false;
      continue;
    }
    if (at + 1 == args.size()) throw UsageError("'" + option + "' is unknown or needs a value");
    apply(options, option, args[++at]);
  }
  if (options.listen.host.empty()) throw UsageError("head needs --listen ADDRESS:PORT");
  if (options.worker.port == 0) throw UsageError("head needs --worker ADDRESS:PORT");
  if (options.name.empty()) throw UsageError("head needs --name NAME");
  return options;
}

}  // namespace dllm
