// Forward passes as one worker sees them, and where the time of each went.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

#include "clock.h"
#include "protocol/tensor.h"

namespace dllm {

// What is known about the way to the worker: from the kernel, or as the lab pretends.
struct LinkEstimate {
  Nanos rtt = 0;
  double bytes_per_s = 0;  // 0: not known, taken as no limit
};

// What a pass, or many, cost. The five times add up to the wall time exactly: to last_reply minus
// the last_reply of the pass before (of the first pass: minus first_input).
//
// The relay stands at the head's end. It sees when a request leaves and when a reply arrives, and
// knows the link's RTT and rate; what the worker does is between: it can begin when the first
// graph was delivered, and had ended when the reply left. So compute is the longest it can have
// been. It is too long only where the worker is done before it is asked, which stock clients do
// not let happen: they ask right behind the graph. Where a relay stands at the worker's end too, it
// has timed the computation itself, and what is left of the time is the way.
struct Cost {
  std::uint64_t batch = 0;   // tokens fed
  std::uint64_t tokens = 0;  // rows of logits that came out, see Pass::rows
  std::uint64_t trips = 0;   // replies that had to be waited for
  std::uint64_t bytes_up = 0;
  std::uint64_t bytes_down = 0;
  Nanos head = 0;  // nothing of this pass has begun, or it is elsewhere
  Nanos up = 0;    // inputs and graph under way: half the RTT, and their bytes at the link's rate
  Nanos compute = 0;  // from the delivery of the first graph to half an RTT before the first reply
  Nanos down = 0;     // half the RTT, and from the first byte of the first reply to the last of all
  Nanos wait = 0;     // up to the first graph, but not sending: the head prepares inputs

  Cost& operator+=(const Cost& other);
};

// One way to the worker and back within a pass: from the first input to the last byte of what is
// fetched. Usually a pass is one; where tensors in between are computed elsewhere (`-ot`), several.
struct Leg {
  Nanos first_input = 0;        // first byte of its first request
  Nanos graph_sent = 0;         // last byte of its first graph
  Nanos first_reply = 0;        // first byte of the first tensor fetched behind that
  Nanos last_reply = 0;         // last byte of the last one
  std::uint64_t bytes_up = 0;   // so far
  std::uint64_t bytes_fed = 0;  // of them: up to and with the first graph
  // From the first graph to the first byte of the first reply, as the worker's own end timed it.
  std::optional<Nanos> computed{};
};

struct Pass : Cost {
  Nanos first_input = 0;  // first byte of the first request of this pass
  Nanos last_reply = 0;   // last byte of its last reply
  std::uint32_t graphs = 0;
  std::uint32_t fetches = 0;
  // Tokens it brought out: rows of logits fetched, or asked for, from this worker. Not known where
  // the last layer is elsewhere. With speculation some of them are not accepted by the head.
  std::optional<std::uint64_t> rows;
  bool generated = false;  // see PassMeter
};

// Sums over generated passes; prompt passes do not count. One sequence makes one token per pass,
// slots decoding together share the trips of a pass.
struct Generated : Cost {
  std::uint64_t passes = 0;
};

struct PassTotals {
  Generated generated;
  std::uint64_t passes = 0;
  std::optional<std::uint64_t> rows;  // of all passes, prompts too
  std::uint64_t dropped = 0;          // passes nobody collected in time
};

// Fed with the requests and replies of one worker, in order. A pass begins when an input is set
// that the pass before has set already: the inputs of all passes have the same names, but for the
// number of their copy. It is *generated*, not prompt, when it brings out as many rows as tokens
// were fed. Where rows are not seen, it is a guess: when it has no more tokens than slots decode
// together and no more than the pass right before it.
class PassMeter {
 public:
  static constexpr std::uint32_t kSlotsMax = 16;
  static constexpr std::size_t kUncollectedMax = 4096;
  static constexpr std::size_t kNamesMax = 4096;
  // A fetched pass that nothing continued for so long is complete, if as much was computed and
  // fetched as of others; if not, or if it is the first, the head may still be at its part.
  static constexpr Nanos kSettled = 250 * kNanosPerMilli;
  static constexpr Nanos kAbandoned = 5 * kNanosPerSecond;

  // Another client: what is known of the one before means nothing.
  void meet();
  // A request that feeds a pass began.
  void feed(Nanos begun);
  // A request that belongs before the first input of a pass: room for its graph.
  void prepare(Nanos begun);
  // An input. A f32 matrix tells how many tokens there are.
  void set(Nanos begun, Tensor tensor, std::uint64_t offset, std::uint64_t bytes);
  void graph(Nanos now);
  void ask(Tensor fetched, std::uint64_t bytes);
  // Of the reply that comes next: how long the worker took.
  void computed(Nanos taken);
  void reply_begun(Nanos now);
  void reply_ended(Nanos now, const LinkEstimate& link);
  void add_up(std::uint64_t bytes);
  void add_down(std::uint64_t bytes);
  void add_trip();
  // The open pass was none: buffers were set up or weights loaded.
  void discard();
  // It was one to warm up: what it left is cleared.
  void forget();
  // Completes a fetched pass that nothing continues.
  void settle(Nanos now);

  std::vector<Pass> collect();
  [[nodiscard]] const PassTotals& totals() const { return totals_; }

 private:
  void open(Nanos begun);
  void complete();
  void close_leg();
  void expect_as_much();
  void count_rows();
  void expect_rows();
  void classify();
  [[nodiscard]] bool fetched() const;

  std::optional<Pass> open_;
  Leg leg_;  // of the open pass
  LinkEstimate link_;
  std::uint32_t unanswered_ = 0;  // tensors asked for, not yet here
  // Of the open pass: names of its inputs, hashed, and how far each was set.
  std::unordered_map<std::uint64_t, std::uint64_t> inputs_;
  std::uint64_t rows_fetched_ = 0;
  std::uint64_t rows_wanted_ = 0;
  bool brings_out_rows_ = false;       // this worker has the last layer
  std::uint32_t graphs_expected_ = 0;  // of a pass; 0: none was complete yet
  std::uint32_t fetches_expected_ = 0;
  std::optional<Nanos> previous_reply_;
  std::uint64_t previous_batch_ = 0;
  std::deque<Pass> done_;
  PassTotals totals_;
};

// The five times of a leg, from its moments and bytes.
Cost divide_time(const Leg& leg, Nanos previous_reply, const LinkEstimate& link);

}  // namespace dllm
