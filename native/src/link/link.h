// Everything known about the way to one worker, over all its connections.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "kernel.h"
#include "meter/passes.h"
#include "meter/placement.h"
#include "meter/rates.h"
#include "netem/lab.h"
#include "posix.h"
#include "reply_cache.h"

namespace dllm {

struct CommandTally {
  std::uint64_t count = 0;
  std::uint64_t bytes_up = 0;
  std::uint64_t bytes_down = 0;
  // At the head's end of a pair: what crossed for these.
  std::uint64_t wire_bytes_up = 0;
  std::uint64_t wire_bytes_down = 0;
  std::uint64_t answered = 0;  // of `count`: by us, without asking the worker
  std::uint64_t errors = 0;    // refused, or the connection ended before the reply
  // Nanoseconds from the request's last byte to the reply's last byte.
  Histogram round_trip;
};

// What a lab adds to a round trip, jitter included: no worker is to blame for that.
Nanos pretended(const LabSettings& lab);

// Of the link to a worker's relay; of a stock worker only that it is not on.
struct PairTally {
  bool is_on = false;
  bool is_up = false;
  bool is_sealed = false;
  std::string reason;  // why it is not up; empty: it has not been tried
  std::string place;   // where this end dialled it
  std::string detour;  // why not at the first place it was told; empty: it is that
  // Over the real connection, all that makes the link, TLS included.
  std::uint64_t wire_bytes_up = 0;
  std::uint64_t wire_bytes_down = 0;
  // Of them what belongs to no command: frames, pings, lists, TLS. None where nobody tells.
  std::optional<std::uint64_t> overhead_bytes_up;
  std::optional<std::uint64_t> overhead_bytes_down;
  // Weights: of the worker's own files, and sent to it; and of how many tensors that were other
  // ones than in its files, or in none.
  std::uint64_t weight_bytes_home = 0;
  std::uint64_t weight_bytes_sent = 0;
  std::uint64_t tensors = 0;
  std::uint64_t tensors_differ = 0;
  std::uint64_t tensors_missing = 0;
  // Connections that broke, and the link went on over another; how long it paused for the latest.
  std::uint64_t reconnects = 0;
  Nanos pause = 0;
  Nanos rtt = 0;      // of pings, the lab's delay included; 0: not known
  Nanos unheard = 0;  // how long nothing has come from the other machine; 0: not long
  bool operator==(const PairTally&) const = default;
};

// What a snapshot shows.
struct Tally {
  std::uint64_t bytes_up = 0;
  std::uint64_t bytes_down = 0;
  std::uint64_t connections = 0;
  std::uint64_t passthrough_connections = 0;
  std::uint64_t refused = 0;
  bool connected = false;
  bool passthrough = false;          // the present or latest connection is not understood
  std::string passthrough_reason;    // latest
  std::string refused_reason;  // latest
  std::string silence;         // the worker does not answer; empty: it does
  // Of the oldest request without a reply: how long nothing has come for it, or gone; 0: not long.
  Nanos unanswered = 0;
  std::string protocol;  // latest; empty before the first HELLO
  bool ops_guarded = false;
  std::array<CommandTally, kCommands> commands;
  std::vector<std::string> waiting;  // clients that wait for their turn
  LinkEstimate estimate;
  PairTally pair;

  // At the head's end of a pair: of the bytes it has just noted, what crossed for each command;
  // `told` came down beside replies, which cross as they are.
  void note_shares(const Shares& sent, const Shares& told);
};

struct Link {
  // A worker that says nothing for so long is probably in the hands of another client: a stock one
  // serves a single connection and lets the next hang.
  static constexpr Nanos kSilenceMax = 5 * kNanosPerSecond;
  // A pause that is worth showing.
  static constexpr Nanos kUnansweredMin = kNanosPerSecond;
  // Beyond, what is told is lost: the log takes no more.
  static constexpr std::size_t kToldMax = 256;

  Link(std::string link_name, bool gives_answers, bool has_guard)
      : name(std::move(link_name)), answering(gives_answers), guarding(has_guard) {}

  const std::string name;
  const bool answering;
  const bool guarding;
  // Set before the first connection.
  Nanos gone_after = kGoneAfter;
  Lab lab;
  // The worker is being sent something, and has not taken it yet; 0: it is not. Lock-free, for the
  // path of every byte.
  std::atomic<Nanos> sending_since = 0;

  // With the mutex held: tells about a worker that was silent for too long, once.
  void note_silence(Nanos now);
  // With the mutex held: how long the worker has left a request unanswered, or taken nothing.
  void note_unanswered(Nanos now);
  // With the mutex held: something for the log. Who writes it must not hold the mutex: a log that
  // takes nothing would hold up tokens.
  void tell(const std::string& text, Level level = Level::kInfo);

  std::mutex mutex;  // over everything below
  Tally tally;
  PassMeter passes;
  BulkRate bulk;  // of the present or latest connection
  ReplyCache reply_cache;
  Placement placement;
  bool client_has_spoken = false;         // the present one, a whole request
  int worker_fd = -1;                     // of the present connection
  std::optional<Nanos> unanswered_since;  // the worker was called or greeted, in vain so far
  std::optional<Nanos> waiting_since;     // for the oldest reply, since the worker was heard last
  std::uint64_t revision = 0;             // grows with every change
  std::vector<std::string> told;          // lines that are not yet in the log
};

}  // namespace dllm
