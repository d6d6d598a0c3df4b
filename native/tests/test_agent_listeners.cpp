#include "check.h"

#ifdef __linux__

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "agent/listeners_linux.h"
#include "posix.h"

using dllm::UniqueFd;
using dllm::agent::listeners;
using dllm::agent::listeners_by_table;

namespace {

// A socket bound to an address, and its port; none where the machine has no such address.
struct Bound {
  explicit Bound(const char* address) {
    sockaddr_in four{};
    sockaddr_in6 six{};
    const bool is_six = ::inet_pton(AF_INET6, address, &six.sin6_addr) == 1;
    ::inet_pton(AF_INET, address, &four.sin_addr);
    six.sin6_family = AF_INET6;
    four.sin_family = AF_INET;
    auto* name = is_six ? reinterpret_cast<sockaddr*>(&six) : reinterpret_cast<sockaddr*>(&four);
    socklen_t size = is_six ? sizeof six : sizeof four;
    socket.reset(::socket(name->sa_family, SOCK_STREAM, 0));
    if (!socket || ::bind(socket.get(), name, size) != 0) return;
    ::getsockname(socket.get(), name, &size);
    port = ntohs(is_six ? six.sin6_port : four.sin_port);
  }

  UniqueFd socket;
  int port = 0;
};

}  // namespace

TEST(kernel_and_table_tell_the_same) {
  const char* reached[] = {"127.0.0.1", "0.0.0.0", "::", "::ffff:127.0.0.1"};
  const char* not_reached[] = {"127.0.0.2", "::1"};
  const auto tried = [](const char* address, std::size_t expected) {
    const Bound bound(address);
    if (bound.port == 0) return;
    CHECK(listeners(bound.port).empty() && listeners_by_table(bound.port).empty());
    CHECK(::listen(bound.socket.get(), 1) == 0);
    CHECK(listeners(bound.port).size() == expected);
    CHECK(listeners(bound.port) == listeners_by_table(bound.port));
  };
  CHECK(Bound("127.0.0.1").port != 0);
  for (const char* address : reached) tried(address, 1);
  for (const char* address : not_reached) tried(address, 0);
}

#endif

RUN_TESTS()
