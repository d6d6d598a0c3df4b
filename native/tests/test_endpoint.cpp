#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "clock.h"
#include "link/endpoint.h"
#include "link/sockets.h"

using check::contains;
using check::TempDir;
using check::thrown;
using dllm::connect_to;
using dllm::Endpoint;
using dllm::kNanosPerMilli;
using dllm::kNanosPerSecond;
using dllm::monotonic_now;
using dllm::parse_endpoint;
using dllm::text;
using dllm::UniqueFd;

namespace {

constexpr dllm::Nanos kPatience = 100 * kNanosPerMilli;

// Connects, and says what went wrong.
std::string refusal(const Endpoint& endpoint) {
  return thrown<std::exception>([&] { connect_to(endpoint, kPatience); });
}

bool talk(int client, int server) {
  const std::uint8_t sent = 7;
  std::uint8_t got = 0;
  return dllm::send_all(client, {&sent, 1}) && dllm::receive(server, {&got, 1}) == 1 && got == 7;
}

}  // namespace

TEST(endpoints_are_read_and_written) {
  for (const char* given : {"127.0.0.1:4711", "[::1]:4711", "unix:/run/a b", "unix:x", "h:0"}) {
    const auto found = parse_endpoint(given);
    CHECK(found && text(*found) == given);
  }
  CHECK(parse_endpoint("[fe80::2]:80")->host == "fe80::2");
  CHECK(parse_endpoint("unix:/x:1")->path == "/x:1");
}

TEST(what_is_no_endpoint_is_refused) {
  for (const char* given : {"", ":1", "host", "host:", "host:65536", "host:-1", "host:1x", "::1:80",
                            "unix:"}) {
    CHECK(!parse_endpoint(given));
  }
  CHECK(contains(refusal({"localhost", 1, {}}), "is no IPv4 or IPv6 address"));
  CHECK(contains(refusal({{}, 0, std::string(200, 'x')}), "too long"));
}

TEST(a_unix_socket_is_connected_to) {
  const TempDir directory;
  const std::string path = directory / "worker.sock";
  CHECK(contains(refusal({{}, 0, path}), "cannot reach the worker at unix:" + path));
  const UniqueFd listener = dllm::listen_unix(path);
  struct stat status{};
  CHECK(::stat(path.c_str(), &status) == 0 && (status.st_mode & 0777) == 0600);
  const UniqueFd client = connect_to({{}, 0, path});
  const UniqueFd server = dllm::accept_client(listener.get());
  CHECK(talk(client.get(), server.get()));
  dllm::LinkEstimate estimate{};
  dllm::measure(client.get(), estimate);
  CHECK(estimate.rtt == 0);
}

TEST(only_a_dead_socket_is_replaced) {
  const TempDir directory;
  const std::string path = directory / "x";
  check::spill(path, "mine");
  CHECK(contains(thrown<std::exception>([&] { dllm::listen_unix(path); }), "cannot listen on"));
  dllm::remove_dead_socket(path);
  CHECK(check::slurp(path) == "mine");
  ::unlink(path.c_str());
  UniqueFd listener = dllm::listen_unix(path);
  CHECK(contains(thrown<std::exception>([&] { dllm::listen_unix(path); }), "in use"));
  const UniqueFd client = connect_to({{}, 0, path});
  listener.reset();
  listener = dllm::listen_unix(path);
  const UniqueFd again = connect_to({{}, 0, path});
  CHECK(again.get() >= 0);
}

TEST(a_host_is_named_or_its_interface_is) {
  const Endpoint found = dllm::resolved({"localhost", 7, {}});
  CHECK(dllm::is_local(found) && found.port == 7 && found.host != "localhost");
  CHECK(text(dllm::resolved({{}, 0, "/x"})) == "unix:/x");
  const auto nowhere = [] { dllm::resolved({"no-such-host.invalid", 7, {}}); };
  CHECK(contains(thrown<std::exception>(nowhere), "cannot find the host 'no-such-host.invalid'"));
  const Endpoint scoped{"fe80::1%lo", 7, {}};
  const auto address = dllm::address_of(scoped);
  CHECK(address.family() == AF_INET6 && text(dllm::endpoint_of(address)) == "[fe80::1%lo]:7");
}

TEST(ipv4_and_ipv6_are_connected_to) {
  for (const char* host : {"127.0.0.1", "::1"}) {
    UniqueFd listener;
    try {
      listener = dllm::listen_tcp({host, 0, {}});
    } catch (const std::exception&) {
      CHECK(std::string(host) == "::1");  // A machine may be without IPv6.
      continue;
    }
    const UniqueFd client = connect_to({host, dllm::bound_port(listener.get()), {}});
    const UniqueFd server = dllm::accept_client(listener.get());
    CHECK(talk(client.get(), server.get()));
    CHECK(contains(dllm::peer_name(server.get()), host));
  }
}

// What a machine looks like that is switched off, or a process that is frozen.
TEST(a_silent_listener_holds_nobody_for_long) {
  const TempDir directory;
  const std::string path = directory / "worker.sock";
  const UniqueFd listener = dllm::listen_unix(path);
  CHECK(::listen(listener.get(), 0) == 0);
  std::vector<UniqueFd> waiting;
  const dllm::Nanos before = monotonic_now();
  std::string why;
  for (int tries = 0; why.empty() && tries < 8; ++tries) {
    why = thrown<std::exception>([&] { waiting.push_back(connect_to({{}, 0, path}, kPatience)); });
  }
  CHECK(contains(why, "cannot reach the worker"));
  CHECK(monotonic_now() - before < 5 * kNanosPerSecond);
}

TEST(a_full_tcp_listener_holds_nobody_for_long) {
  const UniqueFd listener = dllm::listen_tcp({"127.0.0.1", 0, {}});
  CHECK(::listen(listener.get(), 0) == 0);
  const Endpoint worker{"127.0.0.1", dllm::bound_port(listener.get()), {}};
  std::vector<UniqueFd> waiting;
  std::string why;
  for (int tries = 0; why.empty() && tries < 8; ++tries) {
    why = thrown<std::exception>([&] { waiting.push_back(connect_to(worker, kPatience)); });
  }
  CHECK(contains(why, "timed out"));
}

RUN_TESTS()
