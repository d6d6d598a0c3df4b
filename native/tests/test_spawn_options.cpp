#include "agent/spawn.h"
#include "check.h"

using check::contains;
using check::thrown;
using dllm::SpawnOptions;
using dllm::UsageError;

namespace {

SpawnOptions parse(const std::vector<const char*>& args) {
  return dllm::parse_spawn_options(args);
}

std::string complaint(const std::vector<const char*>& args) {
  return thrown<UsageError>([&] { parse(args); });
}

}  // namespace

TEST(everything_at_once) {
  const SpawnOptions options = parse({"--dir", "d", "--env", "A=1", "--env", "B=x=y", "--env", "C=",
                                      "--unset", "D", "--ignore-sigpipe", "--cwd", "/tmp", "--meta",
                                      "{}", "--log-limit", "10", "--", "sleep", "--dir", "--"});
  CHECK(options.dir == "d");
  CHECK(options.env.size() == 3);
  CHECK(options.env[1] == std::pair(std::string("B"), std::string("x=y")));
  CHECK(options.env[2].second.empty());
  CHECK(options.unset == std::vector<std::string>{"D"});
  CHECK(options.ignore_sigpipe);
  CHECK(options.cwd == "/tmp");
  CHECK(options.log_limit == 10);
  CHECK(options.meta == "{}");
  CHECK((options.argv == std::vector<std::string>{"sleep", "--dir", "--"}));
}

TEST(defaults) {
  const SpawnOptions options = parse({"--dir", "d", "--", "true"});
  CHECK(options.cwd == "/");
  CHECK(options.log_limit == dllm::kDefaultLogLimitBytes);
  CHECK(!options.ignore_sigpipe);
  CHECK(options.env.empty() && options.unset.empty() && options.meta.empty());
}

TEST(mistakes_are_named) {
  CHECK(contains(complaint({"--", "true"}), "--dir"));
  CHECK(contains(complaint({"--dir", "d"}), "command"));
  CHECK(contains(complaint({"--dir", "d", "--"}), "command"));
  CHECK(contains(complaint({"--dir", "d", "--", ""}), "empty"));
  CHECK(contains(complaint({"--dir"}), "--dir"));
  CHECK(contains(complaint({"--dir", "d", "--surprise", "1", "--", "true"}), "--surprise"));
  CHECK(contains(complaint({"--dir", "d", "--env", "A", "--", "true"}), "NAME=VALUE"));
  CHECK(contains(complaint({"--dir", "d", "--env", "=1", "--", "true"}), "name"));
  CHECK(contains(complaint({"--dir", "d", "--unset", "A=1", "--", "true"}), "name"));
  CHECK(contains(complaint({"--dir", "d", "--cwd", "", "--", "true"}), "--cwd"));
}

TEST(log_limits_are_whole_bytes) {
  for (const char* text : {"", "-1", "1k", "1.5", " 1", "99999999999999999999999"}) {
    CHECK(contains(complaint({"--dir", "d", "--log-limit", text, "--", "true"}), "--log-limit"));
  }
  CHECK(parse({"--dir", "d", "--log-limit", "0", "--", "true"}).log_limit == 0);
}

TEST(only_private_arguments_are_hidden) {
  std::string texts[] = {"--dir", "d", "--env", "TOKEN=s", "--meta", "--env",
                         "--cwd", "/", "--",    "serve",   "--env",  "key"};
  std::vector<char*> args;
  for (std::string& text : texts) args.push_back(text.data());
  dllm::hide_private_arguments(args);
  std::string shown;
  for (const char* arg : args) shown += std::string(arg) + "|";
  CHECK(shown == "--dir|d|--env||--meta||--cwd|/|--||||");
}

RUN_TESTS()
