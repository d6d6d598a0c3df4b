// Where a socket is: an address and port, or a path. "127.0.0.1:4711", "[::1]:4711", "unix:/path".
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>

namespace dllm {

struct Endpoint {
  std::string host;  // an address (IPv6 without brackets) or a name; empty with a path
  std::uint16_t port = 0;
  std::string path{};  // of a Unix socket; the braces let others leave it out
};

// None when the text is no endpoint. Whether the host is an address shows when it is used.
std::optional<Endpoint> parse_endpoint(const std::string& text);
// As one would give it.
std::string text(const Endpoint& endpoint);

// What the system's calls take.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  [[nodiscard]] int family() const { return storage.ss_family; }
};

// Throws std::runtime_error when the host is no address, or the path longer than the system allows.
SocketAddress address_of(const Endpoint& endpoint);
// With the address of a host that is named; a name is looked up only here, which may take a while.
// Throws std::runtime_error where there is none.
Endpoint resolved(const Endpoint& endpoint);
// Whether only this machine's users can reach it.
bool is_local(const Endpoint& endpoint);
// The reverse; an endpoint of an unnamed Unix socket has an empty path.
Endpoint endpoint_of(const SocketAddress& address);

}  // namespace dllm
