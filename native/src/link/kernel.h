// What each kernel does its own way: what it measured on a connection, how it notices that the
// machine at the other end is gone, how precisely it wakes.
#pragma once

#include <algorithm>
#include <optional>

#include "clock.h"
#include "meter/passes.h"

namespace dllm {

// A machine that acknowledges nothing for so long is gone, if nobody says otherwise. Without
// anything to acknowledge it is asked after kIdleS, and again every kAskEveryS, kAsks times: 25 s.
inline constexpr Nanos kGoneAfter = 20 * kNanosPerSecond;
inline constexpr int kIdleS = 10;
inline constexpr int kAskEveryS = 5;
inline constexpr int kAsks = 3;

// For `send` and `recv`: no SIGPIPE where the system has a flag for that.
extern const int kNoSignal;
// For `poll`: the peer sends no more.
extern const short kHangup;

// What the kernel measured on a TCP connection. Keeps what it cannot tell, as of a Unix socket.
void measure(int fd, LinkEstimate& estimate);
// Lets a TCP connection end when the other machine is gone; see `Heard` for what is under way.
void keep_alive(int fd);
// Wakes of this thread are not put off to save energy.
void sleep_precisely();

// What the other machine's kernel has acknowledged; how busy its programs are plays no part.
struct Acknowledged {
  bool all = true;      // nothing is under way
  Nanos heard_ago = 0;  // since the latest sign of life
};
// All, where the kernel itself gives up in time.
Acknowledged acknowledged(int fd);

// How long bytes have been under way without a sign of life.
class Heard {
 public:
  Nanos silence(const Acknowledged& seen, Nanos now) {
    if (seen.all) since_.reset();
    if (!seen.all && !since_) since_ = now;
    return since_ ? std::min(now - *since_, seen.heard_ago) : 0;
  }

 private:
  std::optional<Nanos> since_;  // bytes are under way
};

}  // namespace dllm
