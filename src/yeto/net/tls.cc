// SPDX-License-Identifier: Apache-2.0
// Loads certificate files and says what is wrong with them before any peer has to.
#include "yeto/net/tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "yeto/base/files.h"
#include "yeto/base/format.h"
#include "yeto/net/tls_engine.h"

namespace yeto::net {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 20;
// AES-128 first: it is the fastest where the processor has AES, and no weaker in practice.
constexpr const char* kSuites =
    "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";

struct Free {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(X509_STORE_CTX* check) const { X509_STORE_CTX_free(check); }
};
using Certificate = std::unique_ptr<X509, Free>;
using Key = std::unique_ptr<EVP_PKEY, Free>;

tl::unexpected<Error> wrong(const fs::path& path, std::string what, std::string hint) {
  return fail(ErrorCode::kConfig, std::move(what), path.string(), std::move(hint));
}

Result<std::string> read_pem(const fs::path& path, const char* flag) {
  Result<std::string> text = read_text_file(path, kMaxFileBytes);
  if (!text) {
    Error error = text.error();
    if (error.code == ErrorCode::kIo && ::access(path.c_str(), R_OK) != 0) {
      error.code = ErrorCode::kPermission;
      error.hint = "let the user of this process read it";
    }
    if (error.code == ErrorCode::kData) {
      error.code = ErrorCode::kConfig;
    }
    error.what = strf("{}: {}", flag, error.what);
    return fail(std::move(error));
  }
  return text;
}

// A passphrase would have to be typed at every start; without this OpenSSL asks the terminal.
int no_passphrase(char*, int, int, void* asked) {
  *static_cast<bool*>(asked) = true;
  return -1;
}

std::unique_ptr<BIO, Free> memory(const std::string& text) {
  return std::unique_ptr<BIO, Free>(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

Result<std::vector<Certificate>> certificates_of(const fs::path& path, const char* flag) {
  YETO_ASSIGN(const std::string text, read_pem(path, flag));
  const auto bio = memory(text);
  std::vector<Certificate> found;
  while (X509* one = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    found.emplace_back(one);
  }
  ERR_clear_error();
  if (found.empty()) {
    return wrong(path, strf("{}: there is no certificate in the file", flag),
                 "a PEM file with BEGIN CERTIFICATE is expected");
  }
  return found;
}

Status check_mode(const fs::path& path) {
  struct stat info{};
  if (::stat(path.c_str(), &info) == 0 && (info.st_mode & 077) != 0) {
    return fail(ErrorCode::kPermission, "--tls-key: the key can be read by others", path.string(),
                strf("chmod 600 {}, and make a new key if others may have read it", path.string()));
  }
  return Unit{};
}

Result<Key> key_of(const fs::path& path) {
  YETO_ASSIGN(const std::string text, read_pem(path, "--tls-key"));
  YETO_TRY(check_mode(path));
  const auto bio = memory(text);
  bool asked = false;
  Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, no_passphrase, &asked));
  ERR_clear_error();
  if (key == nullptr) {
    return asked ? wrong(path, "--tls-key: the key has a passphrase",
                         "store it without one, in a file of mode 0600")
                 : wrong(path, "--tls-key: there is no private key in the file",
                         "a PEM file with BEGIN PRIVATE KEY is expected");
  }
  return key;
}

std::string time_text(const ASN1_TIME* time) {
  const std::unique_ptr<BIO, Free> bio(BIO_new(BIO_s_mem()));
  ASN1_TIME_print(bio.get(), time);
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return {data, static_cast<std::size_t>(size)};
}

Status check_dates(X509* certificate, const fs::path& path, const char* flag) {
  if (X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0) {
    return wrong(
        path,
        strf("{}: the certificate expired on {}", flag, time_text(X509_get0_notAfter(certificate))),
        "make a new one");
  }
  if (X509_cmp_current_time(X509_get0_notBefore(certificate)) > 0) {
    return wrong(path,
                 strf("{}: the certificate is not valid before {}", flag,
                      time_text(X509_get0_notBefore(certificate))),
                 "check the clock of this machine");
  }
  return Unit{};
}

// Our own certificate under our own CA, as a peer with the same CA will see it.
Status check_chain(SSL_CTX* context, const std::vector<Certificate>& own, const TlsFiles& files) {
  STACK_OF(X509)* more = sk_X509_new_null();
  for (std::size_t i = 1; i < own.size(); ++i) {
    sk_X509_push(more, own[i].get());
  }
  const std::unique_ptr<X509_STORE_CTX, Free> check(X509_STORE_CTX_new());
  X509_STORE_CTX_init(check.get(), SSL_CTX_get_cert_store(context), own.front().get(), more);
  const bool good = X509_verify_cert(check.get()) == 1;
  const int verdict = X509_STORE_CTX_get_error(check.get());
  sk_X509_free(more);
  if (!good) {
    return wrong(files.cert,
                 strf("--tls-cert: the certificate does not follow from {}: {}", files.ca.string(),
                      X509_verify_cert_error_string(verdict)),
                 "give the CA file the certificate was made with");
  }
  return Unit{};
}

Status use(SSL_CTX* context, const std::vector<Certificate>& own, EVP_PKEY* key,
           const TlsFiles& files) {
  if (X509_check_private_key(own.front().get(), key) != 1) {
    ERR_clear_error();
    return wrong(files.key, strf("--tls-key: the key does not belong to {}", files.cert.string()),
                 "give the key that the certificate was made for");
  }
  bool taken = SSL_CTX_use_certificate(context, own.front().get()) == 1 &&
               SSL_CTX_use_PrivateKey(context, key) == 1;
  for (std::size_t i = 1; taken && i < own.size(); ++i) {
    taken = SSL_CTX_add1_chain_cert(context, own[i].get()) == 1;
  }
  if (!taken) {
    const char* why = ERR_reason_error_string(ERR_get_error());
    return wrong(files.cert,
                 strf("--tls-cert: cannot be used: {}", why == nullptr ? "no reason given" : why),
                 "keys of at least 256 bits (EC) or 2048 bits (RSA) are expected");
  }
  return Unit{};
}

void harden(SSL_CTX* context) {
  SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
  SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION);
  SSL_CTX_set_ciphersuites(context, kSuites);
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_verify_depth(context, 4);
  SSL_CTX_set_max_cert_list(context, static_cast<long>(TlsEngine::kMaxHandshakeBytes));
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
}

}  // namespace

Tls::Tls(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tls::~Tls() = default;
const std::vector<std::string>& Tls::own_uris() const { return impl_->own_uris; }
const std::string& Tls::valid_until() const { return impl_->valid_until; }

Result<std::shared_ptr<const Tls>> Tls::load(const TlsFiles& files) {
  YETO_ASSIGN(const std::vector<Certificate> own, certificates_of(files.cert, "--tls-cert"));
  YETO_ASSIGN(const Key key, key_of(files.key));
  YETO_ASSIGN(const std::vector<Certificate> trusted, certificates_of(files.ca, "--tls-ca"));
  YETO_TRY(check_dates(own.front().get(), files.cert, "--tls-cert"));
  auto impl = std::make_unique<Impl>();
  impl->context.reset(SSL_CTX_new(TLS_method()));
  if (impl->context == nullptr) {
    return fail(ErrorCode::kInternal, "OpenSSL gives no TLS context");
  }
  SSL_CTX* context = impl->context.get();
  harden(context);
  for (const Certificate& one : trusted) {
    YETO_TRY(check_dates(one.get(), files.ca, "--tls-ca"));
    X509_STORE_add_cert(SSL_CTX_get_cert_store(context), one.get());
  }
  YETO_TRY(use(context, own, key.get(), files));
  YETO_TRY(check_chain(context, own, files));
  impl->own_uris = uris_of(own.front().get());
  impl->valid_until = time_text(X509_get0_notAfter(own.front().get()));
  return std::make_shared<const Tls>(std::move(impl));
}

}  // namespace yeto::net
