#include "endpoint.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <charconv>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string_view>

namespace dllm {

namespace {

constexpr std::string_view kUnix = "unix:";

std::optional<std::uint16_t> parse_port(std::string_view digits) {
  unsigned port = 0;
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, port);
  const bool valid =
      error == std::errc{} && stop == end && port <= std::numeric_limits<std::uint16_t>::max();
  if (!valid) return std::nullopt;
  return static_cast<std::uint16_t>(port);
}

SocketAddress path_address(const std::string& path) {
  SocketAddress address;
  auto& place = reinterpret_cast<sockaddr_un&>(address.storage);
  if (path.size() >= sizeof place.sun_path) {
    throw std::runtime_error("the path of the socket is too long: " + path);
  }
  place.sun_family = AF_UNIX;
  std::memcpy(place.sun_path, path.data(), path.size());
  address.length = sizeof place;
  return address;
}

struct Freed {
  void operator()(addrinfo* found) const { ::freeaddrinfo(found); }
};
using Addresses = std::unique_ptr<addrinfo, Freed>;

// Null where there is none, with why.
Addresses look_up(const std::string& host, int flags, std::string& why) {
  addrinfo hints{};
  hints.ai_flags = flags;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error != 0) why = ::gai_strerror(error);
  return Addresses(error == 0 ? found : nullptr);
}

// A stock rpc-server listens on IPv4 alone.
const addrinfo& preferred(const addrinfo& first) {
  for (const addrinfo* each = &first; each; each = each->ai_next) {
    if (each->ai_family == AF_INET) return *each;
  }
  return first;
}

SocketAddress copied(const addrinfo& found, std::uint16_t port) {
  SocketAddress address;
  std::memcpy(&address.storage, found.ai_addr, found.ai_addrlen);
  address.length = found.ai_addrlen;
  auto& place = address.storage;
  auto& at = found.ai_family == AF_INET ? reinterpret_cast<sockaddr_in&>(place).sin_port
                                        : reinterpret_cast<sockaddr_in6&>(place).sin6_port;
  at = htons(port);
  return address;
}

}  // namespace

std::optional<Endpoint> parse_endpoint(const std::string& text) {
  if (text.starts_with(kUnix)) {
    if (text.size() == kUnix.size()) return std::nullopt;
    return Endpoint{{}, 0, text.substr(kUnix.size())};
  }
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return std::nullopt;
  const auto port = parse_port(std::string_view(text).substr(colon + 1));
  std::string host = text.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  // Without brackets nobody can tell the port of an IPv6 address from its last part.
  const bool ambiguous = !bracketed && host.find(':') != std::string::npos;
  if (!port || ambiguous) return std::nullopt;
  return Endpoint{std::move(host), *port, {}};
}

std::string text(const Endpoint& endpoint) {
  if (endpoint.host.empty()) return std::string(kUnix) + endpoint.path;
  const bool bracketed = endpoint.host.find(':') != std::string::npos;
  const std::string host = bracketed ? "[" + endpoint.host + "]" : endpoint.host;
  return host + ":" + std::to_string(endpoint.port);
}

SocketAddress address_of(const Endpoint& endpoint) {
  if (!endpoint.path.empty()) return path_address(endpoint.path);
  std::string why;
  const Addresses found = look_up(endpoint.host, AI_NUMERICHOST, why);
  if (!found) throw std::runtime_error("'" + endpoint.host + "' is no IPv4 or IPv6 address");
  return copied(*found, endpoint.port);
}

Endpoint resolved(const Endpoint& endpoint) {
  if (!endpoint.path.empty()) return endpoint;
  std::string why;
  const Addresses found = look_up(endpoint.host, 0, why);
  if (!found) throw std::runtime_error("cannot find the host '" + endpoint.host + "': " + why);
  return endpoint_of(copied(preferred(*found), endpoint.port));
}

bool is_local(const Endpoint& endpoint) {
  constexpr std::uint32_t kLoopbackNet = 127;
  constexpr unsigned kNetShift = 24;
  const SocketAddress address = address_of(endpoint);
  if (address.family() == AF_INET6) {
    const auto& place = reinterpret_cast<const sockaddr_in6&>(address.storage);
    return IN6_IS_ADDR_LOOPBACK(&place.sin6_addr);
  }
  if (address.family() == AF_UNIX) return true;
  const auto& place = reinterpret_cast<const sockaddr_in&>(address.storage);
  return ntohl(place.sin_addr.s_addr) >> kNetShift == kLoopbackNet;
}

Endpoint endpoint_of(const SocketAddress& address) {
  if (address.family() == AF_INET || address.family() == AF_INET6) {
    char host[NI_MAXHOST] = "?";
    ::getnameinfo(address.get(), address.length, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
    // At the same place in both.
    return {host, ntohs(reinterpret_cast<const sockaddr_in&>(address.storage).sin_port), {}};
  }
  const auto& place = reinterpret_cast<const sockaddr_un&>(address.storage);
  return {{}, 0, address.family() == AF_UNIX ? place.sun_path : ""};
}

}  // namespace dllm
