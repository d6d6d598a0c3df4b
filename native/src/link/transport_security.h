// What lies between the frames of a link and the wire: nothing, or TLS 1.3 with a pre-shared key.
#pragma once

#include <memory>
#include <string>

#include "frames.h"
#include "key.h"

namespace dllm::link {

class TransportSecurity {
 public:
  virtual ~TransportSecurity() = default;
  // Begins; what is to be sent for that is appended.
  virtual void begin(ByteQueue& sealed) = 0;
  // Takes what came from the wire, and appends what was in it, and what is to be sent for it.
  // Throws LinkBroken when the other end is not who it should be, or what came was changed on the
  // way.
  virtual void open(View received, ByteQueue& opened, ByteQueue& sealed) = 0;
  // Takes all of `plain`; only once `is_ready`.
  virtual void close(ByteQueue& plain, ByteQueue& sealed) = 0;
  // Both ends have shown that they have the key.
  [[nodiscard]] virtual bool is_ready() const = 0;
};

std::unique_ptr<TransportSecurity> make_plain_security();
// Which end dials does not matter, but they must not both think so. Throws std::runtime_error in a
// build without OpenSSL.
std::unique_ptr<TransportSecurity> make_tls_security(const Key& key, bool dials);
// Whether this build has TLS.
bool has_tls();

}  // namespace dllm::link
