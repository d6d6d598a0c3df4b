#include "agent.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "arguments.h"
#include "json.h"
#include "link/compression.h"
#include "link/transport_security.h"
#include "ports.h"
#include "posix.h"
#include "process_tree.h"
#include "process_watch.h"
#include "records.h"
#include "requests.h"
#include "spawn.h"
#include "system.h"
#include "usage.h"
#include "verbs.h"

namespace dllm::agent {

const char* const kAgentHelp =
    R"(usage: dllm-relay agent --run-dir DIR [--stop-at-end]

Looks after the processes of this machine: reads requests from standard input and writes answers and
news to standard output, one JSON object a line (native/AGENT.md tells which). Ends when standard
input ends; what it started lives on, unless --stop-at-end is given.

  --run-dir DIR       holds the process directories; absolute; made by the first start
  --stop-at-end       at the end, unless a signal ends it, stop everything below DIR
)";

namespace {

constexpr int kProtocol = 2;
constexpr std::size_t kBlock = 64 * 1024;
constexpr std::chrono::duration<double> kLeaseMin(0.1);
constexpr std::chrono::duration<double> kLeaseMax(86400);
constexpr std::chrono::duration<double> kStopGrace(2);
constexpr std::chrono::duration<double> kStartsUnderWay(0.5);
constexpr std::chrono::milliseconds kStopPause(100);

struct Options {
  std::string run_dir;
  bool stops = false;
};

Options parse_options(std::span<char* const> args) {
  Options options;
  parse_arguments(args, {kept("--run-dir", options.run_dir), flag("--stop-at-end", options.stops)});
  if (!options.run_dir.starts_with('/')) throw UsageError("agent needs --run-dir and a whole path");
  return options;
}

// How long a client may say nothing before it is taken for dead.
Clock::duration lease_in(const json::Value& request) {
  const std::chrono::duration<double> lease(json::number_of(request, "seconds", 0));
  if (!(lease >= kLeaseMin && lease <= kLeaseMax)) {
    throw Refusal(kBadRequest, "a lease is from 0.1 s to a day");
  }
  return std::chrono::duration_cast<Clock::duration>(lease);
}

// Our marker would make what we start look like a part of whatever started us. The kernel shows the
// environment a process was given, so the text itself is blanked.
void forget_marker() {
  char* const value = std::getenv(kMarkerVariable);
  if (value == nullptr) return;
  const std::size_t name = std::strlen(kMarkerVariable) + 1;
  std::memset(value - name, 0, name + std::strlen(value));
  ::unsetenv(kMarkerVariable);
}

class Agent {
 public:
  Agent(const Options& options, const char* version)
      : version_(version),
        run_(options.run_dir),
        watch_(run_, kernel_events()) {
    add_quick_verbs();
    add_slow_verbs();
  }

  void serve() {
    say(hello());
    while (wait()) {
    }
  }

 private:
  using Quick = std::function<std::string(const json::Value&)>;

  void add_quick_verbs() {
    quick_["watch"] = [this](const json::Value&) {
      watching_ = true;
      return json::Object().raw("records", json::list(watch_.begin(Clock::now()))).str();
    };
    quick_["records"] = [this](const json::Value& asked) { return records_of(run_, asked); };
    quick_["log"] = [this](const json::Value& asked) { return log_of(run_, asked); };
    quick_["orphans"] = [this](const json::Value&) { return orphans_of(run_); };
    quick_["listens"] = listens_of;
    quick_["port_owner"] = port_owner_of;
    quick_["free_port"] = [this](const json::Value&) {
      return json::Object().number("port", ports_.take()).str();
    };
    quick_["memory"] = [](const json::Value&) { return memory_of(); };
    quick_["lease"] = [this](const json::Value& asked) {
      lease_ = lease_in(asked);
      return json::Object().str();
    };
  }

  void add_slow_verbs() {
    slow_["start"] = [this](const json::Value& asked) {
      return start(run_, name_in(asked), spec_in(run_, asked));
    };
    slow_["stop"] = [this](const json::Value& asked) { return stop(run_, asked); };
    slow_["remove"] = [this](const json::Value& asked) { return remove(run_, asked); };
    slow_["run"] = run;
    slow_["machine"] = machine;
    slow_["find"] = find;
    slow_["identity"] = identity;
    slow_["read"] = read;
    slow_["tensors"] = tensors;
    slow_["seed"] = seed;
    slow_["cached"] = cached;
    slow_["uncache"] = uncache;
  }

  [[nodiscard]] std::string hello() const {
    std::vector<std::string> features;
    if (link::has_tls()) features.emplace_back("worker:tls");
    if (link::has_compression()) features.emplace_back("worker:zstd");
    json::Object object;
    object.text("hello", "dllm-relay agent").number("protocol", kProtocol);
    object.text("version", version_).raw("features", json::array(features));
    return object.number("pid", ::getpid()).text("run_dir", run_.path()).line();
  }

  static void say(const std::string& line) {
    // Who does not read keeps us waiting, and nothing piles up.
    write_all(STDOUT_FILENO, line, "cannot answer");
  }

  // Returns whether there may be more to do.
  bool wait() {
    std::vector<pollfd> waited = {{STDIN_FILENO, POLLIN, 0},
                                  {watching_ ? watch_.fd() : -1, POLLIN, 0}};
    jobs_.add_to(waited);
    usage_.add_to(waited);
    check(retry([&] { return ::poll(waited.data(), waited.size(), patience_ms()); }), "poll");
    std::vector<std::string> answers = jobs_.take(waited);
    for (std::string& reading : usage_.take(waited)) answers.push_back(std::move(reading));
    const bool due = watch_.deadline() && Clock::now() >= *watch_.deadline();
    // First the news: who is answered has been told what came of it.
    if (watching_ && (waited[1].revents != 0 || due || !answers.empty())) {
      for (const std::string& line : watch_.news(Clock::now())) say(line);
    }
    for (const std::string& line : answers) say(line);
    if (waited[0].revents != 0) return read_requests();
    return !lease_ || Clock::now() < heard_at_ + *lease_;
  }

  [[nodiscard]] int patience_ms() const {
    auto due = watching_ ? watch_.deadline() : std::nullopt;
    if (lease_) due = std::min(due.value_or(Clock::time_point::max()), heard_at_ + *lease_);
    if (!due) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*due - Clock::now());
    return static_cast<int>(std::max<std::int64_t>(left.count(), 0));
  }

  bool read_requests() {
    std::array<char, kBlock> block;
    const ssize_t count = retry([&] { return ::read(STDIN_FILENO, block.data(), block.size()); });
    if (count <= 0) return false;
    heard_at_ = Clock::now();
    lines_.add({block.data(), static_cast<std::size_t>(count)});
    while (const auto line = lines_.next()) handle(*line);
    return true;
  }

  void handle(const std::optional<std::string>& line) {
    if (!line) return say(refusal("null", Refusal(kBadRequest, "a line is too long")));
    std::string id = "null";
    try {
      const json::Value request = json::parse(*line);
      id = std::to_string(json::integer_of(request, "id"));
      answer_to(id, json::text_of(request, "do"), request);
    } catch (const json::ParseError& error) {
      say(refusal(id, Refusal(kBadRequest, error.what())));
    } catch (const json::TypeError& error) {
      say(refusal(id, Refusal(kBadRequest, error.what())));
    }
  }

  void answer_to(const std::string& id, const std::string& verb, const json::Value& request) {
    if (const auto quick = quick_.find(verb); quick != quick_.end()) {
      const std::string line = answer_of(id, [&] { return quick->second(request); });
      if (line.size() <= kAnswerBytesMax) return say(line);
      return say(refusal(id, Refusal(kFailed, "the answer is too long")));
    }
    if (verb == "usage") return ask_usage(id);
    const auto slow = slow_.find(verb);
    if (slow == slow_.end()) {
      return say(refusal(id, Refusal(kBadRequest, "there is no verb '" + verb + "'")));
    }
    const auto work = [&] { return answer_of(id, [&] { return slow->second(request); }); };
    try {
      jobs_.start(id, work);
    } catch (const std::exception&) {
      say(refusal_of_current(id));
    }
  }

  void ask_usage(const std::string& id) {
    try {
      usage_.ask(id);
    } catch (const std::exception&) {
      say(refusal_of_current(id));
    }
  }

  const char* version_;
  RunDir run_;
  ProcessWatch watch_;
  bool watching_ = false;
  Clock::time_point heard_at_ = Clock::now();
  std::optional<Clock::duration> lease_;
  FreePorts ports_;
  ForkedJobs jobs_;
  UsageProcess usage_;
  Lines lines_;
  std::map<std::string, Quick> quick_;
  std::map<std::string, Quick> slow_;
};

// At the end of an agent, unless a signal ends it, stops everything that it looked after.
//
// A start may be under way in another agent, whose input has ended with ours: so it looks for a
// while, also where it has found nothing. What is started much later is of a program that has come after ours.
class Stopping {
 public:
  explicit Stopping(const Options& options) : run_(options.run_dir), stops_(options.stops) {}
  Stopping(const Stopping&) = delete;
  Stopping& operator=(const Stopping&) = delete;

  ~Stopping() {
    if (!stops_) return;
    // What started by then is ours; how long we look does not depend on who sets the clock.
    const double before = since_1970() + kStartsUnderWay.count();
    const auto looked_until = Clock::now() + kStartsUnderWay;
    do {
      std::this_thread::sleep_for(kStopPause);
    } while ((stop_all(before) > 0 && Clock::now() < looked_until + kStopGrace) ||
             Clock::now() < looked_until);
  }

 private:
  static double since_1970() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration<double>(now).count();
  }

  // Returns how many there were.
  [[nodiscard]] std::size_t stop_all(double before) const noexcept try {
    std::vector<std::thread> ending;
    for (const std::string& name : run_.names()) {
      const auto record = run_.read(name);
      if (!record || !record->alive || record->started_at > before) continue;
      ending.emplace_back([this, name] { stop_one(name); });
    }
    for (std::thread& one : ending) one.join();
    return ending.size();
  } catch (...) {
    return 0;
  }

  void stop_one(const std::string& name) const noexcept try {
    Patience patience;
    patience.grace = kStopGrace;
    end_process_tree(run_, name, patience);
  } catch (...) {
    // The others are to end all the same.
  }

  RunDir run_;
  bool stops_;
};

}  // namespace

int serve(std::span<char* const> args, const char* version) {
  const Options options = parse_options(args);
  forget_marker();
  settle_for_spawning();
  close_from(STDERR_FILENO + 1);
  // So that no disk is kept busy by our working directory.
  check(::chdir("/"), "cannot enter /");
  const Stopping at_the_end(options);
  Agent(options, version).serve();
  return kExitOk;
}

}  // namespace dllm::agent
