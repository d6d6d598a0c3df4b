// Forward passes as one worker sees them, and where the time of each went.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "tensor.h"

namespace dllm {

// Nanoseconds on a monotonic clock.
using Nanos = std::int64_t;

// What is known about the way to the worker: from the kernel, or as the lab pretends.
struct LinkEstimate {
  Nanos rtt = 0;
  double bytes_per_s = 0;  // 0: not known, taken as no limit
};

// One pass: from the first request that feeds it to the last byte of the tensors fetched from it.
struct Pass {
  // Moments.
  Nanos first_input = 0;  // first byte of the first request of this pass
  Nanos graph_sent = 0;   // last byte of its (last) graph
  Nanos asked = 0;        // last byte of its first GET_TENSOR
  Nanos first_reply = 0;  // first byte of that reply
  Nanos last_reply = 0;   // last byte of its last reply

  // Where the time went. They add up to last_reply minus the last_reply of the pass before (of
  // the first pass: minus first_input), exactly.
  Nanos head = 0;     // from the previous pass's last reply to first_input: spent elsewhere
  Nanos up = 0;       // half the RTT, and what the bytes sent take at the link's rate
  Nanos compute = 0;  // from asked to first_reply, less the link's share
  Nanos down = 0;     // half the RTT, and from first_reply to last_reply
  Nanos wait = 0;     // between first_input and asked, beyond sending: the head prepared inputs

  std::uint32_t tokens = 0;
  std::uint32_t trips = 0;  // replies that had to be waited for
  std::uint64_t bytes_up = 0;
  std::uint64_t bytes_down = 0;
  bool generated = false;  // see PassMeter
};

// Sums over generated passes. Round trips and bytes per generated token, as a reader expects them,
// are these sums divided by `tokens`: one sequence makes one token per pass, slots decoding
// together share the trips of a pass. Prompt passes do not count.
struct Generated {
  std::uint64_t passes = 0, tokens = 0, trips = 0, bytes_up = 0, bytes_down = 0;
  Nanos head = 0, up = 0, compute = 0, down = 0, wait = 0;
  void add(const Pass& pass);
};

// Fed with the requests and replies of one worker, in order. A pass is *generated*, not prompt,
// when it has no more tokens than slots decode together and no more than the pass right before it.
class PassMeter {
 public:
  static constexpr std::uint32_t kSlotsMax = 16;
  static constexpr std::size_t kUncollectedMax = 4096;
  // A fetched pass that nothing continued for so long is complete.
  static constexpr Nanos kSettled = 50'000'000;

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
  [[nodiscard]] const Generated& generated() const { return generated_; }
  [[nodiscard]] std::uint64_t count() const { return count_; }
  // Passes nobody collected in time.
  [[nodiscard]] std::uint64_t dropped() const { return dropped_; }

 private:
  void complete();
  [[nodiscard]] bool fetched() const;

  std::optional<Pass> open_;
  LinkEstimate link_;
  bool has_graph_ = false;
  std::uint32_t unanswered_ = 0;    // tensors asked for, not yet here
  std::uint32_t graph_tokens_ = 0;  // of the graph being fed; 0: not seen
  std::optional<Nanos> previous_reply_;
  std::uint32_t previous_tokens_ = 0;
  std::deque<Pass> done_;
  Generated generated_;
  std::uint64_t count_ = 0;
  std::uint64_t dropped_ = 0;
};

// Fills head, up, compute, down and wait from the moments and bytes.
void divide_time(Pass& pass, Nanos previous_reply, const LinkEstimate& link);

}  // namespace dllm
