// Forward passes as one worker sees them, and where the time of each went.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "clock.h"
#include "tensor.h"

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
// not let happen: they ask right behind the graph.
struct Cost {
  std::uint64_t tokens = 0;
  std::uint64_t trips = 0;  // replies that had to be waited for
  std::uint64_t bytes_up = 0;
  std::uint64_t bytes_down = 0;
  Nanos head = 0;  // nothing of this pass has begun: time spent elsewhere
  Nanos up = 0;    // inputs and graph under way: half the RTT, and their bytes at the link's rate
  Nanos compute = 0;  // from the delivery of the first graph to half an RTT before the first reply
  Nanos down = 0;     // half the RTT, and from the first byte of the first reply to the last of all
  Nanos wait = 0;     // up to the first graph, but not sending: the head prepares inputs

  Cost& operator+=(const Cost& other);
};

// One pass: from the first request that feeds it to the last byte of the tensors fetched from it.
struct Pass : Cost {
  Nanos first_input = 0;        // first byte of the first request of this pass
  Nanos graph_sent = 0;         // last byte of its first graph
  Nanos asked = 0;              // last byte of its first GET_TENSOR behind that
  Nanos first_reply = 0;        // first byte of that reply
  Nanos last_reply = 0;         // last byte of its last reply
  std::uint64_t bytes_fed = 0;  // of bytes_up: up to and with the first graph
  bool generated = false;       // see PassMeter
};

// Sums over generated passes. Round trips and bytes per generated token, as a reader expects them,
// are these sums divided by `tokens`: one sequence makes one token per pass, slots decoding
// together share the trips of a pass. Prompt passes do not count.
struct Generated : Cost {
  std::uint64_t passes = 0;
};

struct PassTotals {
  Generated generated;
  std::uint64_t passes = 0;
  std::uint64_t dropped = 0;  // passes nobody collected in time
};

// Fed with the requests and replies of one worker, in order. A pass is *generated*, not prompt,
// when it has no more tokens than slots decode together and no more than the pass right before it.
class PassMeter {
 public:
  static constexpr std::uint32_t kSlotsMax = 16;
  static constexpr std::size_t kUncollectedMax = 4096;
  // A fetched pass that nothing continued for so long is complete.
  static constexpr Nanos kSettled = 50 * kNanosPerMilli;

  // A request that feeds a pass began. Completes the pass before when that was fetched.
  void open(Nanos begun);
  // An input of the open pass: a f32 matrix tells how many tokens there are.
  void input(Tensor tensor);
  void graph(Nanos now);
  void ask(Nanos now, Tensor fetched);
  void reply_begun(Nanos now);
  void reply_ended(Nanos now, const LinkEstimate& link);
  void add_up(std::uint64_t bytes);
  void add_down(std::uint64_t bytes);
  void add_trip();
  // The open pass was none: buffers were set up or weights loaded.
  void discard();
  // Completes a fetched pass that nothing continues.
  void settle(Nanos now);

  std::vector<Pass> collect();
  [[nodiscard]] const PassTotals& totals() const { return totals_; }

 private:
  void complete();
  [[nodiscard]] bool fetched() const;

  std::optional<Pass> open_;
  LinkEstimate link_;
  std::uint32_t unanswered_ = 0;    // tensors asked for, not yet here
  std::uint32_t graph_tokens_ = 0;  // of the graph being fed; 0: not seen
  std::optional<Nanos> previous_reply_;
  std::uint32_t previous_tokens_ = 0;
  std::deque<Pass> done_;
  PassTotals totals_;
};

// Fills in the five times from the moments and bytes.
void divide_time(Pass& pass, Nanos previous_reply, const LinkEstimate& link);

}  // namespace dllm
