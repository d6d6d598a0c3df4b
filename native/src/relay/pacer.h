// One direction of a connection: straight through, or through the lab's delay.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "decoder.h"
#include "lab.h"

namespace dllm {

class Pacer {
 public:
  // Under way at most; beyond, the sender waits, as on a link whose buffers are full.
  static constexpr std::size_t kUnderWayMaxBytes = 6 << 20;
  // A rate is paced in steps of this size.
  static constexpr std::size_t kStepBytes = 16 << 10;

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
  struct Step {
    Nanos due;
    std::vector<std::uint8_t> bytes;
  };

  bool enqueue(Bytes bytes);
  void push(std::unique_lock<std::mutex>& lock, Bytes bytes);
  void run();
  Step take_due();
  bool wait_for_due(std::unique_lock<std::mutex>& lock);

  const Lab& lab_;
  const Deliver deliver_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Schedule schedule_;
  std::uint64_t generation_ = 0;  // of the lab's settings
  std::deque<Step> steps_;
  std::size_t under_way_ = 0;
  bool delivering_ = false;
  bool broken_ = false;
  bool ending_ = false;
  std::thread thread_;  // only once the lab was used
};

}  // namespace dllm
