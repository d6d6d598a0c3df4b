#include "transport_security.h"

namespace dllm::link {

namespace {

class PlainSeal final : public TransportSecurity {
 public:
  void begin(ByteQueue&) override {}
  void open(View received, ByteQueue& opened, ByteQueue&) override { opened.append(received); }
  void close(ByteQueue& plain, ByteQueue& sealed) override {
    if (sealed.empty()) return sealed.swap(plain);
    sealed.append(plain.all());
    plain.clear();
  }
  [[nodiscard]] bool is_ready() const override { return true; }
};

}  // namespace

std::unique_ptr<TransportSecurity> make_plain_security() {
  return std::make_unique<PlainSeal>();
}

#ifndef DLLM_TLS

std::unique_ptr<TransportSecurity> make_tls_security(const Key&, bool) {
  throw std::runtime_error(
      "this dllm-relay was built without TLS: install OpenSSL's headers (Debian: libssl-dev) and "
      "build it anew, or use a tunnel and an address of this machine");
}

bool has_tls() {
  return false;
}

#endif

}  // namespace dllm::link
