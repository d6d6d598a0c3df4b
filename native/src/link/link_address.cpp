#include "link_address.h"

#include <stdexcept>

namespace dllm::link {

namespace {

// A port of the loopback too is open to every user of the machine, who could ask for the bytes of
// files that only their owner may read. A Unix socket of ours is not.
void judge(const Endpoint& endpoint, bool has_key) {
  if (!endpoint.path.empty() || has_key) return;
  const std::string cure = has_tls() ? "give both ends the same key (--key-file PATH)"
                                     : "this dllm-relay was built without TLS: install OpenSSL's "
                                       "headers (Debian: libssl-dev) and build it anew";
  throw std::runtime_error(text(endpoint) + " can be reached by others: " + cure +
                           ", or meet at a Unix socket (unix:PATH)");
}

}  // namespace

void judge(const LinkAddress& place) {
  judge(place.endpoint, place.key.has_value());
  for (const Endpoint& other : place.others) judge(other, place.key.has_value());
  make_security(place);
}

std::unique_ptr<TransportSecurity> make_security(const LinkAddress& place) {
  return place.key ? make_tls_security(*place.key, place.dials) : make_plain_security();
}

}  // namespace dllm::link
