// TCP and Unix sockets: open, send everything, ask the kernel about the link.
#pragma once

#include <poll.h>

#include <cstdint>
#include <span>
#include <string>

#include "endpoint.h"
#include "kernel.h"
#include "posix.h"
#include "protocol/decoder.h"

namespace dllm {

// A worker that is there accepts within a round trip; the system itself would wait two minutes.
inline constexpr Nanos kConnectMax = 8 * kNanosPerSecond;

UniqueFd listen_tcp(const Endpoint& endpoint);
std::uint16_t bound_port(int listener);
// A socket nobody else of this machine's users can connect to. Replaces one that nobody listens at
// any more, and nothing else.
UniqueFd listen_unix(const std::string& path);
// Removes a socket left behind by a listener that is no more.
void remove_dead_socket(const std::string& path);
// Connected within the patience, or throws std::system_error that says where to.
UniqueFd connect_to(const Endpoint& endpoint, Nanos patience = kConnectMax);
// Begins to connect, without waiting for it; throws where it cannot succeed.
UniqueFd begin_connect(const Endpoint& endpoint);
// Of one that `wait_until` found ready to send: 0, or why it failed.
int connect_error(int fd);
// The next client; none when the system refuses.
UniqueFd accept_client(int listener);
// What every relayed connection has: no delay for small messages, and an end when the machine at
// the other end is gone. A Unix socket needs neither.
void tune(int fd);

// False when the peer takes no more.
bool send_all(int fd, View bytes);
// Bytes taken without waiting; 0 when there is no room, -1 on an error.
ssize_t send_some(int fd, View bytes);
// Bytes read; 0 at the end, -1 on an error, a reset for example.
ssize_t receive(int fd, Bytes into);
// Likewise, but looks again and again for a while before it sleeps.
ssize_t receive_awake(int fd, Bytes into, Nanos awake);
// Waits so long at most until there is something to read or accept.
bool wait_readable(int fd, int patience_ms);
// Waits so long at most until there is room to send, or an error to be told.
void wait_writable(int fd, int patience_ms);
// Waits until something happens, so long at most.
void wait_until(std::span<pollfd> waits, Nanos patience);
// `send` and `recv` return at once.
void set_blocking(int fd, bool blocking);
// Whether the peer has closed or broken the connection.
bool is_gone(int fd);
// Lets `close` reset the connection.
void reset_on_close(int fd);
// "127.0.0.1:4711"; "?" when it is gone.
std::string peer_name(int fd);

}  // namespace dllm
