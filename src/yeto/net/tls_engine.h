// SPDX-License-Identifier: Apache-2.0
// TlsEngine: one end of a TLS connection without its socket. Bytes of the peer go in by feed(),
// bytes for the peer come out by take_output(); the connection moves them. For the .cc files of
// this room only. Not thread-safe.
#pragma once

#include <openssl/ssl.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "yeto/base/bytes.h"
#include "yeto/base/result.h"
#include "yeto/net/tls.h"

namespace yeto::net {

struct SslFree {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};

struct Tls::Impl {
  std::unique_ptr<SSL_CTX, SslFree> context;
  std::vector<std::string> own_uris;
  std::string valid_until;
};

// The URIs of a certificate's subjectAltName.
std::vector<std::string> uris_of(X509* certificate);

class TlsEngine {
 public:
  enum class Side : std::uint8_t { kAccepts, kConnects };
  // What a peer may send before it has proven who it is.
  static constexpr std::size_t kMaxHandshakeBytes = std::size_t{16} << 10;

  TlsEngine(std::shared_ptr<const Tls> tls, Side side);

  // kProtocol once the peer has sent more than kMaxHandshakeBytes without finishing the handshake.
  Status feed(ByteView from_peer);
  // Goes on with the handshake; true once it is complete and the peer's certificate accepted.
  // kPermission for certificates (ours or the peer's), kProtocol for a peer that speaks something
  // else.
  Result<bool> handshake();
  bool ready() const { return ready_; }
  // Plain bytes; 0 while there are none. kClosed after the peer's close notice, kProtocol.
  Result<std::size_t> read(MutableByteView target);
  // Encrypts all of it. Only when ready.
  Status write(ByteView plain);
  // Our close notice.
  void finish();
  // Appends what is to be sent to `out`.
  void take_output(Bytes& out);
  bool has_output() const;
  // The peer's bytes that are here but not read yet may hold plain ones.
  bool has_input() const { return SSL_has_pending(ssl_.get()) == 1 || BIO_ctrl_pending(in_) > 0; }
  std::vector<std::string> peer_uris() const;

 private:
  Error failure(const char* doing) const;

  const std::shared_ptr<const Tls> tls_;
  const std::unique_ptr<SSL, SslFree> ssl_;
  BIO* in_ = nullptr;  // both owned by ssl_
  BIO* out_ = nullptr;
  bool ready_ = false;
  std::size_t handshake_bytes_ = 0;
};

}  // namespace yeto::net
