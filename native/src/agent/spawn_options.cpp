#include "spawn_options.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>

namespace dllm {

namespace {

std::uint64_t parse_bytes(const std::string& text) {
  std::uint64_t bytes = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, bytes);
  if (error != std::errc{} || stop != end) {
    throw UsageError("--log-limit needs a number of bytes, not '" + text + "'");
  }
  return bytes;
}

void check_variable(const std::string& option, const std::string& name) {
  if (name.empty() || name.find('=') != std::string::npos) {
    throw UsageError(option + " needs the name of a variable, not '" + name + "'");
  }
}

std::pair<std::string, std::string> parse_assignment(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos) throw UsageError("--env needs NAME=VALUE, not '" + text + "'");
  check_variable("--env", text.substr(0, equals));
  return {text.substr(0, equals), text.substr(equals + 1)};
}

void apply(SpawnOptions& options, const std::string& option, const std::string& value) {
  if (option == "--dir") {
    options.dir = value;
  } else if (option == "--env") {
    options.env.push_back(parse_assignment(value));
  } else if (option == "--unset") {
    check_variable(option, value);
    options.unset.push_back(value);
  } else if (option == "--cwd") {
    options.cwd = value;
  } else if (option == "--meta") {
    options.meta = value;
  } else if (option == "--log-limit") {
    options.log_limit = parse_bytes(value);
  } else {
    throw UsageError("unknown option '" + option + "'");
  }
}

void check_complete(const SpawnOptions& options) {
  if (options.dir.empty()) throw UsageError("spawn needs --dir DIR");
  if (options.cwd.empty()) throw UsageError("--cwd needs a directory");
  if (options.argv.empty()) throw UsageError("spawn needs -- and a command");
  if (options.argv.front().empty()) throw UsageError("the command is empty");
}

}  // namespace

SpawnOptions parse_spawn_options(std::span<const char* const> args) {
  SpawnOptions options;
  std::size_t at = 0;
  while (at < args.size()) {
    const std::string option = args[at++];
    if (option == "--") {
      options.argv.assign(args.begin() + static_cast<std::ptrdiff_t>(at), args.end());
      break;
    }
    if (option == "--ignore-sigpipe") {
      options.ignore_sigpipe = true;
      continue;
    }
    if (at == args.size()) throw UsageError("'" + option + "' is unknown or needs a value");
    apply(options, option, args[at++]);
  }
  check_complete(options);
  return options;
}

void hide_private_arguments(std::span<char* const> args) {
  bool hide = false, rest = false;
  for (char* const arg : args) {
    const std::string_view text = arg;
    rest = rest || text == "--";
    const bool value_follows = text == "--env" || text == "--meta";
    if (hide || (rest && text != "--")) std::memset(arg, 0, std::strlen(arg));
    hide = !hide && value_follows;
  }
}

}  // namespace dllm
