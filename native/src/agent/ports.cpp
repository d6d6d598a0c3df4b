#include "ports.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

#include "posix.h"

namespace dllm::agent {

namespace {

constexpr std::size_t kRecentMax = 64;

sockaddr_in address_of(in_addr_t host, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(host);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return address;
}

UniqueFd open_socket() {
  // Closed before anything is started.
  return UniqueFd(check(::socket(AF_INET, SOCK_STREAM, 0), "cannot open a socket"));
}

int bind_to(const UniqueFd& socket, sockaddr_in& address) {
  return ::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
}

int pick() {
  const UniqueFd socket = open_socket();
  sockaddr_in address = address_of(INADDR_LOOPBACK, 0);
  socklen_t size = sizeof address;
  check(bind_to(socket, address), "no port is free");
  check(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size), "getsockname");
  return ntohs(address.sin_port);
}

bool is_taken(in_addr_t host, int port) {
  const UniqueFd socket = open_socket();
  // Connections that linger after their server ended do not count.
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address = address_of(host, port);
  const bool bound = bind_to(socket, address) == 0 && ::listen(socket.get(), 1) == 0;
  return !bound && errno == EADDRINUSE;
}

}  // namespace

int FreePorts::take() {
  int port = pick();
  while (std::find(recent_.begin(), recent_.end(), port) != recent_.end()) port = pick();
  recent_.push_back(port);
  if (recent_.size() > kRecentMax) recent_.pop_front();
  return port;
}

bool is_port_used(int port) {
#ifdef __APPLE__
  // It lets 127.0.0.1 be bound beside a listener on all addresses.
  if (is_taken(INADDR_ANY, port)) return true;
#endif
  return is_taken(INADDR_LOOPBACK, port);
}

}  // namespace dllm::agent
