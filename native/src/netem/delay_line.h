// One direction of a connection: straight through, or through the lab's delay.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "lab.h"
#include "protocol/decoder.h"

namespace dllm {

class DelayLine {
 public:
  // Bytes under way at most; beyond, the sender waits, as on a link whose buffers are full. As much
  // as fills the link, so that a delay alone takes nothing off its rate, within bounds.
  static std::size_t under_way_max(const LabSettings& lab);
  // A rate is paced in steps of this size.
  static constexpr std::size_t kStepBytes = 16 << 10;
  // How soon a delay that was switched off ends for bytes under way: whoever waits looks again.
  static constexpr Nanos kLookAgain = 20 * kNanosPerMilli;

  DelayLine(const Lab& lab, std::uint64_t stream) : lab_(lab), schedule_(stream) {}

  // Whether nothing would be delayed now.
  [[nodiscard]] bool is_idle() const { return !lab_.on() && steps_.empty(); }
  [[nodiscard]] bool empty() const { return steps_.empty(); }
  [[nodiscard]] std::size_t under_way_bytes() const { return under_way_; }
  // Whether so many bytes more may be under way.
  bool has_room(std::size_t bytes);
  // At most kStepBytes. `idle`: nothing is under way, here or behind.
  void push(Bytes bytes, Nanos now, bool idle);
  // When the first step arrives; now, when there is no delay any more. Not when `empty`.
  [[nodiscard]] Nanos due(Nanos now);
  // What has arrived by now, of one step at least, up to about 64 KiB.
  std::vector<std::uint8_t> take(Nanos now);

 private:
  struct Step {
    Nanos due;
    std::vector<std::uint8_t> bytes;
  };

  void apply_changes(Nanos now);

  const Lab& lab_;
  Schedule schedule_;
  std::uint64_t generation_ = 0;  // of the lab's settings
  std::deque<Step> steps_;
  std::size_t under_way_ = 0;
  std::size_t under_way_max_ = 0;
};

class Pacer {
 public:
  // Hands bytes on; false when nobody takes them any more.
  using Deliver = std::function<bool(Bytes)>;

  Pacer(const Lab& lab, std::uint64_t stream, Deliver deliver);
  ~Pacer();
  Pacer(const Pacer&) = delete;
  Pacer& operator=(const Pacer&) = delete;

  // For one sender. Without lab this is a call of `deliver`, nothing else.
  bool send(Bytes bytes);
  // Returns when everything sent has been delivered.
  void drain();

 private:
  bool enqueue(Bytes bytes);
  void push(std::unique_lock<std::mutex>& lock, Bytes bytes);
  void run();
  bool wait_for_due(std::unique_lock<std::mutex>& lock);

  const Lab& lab_;
  const Deliver deliver_;
  std::mutex mutex_;
  std::condition_variable changed_;
  DelayLine line_;
  std::size_t delivering_ = 0;  // bytes
  bool broken_ = false;
  bool ending_ = false;
  std::thread thread_;  // only once the lab was used
};

}  // namespace dllm
