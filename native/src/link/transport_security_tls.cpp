#ifdef DLLM_TLS

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <array>

#include "transport_security.h"

namespace dllm::link {

namespace {

// A stretch of plain text is handed to OpenSSL at a time.
constexpr std::size_t kStretchBytes = 16 << 10;
constexpr unsigned char kIdentity[] = "dllm-tui";
constexpr std::size_t kIdentityBytes = sizeof kIdentity - 1;
// TLS_AES_128_GCM_SHA256, which every processor of these days computes by itself.
constexpr unsigned char kCipher[] = {0x13, 0x01};

template <auto Free>
struct Freed {
  template <typename Object>
  void operator()(Object* object) const {
    Free(object);
  }
};
using Context = std::unique_ptr<SSL_CTX, Freed<SSL_CTX_free>>;
using Connection = std::unique_ptr<SSL, Freed<SSL_free>>;

template <typename Object>
Object* made(Object* object) {
  if (object == nullptr) throw std::runtime_error("OpenSSL cannot be set up");
  return object;
}

void expect(int succeeded) {
  if (succeeded != 1) throw std::runtime_error("OpenSSL cannot be set up");
}

// A session as if of an earlier connection, made of the key.
SSL_SESSION* make_session(SSL* ssl, const Key& key) {
  SSL_SESSION* session = SSL_SESSION_new();
  const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, kCipher);
  const bool complete = session && cipher && SSL_SESSION_set_cipher(session, cipher) == 1 &&
                        SSL_SESSION_set1_master_key(session, key.data(), key.size()) == 1 &&
                        SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1;
  if (complete) return session;
  SSL_SESSION_free(session);
  return nullptr;
}

const Key& key_of(SSL* ssl) {
  return *static_cast<const Key*>(SSL_get_app_data(ssl));
}

int use_key(SSL* ssl, const EVP_MD*, const unsigned char** identity, std::size_t* identity_bytes,
            SSL_SESSION** session) {
  *identity = kIdentity;
  *identity_bytes = kIdentityBytes;
  *session = make_session(ssl, key_of(ssl));
  return *session != nullptr;
}

int find_key(SSL* ssl, const unsigned char* identity, std::size_t identity_bytes,
             SSL_SESSION** session) {
  const bool known =
      std::equal(identity, identity + identity_bytes, kIdentity, kIdentity + kIdentityBytes);
  *session = known ? make_session(ssl, key_of(ssl)) : nullptr;
  return 1;
}

Context make_context() {
  Context context(made(SSL_CTX_new(TLS_method())));
  expect(SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION));
  expect(SSL_CTX_set_ciphersuites(context.get(), "TLS_AES_128_GCM_SHA256"));
  // Nobody is let in by a certificate: there is no authority that could have signed one. Without
  // SSL_OP_ALLOW_NO_DHE_KEX the key alone, leaked later, opens no connection of today.
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  expect(SSL_CTX_set_num_tickets(context.get(), 0));
  SSL_CTX_set_psk_use_session_callback(context.get(), use_key);
  SSL_CTX_set_psk_find_session_callback(context.get(), find_key);
  return context;
}

class TlsSeal final : public TransportSecurity {
 public:
  TlsSeal(const Key& key, bool dials)
      : key_(key), context_(make_context()), ssl_(made(SSL_new(context_.get()))) {
    SSL_set_app_data(ssl_.get(), &key_);
    received_ = made(BIO_new(BIO_s_mem()));
    to_send_ = made(BIO_new(BIO_s_mem()));
    SSL_set_bio(ssl_.get(), received_, to_send_);
    // A server that would ask for certificates takes sessions of a named context only.
    if (!dials) expect(SSL_set_session_id_context(ssl_.get(), kIdentity, kIdentityBytes));
    dials ? SSL_set_connect_state(ssl_.get()) : SSL_set_accept_state(ssl_.get());
  }

  void begin(ByteQueue& sealed) override {
    greet();
    take(sealed);
  }

  void open(View received, ByteQueue& opened, ByteQueue& sealed) override {
    try {
      while (!received.empty()) {
        const std::size_t count = std::min(received.size(), kStretchBytes);
        BIO_write(received_, received.data(), static_cast<int>(count));
        received = received.subspan(count);
        if (!ready_) greet();
        if (ready_) read(opened);
      }
    } catch (const LinkBroken&) {
      // The other end is told by an alert.
      take(sealed);
      throw;
    }
    take(sealed);
  }

  void close(ByteQueue& plain, ByteQueue& sealed) override {
    while (!plain.empty()) {
      const Bytes all = plain.all();
      const int count = static_cast<int>(std::min(all.size(), kStretchBytes));
      if (SSL_write(ssl_.get(), all.data(), count) != count) throw LinkBroken("TLS cannot send");
      plain.drop(static_cast<std::size_t>(count));
      take(sealed);
    }
  }

  [[nodiscard]] bool is_ready() const override { return ready_; }

 private:
  void greet() {
    ERR_clear_error();
    const int result = SSL_do_handshake(ssl_.get());
    if (result == 1) {
      if (SSL_session_reused(ssl_.get()) != 1) throw LinkBroken("the other end has not the key");
      ready_ = true;
    } else {
      judge(result);
    }
  }

  void read(ByteQueue& opened) {
    for (;;) {
      ERR_clear_error();
      const int count = SSL_read(ssl_.get(), block_.data(), static_cast<int>(block_.size()));
      if (count <= 0) return judge(count);
      opened.append(View(block_).first(static_cast<std::size_t>(count)));
    }
  }

  // Anything but that more is needed ends the link.
  void judge(int result) {
    const int error = SSL_get_error(ssl_.get(), result);
    if (error == SSL_ERROR_WANT_READ) return;
    if (ready_) throw LinkBroken("what came over the link was changed on the way");
    throw LinkBroken(
        "the other end has another key, or speaks no TLS: give both ends the same key");
  }

  void take(ByteQueue& sealed) {
    char* data = nullptr;
    const long count = BIO_get_mem_data(to_send_, &data);
    if (count <= 0) return;
    sealed.append({reinterpret_cast<const std::uint8_t*>(data), static_cast<std::size_t>(count)});
    BIO_reset(to_send_);
  }

  const Key key_;
  const Context context_;
  const Connection ssl_;
  BIO* received_ = nullptr;  // of ssl_
  BIO* to_send_ = nullptr;   // likewise
  bool ready_ = false;
  std::array<std::uint8_t, kStretchBytes> block_;
};

}  // namespace

std::unique_ptr<TransportSecurity> make_tls_security(const Key& key, bool dials) {
  return std::make_unique<TlsSeal>(key, dials);
}

bool has_tls() {
  return true;
}

}  // namespace dllm::link

#endif
