#include "place.h"

#include <stdexcept>

namespace dllm::pair {

namespace {

// A port of the loopback too is open to every user of the machine, who could ask for the bytes of
// files that only their owner may read. A Unix socket of ours is not.
void judge(const Endpoint& endpoint, bool has_key) {
  if (!endpoint.path.empty() || has_key) return;
  const std::string cure = has_tls() ? "give both ends the same key (--key-file PATH, --key-stdin)"
                                     : "this dllm-relay was built without TLS: install OpenSSL's "
                                       "headers (Debian: libssl-dev) and build it anew";
  throw std::runtime_error(text(endpoint) + " can be reached by others: " + cure +
                           ", or meet at a Unix socket (unix:PATH)");
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
