// TCP and Unix sockets: open, send everything, ask the kernel about the link.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "decoder.h"
#include "passes.h"
#include "posix.h"

namespace dllm {

#ifdef MSG_NOSIGNAL
inline constexpr int kNoSignal = MSG_NOSIGNAL;
#else
inline constexpr int kNoSignal = 0;  // macOS: the program ignores SIGPIPE
#endif

struct Endpoint {
  std::string host;  // dotted IPv4
  std::uint16_t port = 0;
};

UniqueFd listen_tcp(const Endpoint& endpoint);
std::uint16_t bound_port(int listener);
// A socket nobody else of this machine's users can connect to. Replaces a file left behind.
UniqueFd listen_unix(const std::string& path);
UniqueFd connect_tcp(const Endpoint& endpoint);
// The next client; none when the system refuses.
UniqueFd accept_client(int listener);
// What every relayed connection has: no delay for small messages.
void set_nodelay(int fd);

// False when the peer takes no more.
bool send_all(int fd, View bytes);
// Bytes read; 0 at the end, -1 on an error, a reset for example.
ssize_t receive(int fd, Bytes into);
// Likewise, but looks again and again for a while before it sleeps.
ssize_t receive_awake(int fd, Bytes into, Nanos awake);
// Waits so long at most until there is something to read or accept.
bool wait_readable(int fd, int patience_ms);
// Whether the peer has closed or broken the connection.
bool is_gone(int fd);
// Lets `close` reset the connection.
void reset_on_close(int fd);
// "127.0.0.1:4711"
std::string peer_name(int fd);

// What the kernel measured on a TCP connection. Keeps what it cannot tell.
void measure(int fd, LinkEstimate& estimate);

}  // namespace dllm
