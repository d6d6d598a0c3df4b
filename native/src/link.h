// Everything known about the way to one worker, over all its connections.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
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
  std::string protocol;        // latest; empty before the first HELLO
  bool ops_guarded = false;
  std::array<CommandTally, kCommands> commands;
  Generated generated;
  std::uint64_t passes = 0;
  std::uint64_t passes_dropped = 0;
  LinkEstimate estimate;
};

struct Link {
  Link(std::string link_name, bool gives_answers, bool has_guard)
      : name(std::move(link_name)), answering(gives_answers), guarding(has_guard) {}

  const std::string name;
  const bool answering;
  const bool guarding;
  Lab lab;

  std::mutex mutex;  // over everything below
  Tally tally;
  PassMeter passes;
  Answers answers;
  int worker_fd = -1;                // of the present connection
  std::vector<std::string> waiting;  // clients that wait for their turn
  std::uint64_t revision = 0;        // grows with every change
};

}  // namespace dllm
