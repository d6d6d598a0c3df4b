#include "sockets.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace dllm {

namespace {

constexpr int kBacklog = 64;
constexpr int kOn = 1;
constexpr std::chrono::milliseconds kQueuePause{10};
UniqueFd make_socket(int family) {
  return UniqueFd(check(::socket(family, SOCK_STREAM, 0), "cannot make a socket"));
}

bool happens(int fd, short event, int patience_ms) {
  pollfd question{fd, event, 0};
  return ::poll(&question, 1, patience_ms) > 0;
}

SocketAddress bound_address(int fd) {
  SocketAddress address;
  address.length = sizeof address.storage;
  auto* place = reinterpret_cast<sockaddr*>(&address.storage);
  check(::getsockname(fd, place, &address.length), "getsockname");
  return address;
}

// The error number of a connect without blocking; 0 when it succeeded in time.
int connect_in_time(int fd, const SocketAddress& address, Nanos patience) {
  const Nanos deadline = monotonic_now() + patience;
  while (::connect(fd, address.get(), address.length) != 0) {
    const int error = errno;
    if (error == EISCONN) return 0;
    const int left_ms = static_cast<int>((deadline - monotonic_now()) / kNanosPerMilli);
    if (error == EINPROGRESS || error == EALREADY || error == EINTR) {
      return happens(fd, POLLOUT, std::max(left_ms, 0)) ? connect_error(fd) : ETIMEDOUT;
    }
    // The queue of a Unix listener is full: there is nothing to poll for.
    if (error != EAGAIN || address.family() != AF_UNIX) return error;
    if (left_ms <= 0) return ETIMEDOUT;
    std::this_thread::sleep_for(kQueuePause);
  }
  return 0;
}

}  // namespace

void set_blocking(int fd, bool blocking) {
  const int flags = check(::fcntl(fd, F_GETFL), "fcntl");
  check(::fcntl(fd, F_SETFL, blocking ? flags & ~O_NONBLOCK : flags | O_NONBLOCK), "fcntl");
}

int connect_error(int fd) {
  int error = 0;
  socklen_t length = sizeof error;
  check(::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length), "getsockopt");
  return error;
}

UniqueFd listen_tcp(const Endpoint& endpoint) {
  const SocketAddress address = address_of(endpoint);
  UniqueFd fd = make_socket(address.family());
  const std::string what = "cannot listen on " + text(endpoint);
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &kOn, sizeof kOn);
  check(::bind(fd.get(), address.get(), address.length), what);
  check(::listen(fd.get(), kBacklog), what);
  return fd;
}

std::uint16_t bound_port(int listener) {
  return endpoint_of(bound_address(listener)).port;
}

void remove_dead_socket(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 || !S_ISSOCK(status.st_mode)) return;
  const SocketAddress address = address_of({{}, 0, path});
  const UniqueFd caller = make_socket(AF_UNIX);
  set_blocking(caller.get(), false);
  const bool refused = ::connect(caller.get(), address.get(), address.length) != 0;
  if (refused && errno == ECONNREFUSED) ::unlink(path.c_str());
}

UniqueFd listen_unix(const std::string& path) {
  const SocketAddress address = address_of({{}, 0, path});
  UniqueFd fd = make_socket(AF_UNIX);
  remove_dead_socket(path);
  const mode_t mask = ::umask(0177);
  const int bound = ::bind(fd.get(), address.get(), address.length);
  ::umask(mask);
  check(bound, "cannot listen on " + path);
  check(::listen(fd.get(), kBacklog), "cannot listen on " + path);
  return fd;
}

UniqueFd connect_to(const Endpoint& endpoint, Nanos patience) {
  const SocketAddress address = address_of(endpoint);
  UniqueFd fd = make_socket(address.family());
  set_blocking(fd.get(), false);
  errno = connect_in_time(fd.get(), address, patience);
  if (errno != 0) throw_errno("cannot reach the worker at " + text(endpoint));
  set_blocking(fd.get(), true);
  tune(fd.get());
  return fd;
}

UniqueFd begin_connect(const Endpoint& endpoint) {
  const SocketAddress address = address_of(endpoint);
  UniqueFd fd = make_socket(address.family());
  set_blocking(fd.get(), false);
  const int result = ::connect(fd.get(), address.get(), address.length);
  const bool begun = result == 0 || errno == EINPROGRESS || errno == EINTR;
  if (!begun) throw_errno("cannot reach " + text(endpoint));
  tune(fd.get());
  return fd;
}

UniqueFd accept_client(int listener) {
  return UniqueFd(retry([&] { return ::accept(listener, nullptr, nullptr); }));
}

void tune(int fd) {
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &kOn, sizeof kOn);
  keep_alive(fd);
}

bool send_all(int fd, View bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = retry([&] { return ::send(fd, bytes.data(), bytes.size(), kNoSignal); });
    if (sent < 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
  return true;
}

ssize_t send_some(int fd, View bytes) {
  const int flags = kNoSignal | MSG_DONTWAIT;
  const ssize_t sent = retry([&] { return ::send(fd, bytes.data(), bytes.size(), flags); });
  return sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? 0 : sent;
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

void wait_until(std::span<pollfd> waits, Nanos patience) {
  patience = std::max<Nanos>(patience, 0);
#ifdef __linux__
  const timespec left{patience / kNanosPerSecond, patience % kNanosPerSecond};
  ::ppoll(waits.data(), waits.size(), &left, nullptr);
#else
  const Nanos left_ms = (patience + kNanosPerMilli - 1) / kNanosPerMilli;
  ::poll(waits.data(), static_cast<nfds_t>(waits.size()), static_cast<int>(left_ms));
#endif
}

void wait_writable(int fd, int patience_ms) {
  happens(fd, POLLOUT, patience_ms);
}

bool is_gone(int fd) {
  return happens(fd, kHangup, 0);
}

void reset_on_close(int fd) {
  const linger now{1, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

std::string peer_name(int fd) {
  SocketAddress address;
  address.length = sizeof address.storage;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0) {
    return "?";
  }
  return text(endpoint_of(address));
}

}  // namespace dllm
