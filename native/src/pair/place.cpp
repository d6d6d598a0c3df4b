#include "place.h"

#include <netinet/in.h>

#include <stdexcept>

namespace dllm::pair {

namespace {

constexpr std::uint32_t kLoopbackNet = 127;
constexpr unsigned kNetShift = 24;

}  // namespace

bool is_local(const Endpoint& endpoint) {
  const SocketAddress address = address_of(endpoint);
  if (address.family() == AF_INET6) {
    const auto& place = reinterpret_cast<const sockaddr_in6&>(address.storage);
    return IN6_IS_ADDR_LOOPBACK(&place.sin6_addr);
  }
  if (address.family() == AF_UNIX) return true;
  const auto& place = reinterpret_cast<const sockaddr_in&>(address.storage);
  return ntohl(place.sin_addr.s_addr) >> kNetShift == kLoopbackNet;
}

namespace {

void judge(const Endpoint& endpoint, bool has_key) {
  const bool local = is_local(endpoint);
  const std::string where = text(endpoint);
  if (!local && !has_tls()) {
    throw std::runtime_error(
        where +
        " can be reached from other machines, and this dllm-relay was built without TLS: "
        "install OpenSSL's headers (Debian: libssl-dev) and build it anew, or use a tunnel");
  }
  if (!local && !has_key) {
    throw std::runtime_error(where +
                             " can be reached from other machines: give both ends the same key "
                             "(--key-file PATH, or --key-stdin)");
  }
}

}  // namespace

void judge(const Place& place) {
  judge(place.endpoint, place.key.has_value());
  for (const Endpoint& other : place.others) judge(other, place.key.has_value());
  make_seal(place);
}

std::unique_ptr<Seal> make_seal(const Place& place) {
  return place.key ? make_tls_seal(*place.key, place.dials) : make_plain_seal();
}

}  // namespace dllm::pair
