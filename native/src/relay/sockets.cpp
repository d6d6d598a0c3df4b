#include "sockets.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <stdexcept>

#ifdef __linux__
#include <linux/tcp.h>
#else
#include <netinet/tcp.h>
#endif

namespace dllm {

namespace {

constexpr int kBacklog = 64;
constexpr int kOn = 1;
#ifdef POLLRDHUP
constexpr short kHangup = POLLRDHUP;
#else
constexpr short kHangup = POLLHUP;
#endif

UniqueFd make_socket(int family) {
  return UniqueFd(check(::socket(family, SOCK_STREAM, 0), "cannot make a socket"));
}

bool happens(int fd, short event, int patience_ms) {
  pollfd question{fd, event, 0};
  return ::poll(&question, 1, patience_ms) > 0;
}

sockaddr_in address_of(const Endpoint& endpoint) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(endpoint.port);
  if (::inet_pton(AF_INET, endpoint.host.c_str(), &address.sin_addr) != 1) {
    throw std::runtime_error("'" + endpoint.host + "' is no IPv4 address");
  }
  return address;
}

const sockaddr* generic(const void* address) {
  return static_cast<const sockaddr*>(address);
}

std::string text(const Endpoint& endpoint) {
  return endpoint.host + ":" + std::to_string(endpoint.port);
}

}  // namespace

UniqueFd listen_tcp(const Endpoint& endpoint) {
  UniqueFd fd = make_socket(AF_INET);
  const sockaddr_in address = address_of(endpoint);
  const std::string what = "cannot listen on " + text(endpoint);
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &kOn, sizeof kOn);
  check(::bind(fd.get(), generic(&address), sizeof address), what);
  check(::listen(fd.get(), kBacklog), what);
  return fd;
}

std::uint16_t bound_port(int listener) {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  check(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length), "getsockname");
  return ntohs(address.sin_port);
}

UniqueFd listen_unix(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    throw std::runtime_error("the path of the stats socket is too long: " + path);
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd fd = make_socket(AF_UNIX);
  ::unlink(path.c_str());
  const mode_t mask = ::umask(0177);
  const int bound = ::bind(fd.get(), generic(&address), sizeof address);
  ::umask(mask);
  check(bound, "cannot listen on " + path);
  check(::listen(fd.get(), kBacklog), "cannot listen on " + path);
  return fd;
}

UniqueFd connect_tcp(const Endpoint& endpoint) {
  UniqueFd fd = make_socket(AF_INET);
  const sockaddr_in address = address_of(endpoint);
  const std::string what = "cannot reach the worker at " + text(endpoint);
  check(::connect(fd.get(), generic(&address), sizeof address), what);
  set_nodelay(fd.get());
  return fd;
}

UniqueFd accept_client(int listener) {
  return UniqueFd(retry([&] { return ::accept(listener, nullptr, nullptr); }));
}

void set_nodelay(int fd) {
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &kOn, sizeof kOn);
}

bool send_all(int fd, View bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = retry([&] { return ::send(fd, bytes.data(), bytes.size(), kNoSignal); });
    if (sent < 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
  return true;
}

ssize_t receive(int fd, Bytes into) {
  return retry([&] { return ::recv(fd, into.data(), into.size(), 0); });
}

ssize_t receive_awake(int fd, Bytes into, Nanos awake) {
  const Nanos end = monotonic_now() + awake;
  do {
    const ssize_t count = ::recv(fd, into.data(), into.size(), MSG_DONTWAIT);
    if (count >= 0 || errno != EAGAIN) return count;
    ::sched_yield();
  } while (monotonic_now() < end);
  return receive(fd, into);
}

bool wait_readable(int fd, int patience_ms) {
  return happens(fd, POLLIN, patience_ms);
}

bool is_gone(int fd) {
  return happens(fd, kHangup, 0);
}

void reset_on_close(int fd) {
  const linger now{1, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

std::string peer_name(int fd) {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  char host[INET_ADDRSTRLEN] = "?";
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return host;
  ::inet_ntop(AF_INET, &address.sin_addr, host, sizeof host);
  return std::string(host) + ":" + std::to_string(ntohs(address.sin_port));
}

#ifdef __linux__

void measure(int fd, LinkEstimate& estimate) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return;
  // The smoothed RTT holds delayed acknowledgements, so whole computations; the least does not.
  const std::uint32_t rtt = length > offsetof(tcp_info, tcpi_min_rtt) ? info.tcpi_min_rtt : 0;
  const bool measured = rtt != 0 && rtt != UINT32_MAX;
  estimate.rtt = (measured ? rtt : info.tcpi_rtt) * kNanosPerMicro;
  const bool has_rate = length > offsetof(tcp_info, tcpi_delivery_rate);
  if (!has_rate || info.tcpi_delivery_rate_app_limited) return;
  estimate.bytes_per_s = std::max(estimate.bytes_per_s, double(info.tcpi_delivery_rate));
}

#else

void measure(int fd, LinkEstimate& estimate) {
  tcp_connection_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_CONNECTION_INFO, &info, &length) != 0) return;
  estimate.rtt = info.tcpi_srtt * kNanosPerMilli;
}

#endif

}  // namespace dllm
