// Everything known about the way to one worker, over all its connections.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "answers.h"
#include "histogram.h"
#include "lab.h"
#include "passes.h"

namespace dllm {

struct CommandTally {
  std::uint64_t count = 0;
  std::uint64_t bytes_up = 0;
  std::uint64_t bytes_down = 0;
  std::uint64_t answered = 0;  // of `count`: by us, without asking the worker
  std::uint64_t errors = 0;    // refused, or the connection ended before the reply
  // Nanoseconds from the request's last byte to the reply's last byte.
  Histogram round_trip;
};

// What a snapshot shows.
struct Tally {
  std::uint64_t bytes_up = 0;
  std::uint64_t bytes_down = 0;
  std::uint64_t connections = 0;
  std::uint64_t plain_connections = 0;
  std::uint64_t refused = 0;
  bool connected = false;
  bool plain = false;          // the present or latest connection is not understood
  std::string plain_reason;    // latest
  std::string refused_reason;  // latest
  std::string silence;         // the worker does not answer; empty: it does
  std::string protocol;        // latest; empty before the first HELLO
  bool ops_guarded = false;
  std::array<CommandTally, kCommands> commands;
  std::vector<std::string> waiting;  // clients that wait for their turn
  LinkEstimate estimate;
};

struct Link {
  // A worker that says nothing for so long is probably in the hands of another client: a stock one
  // serves a single connection and lets the next hang.
  static constexpr Nanos kSilenceMax = 5 * kNanosPerSecond;

  Link(std::string link_name, bool gives_answers, bool has_guard)
      : name(std::move(link_name)), answering(gives_answers), guarding(has_guard) {}

  const std::string name;
  const bool answering;
  const bool guarding;
  Lab lab;

  // With the mutex held: tells about a worker that was silent for too long, once.
  void note_silence(Nanos now);

  std::mutex mutex;  // over everything below
  Tally tally;
  PassMeter passes;
  Answers answers;
  int worker_fd = -1;                     // of the present connection
  std::optional<Nanos> unanswered_since;  // the worker was called or greeted, in vain so far
  std::uint64_t revision = 0;             // grows with every change
};

}  // namespace dllm
