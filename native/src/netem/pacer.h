// One direction of a connection: straight through, or through the lab's delay.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "delay_line.h"

namespace dllm {

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
