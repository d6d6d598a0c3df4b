#ifdef __linux__

#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include <cstddef>

#include "kernel.h"

namespace dllm {

namespace {

// Since Linux 6.15: the longest pause between two attempts, where two minutes are usual.
constexpr int kTcpRtoMaxMs = 44;
constexpr int kAttemptEveryMs = 5000;

void set(int fd, int level, int option, int value) {
  ::setsockopt(fd, level, option, &value, sizeof value);
}

bool read_info(int fd, tcp_info& info, socklen_t& length) {
  length = sizeof info;
  return ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0;
}

}  // namespace

const int kNoSignal = MSG_NOSIGNAL;
const short kHangup = POLLRDHUP;

void measure(int fd, LinkEstimate& estimate) {
  tcp_info info{};
  socklen_t length = 0;
  if (!read_info(fd, info, length)) return;
  // The smoothed RTT holds delayed acknowledgements, so whole computations; the least does not.
  const std::uint32_t rtt = length > offsetof(tcp_info, tcpi_min_rtt) ? info.tcpi_min_rtt : 0;
  const bool measured = rtt != 0 && rtt != UINT32_MAX;
  estimate.rtt = (measured ? rtt : info.tcpi_rtt) * kNanosPerMicro;
  const bool has_rate = length > offsetof(tcp_info, tcpi_delivery_rate);
  if (!has_rate || info.tcpi_delivery_rate_app_limited) return;
  estimate.bytes_per_s = double(info.tcpi_delivery_rate);
}

// TCP_USER_TIMEOUT would also end a worker that lives: one that computes while so much waits for
// it that its window stays shut. Hence `acknowledged`.
void keep_alive(int fd) {
  set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPIDLE, kIdleS);
  set(fd, IPPROTO_TCP, TCP_KEEPINTVL, kAskEveryS);
  set(fd, IPPROTO_TCP, TCP_KEEPCNT, kAsks);
  set(fd, IPPROTO_TCP, kTcpRtoMaxMs, kAttemptEveryMs);
}

void sleep_precisely() {
  ::prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
}

Acknowledged acknowledged(int fd) {
  tcp_info info{};
  socklen_t length = 0;
  if (!read_info(fd, info, length)) return {};
  // A window that is shut is asked for with probes; each answer sets their number to zero.
  const bool all = info.tcpi_unacked == 0 && info.tcpi_probes == 0;
  return {all, Nanos{info.tcpi_last_ack_recv} * kNanosPerMilli};
}

}  // namespace dllm

#endif
