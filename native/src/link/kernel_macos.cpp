#ifdef __APPLE__

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include "kernel.h"

namespace dllm {

namespace {

void set(int fd, int level, int option, int value) {
  ::setsockopt(fd, level, option, &value, sizeof value);
}

}  // namespace

const int kNoSignal = 0;  // the program ignores SIGPIPE
const short kHangup = POLLHUP;

// Milliseconds, smoothed; there is no rate.
void measure(int fd, LinkEstimate& estimate) {
  tcp_connection_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_CONNECTION_INFO, &info, &length) != 0) return;
  estimate.rtt = info.tcpi_srtt * kNanosPerMilli;
}

void keep_alive(int fd) {
  set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPALIVE, kIdleS);
  set(fd, IPPROTO_TCP, TCP_KEEPINTVL, kAskEveryS);
  set(fd, IPPROTO_TCP, TCP_KEEPCNT, kAsks);
  // Counts only what is sent again, never a window that is shut.
  set(fd, IPPROTO_TCP, TCP_RXT_CONNDROPTIME, static_cast<int>(kGoneAfter / kNanosPerSecond));
}

void sleep_precisely() {}

Acknowledged acknowledged(int) {
  return {};
}

}  // namespace dllm

#endif
