// SPDX-License-Identifier: Apache-2.0
#include "yeto/net/tls_engine.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <limits>

#include "yeto/base/format.h"

namespace yeto::net {
namespace {

constexpr const char* kNewCertificate = "make a new certificate, or set the clock of that machine";

// What the peer's alert says about us. Empty: not about certificates.
std::string alert_text(int reason) {
  switch (reason) {
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
      return "the peer wants a certificate";
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
      return "the peer does not trust our certificate: another CA signed it";
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
      return "the peer says that our certificate has expired";
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
    case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
    case SSL_R_TLSV1_ALERT_ACCESS_DENIED:
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
      return "the peer does not accept our certificate";
    default:
      return {};
  }
}

Error peer_certificate_error(long verdict) {
  switch (verdict) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return {ErrorCode::kPermission, "the peer's certificate has expired", {}, kNewCertificate};
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return {
          ErrorCode::kPermission, "the peer's certificate is not valid yet", {}, kNewCertificate};
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
      return {ErrorCode::kPermission,
              "the peer's certificate is not signed by our CA",
              {},
              "both ends need certificates of one CA: check --tls-ca"};
    default:
      return {ErrorCode::kPermission,
              strf("the peer's certificate is refused: {}", X509_verify_cert_error_string(verdict)),
              {},
              {}};
  }
}

int clamp_int(std::size_t bytes) {
  return static_cast<int>(
      std::min(bytes, static_cast<std::size_t>(std::numeric_limits<int>::max())));
}

}  // namespace

std::vector<std::string> uris_of(X509* certificate) {
  std::vector<std::string> uris;
  auto* names = static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; i < sk_GENERAL_NAME_num(names); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names, i);
    if (name->type == GEN_URI) {
      const ASN1_IA5STRING* text = name->d.uniformResourceIdentifier;
      uris.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                        static_cast<std::size_t>(ASN1_STRING_length(text)));
    }
  }
  GENERAL_NAMES_free(names);
  return uris;
}

TlsEngine::TlsEngine(std::shared_ptr<const Tls> tls, Side side)
    : tls_(std::move(tls)), ssl_(SSL_new(tls_->impl().context.get())) {
  YETO_CHECK(ssl_ != nullptr, "no memory for a TLS connection");
  in_ = BIO_new(BIO_s_mem());
  out_ = BIO_new(BIO_s_mem());
  YETO_CHECK(in_ != nullptr && out_ != nullptr, "no memory for a TLS connection");
  SSL_set_bio(ssl_.get(), in_, out_);
  if (side == Side::kAccepts) {
    SSL_set_accept_state(ssl_.get());
  } else {
    SSL_set_connect_state(ssl_.get());
  }
}

Status TlsEngine::feed(ByteView from_peer) {
  if (!ready_) {
    handshake_bytes_ += from_peer.size();
    if (handshake_bytes_ > kMaxHandshakeBytes) {
      return fail(ErrorCode::kProtocol,
                  strf("the TLS handshake has more than {} bytes", kMaxHandshakeBytes));
    }
  }
  if (BIO_write(in_, from_peer.data(), clamp_int(from_peer.size())) !=
      clamp_int(from_peer.size())) {
    return fail(ErrorCode::kIo, "no memory for bytes of a TLS connection");
  }
  return Unit{};
}

Result<bool> TlsEngine::handshake() {
  if (ready_) {
    return true;
  }
  ERR_clear_error();
  const int done = SSL_do_handshake(ssl_.get());
  if (done == 1) {
    ready_ = true;
    return true;
  }
  if (SSL_get_error(ssl_.get(), done) == SSL_ERROR_WANT_READ) {
    return false;
  }
  return fail(failure("the TLS handshake failed"));
}

Result<std::size_t> TlsEngine::read(MutableByteView target) {
  ERR_clear_error();
  std::size_t bytes = 0;
  const int done = SSL_read_ex(ssl_.get(), target.data(), target.size(), &bytes);
  if (done == 1) {
    return bytes;
  }
  switch (SSL_get_error(ssl_.get(), done)) {
    case SSL_ERROR_WANT_READ:
      return std::size_t{0};
    case SSL_ERROR_ZERO_RETURN:
      return fail(ErrorCode::kClosed, "the peer closed the connection");
    default:
      return fail(failure("the TLS connection broke"));
  }
}

Status TlsEngine::write(ByteView plain) {
  if (plain.empty()) {
    return Unit{};
  }
  ERR_clear_error();
  std::size_t bytes = 0;
  // Into memory, so it is taken whole or there is no memory left.
  if (SSL_write_ex(ssl_.get(), plain.data(), plain.size(), &bytes) != 1 || bytes != plain.size()) {
    return fail(failure("the TLS connection broke"));
  }
  return Unit{};
}

void TlsEngine::finish() {
  if (ready_) {
    ERR_clear_error();
    SSL_shutdown(ssl_.get());
  }
}

bool TlsEngine::has_output() const { return BIO_ctrl_pending(out_) > 0; }

void TlsEngine::take_output(Bytes& out) {
  const std::size_t before = out.size();
  const std::size_t pending = BIO_ctrl_pending(out_);
  out.resize(before + pending);
  if (pending > 0) {
    const int taken = BIO_read(out_, out.data() + before, clamp_int(pending));
    out.resize(before + static_cast<std::size_t>(std::max(taken, 0)));
  }
}

std::vector<std::string> TlsEngine::peer_uris() const {
  if (!ready_) {
    return {};
  }
  X509* certificate = SSL_get0_peer_certificate(ssl_.get());
  return certificate == nullptr ? std::vector<std::string>{} : uris_of(certificate);
}

Error TlsEngine::failure(const char* doing) const {
  const unsigned long code = ERR_peek_last_error();
  const int reason = ERR_GET_REASON(code);
  const long verdict = SSL_get_verify_result(ssl_.get());
  if (verdict != X509_V_OK) {
    return peer_certificate_error(verdict);
  }
  if (std::string text = alert_text(reason); !text.empty()) {
    return {ErrorCode::kPermission,
            std::move(text),
            {},
            "both ends need valid certificates of one CA: check --tls-cert and --tls-ca"};
  }
  switch (reason) {
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
      return {ErrorCode::kPermission,
              "the peer shows no certificate",
              {},
              "give it --tls-cert, --tls-key and --tls-ca"};
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_HTTP_REQUEST:
      return {ErrorCode::kProtocol,
              "the peer does not speak TLS",
              {},
              "both ends need --tls-cert, --tls-key and --tls-ca, or neither"};
    case SSL_R_UNSUPPORTED_PROTOCOL:
    case SSL_R_TLSV1_ALERT_PROTOCOL_VERSION:
      return {ErrorCode::kProtocol, "the peer does not speak TLS 1.3", {}, {}};
    default:
      break;
  }
  const char* why = ERR_reason_error_string(code);
  return {ErrorCode::kProtocol,
          strf("{}: {}", doing, why == nullptr ? "the peer sent something else" : why),
          {},
          {}};
}

}  // namespace yeto::net
