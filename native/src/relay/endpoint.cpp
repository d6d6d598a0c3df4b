#include "endpoint.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <charconv>
#include <cstddef>
#include <cstring>
#include <limits>
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

bool fill_ipv4(const Endpoint& endpoint, SocketAddress& address) {
  auto& place = reinterpret_cast<sockaddr_in&>(address.storage);
  if (::inet_pton(AF_INET, endpoint.host.c_str(), &place.sin_addr) != 1) return false;
  place.sin_family = AF_INET;
  place.sin_port = htons(endpoint.port);
  address.length = sizeof place;
  return true;
}

bool fill_ipv6(const Endpoint& endpoint, SocketAddress& address) {
  auto& place = reinterpret_cast<sockaddr_in6&>(address.storage);
  if (::inet_pton(AF_INET6, endpoint.host.c_str(), &place.sin6_addr) != 1) return false;
  place.sin6_family = AF_INET6;
  place.sin6_port = htons(endpoint.port);
  address.length = sizeof place;
  return true;
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
  SocketAddress address;
  if (!fill_ipv4(endpoint, address) && !fill_ipv6(endpoint, address)) {
    throw std::runtime_error("'" + endpoint.host + "' is no IPv4 or IPv6 address");
  }
  return address;
}

Endpoint endpoint_of(const SocketAddress& address) {
  char host[INET6_ADDRSTRLEN] = "?";
  if (address.family() == AF_INET) {
    const auto& place = reinterpret_cast<const sockaddr_in&>(address.storage);
    ::inet_ntop(AF_INET, &place.sin_addr, host, sizeof host);
    return {host, ntohs(place.sin_port), {}};
  }
  if (address.family() == AF_INET6) {
    const auto& place = reinterpret_cast<const sockaddr_in6&>(address.storage);
    ::inet_ntop(AF_INET6, &place.sin6_addr, host, sizeof host);
    return {host, ntohs(place.sin6_port), {}};
  }
  const auto& place = reinterpret_cast<const sockaddr_un&>(address.storage);
  return {{}, 0, address.family() == AF_UNIX ? place.sun_path : ""};
}

}  // namespace dllm
