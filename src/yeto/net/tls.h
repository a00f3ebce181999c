// SPDX-License-Identifier: Apache-2.0
// Tls: who we are and whom we trust, from certificate files. Connections made with it speak TLS 1.3
// and nothing older; both ends show a certificate, and each end accepts only one signed by a
// certificate of its CA file. There are no session tickets and no resumption, so every connection
// proves itself anew. What a peer may do follows from the URIs in its certificate
// (Connection::peer_uris); this room does not read them.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "yeto/base/result.h"

namespace yeto::net {

// PEM files. The certificate file may hold intermediate certificates after the own one.
struct TlsFiles {
  std::filesystem::path cert;
  std::filesystem::path key;  // without a passphrase, readable by its owner only
  std::filesystem::path ca;
  bool any() const { return !cert.empty() || !key.empty() || !ca.empty(); }
  bool all() const { return !cert.empty() && !key.empty() && !ca.empty(); }
};

// Immutable and thread-safe; shared by all connections made with it.
class Tls {
 public:
  struct Impl;
  // kNotFound or kPermission for a file that cannot be read, kPermission for a key that others can
  // read, kConfig for a file that is no certificate or key, a certificate that has expired or is
  // not valid yet, a key of another certificate, and a certificate that the CA file did not sign.
  static Result<std::shared_ptr<const Tls>> load(const TlsFiles& files);
  explicit Tls(std::unique_ptr<Impl> impl);
  ~Tls();
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;

  // The URIs our own certificate names (subjectAltName).
  const std::vector<std::string>& own_uris() const;
  // "Mar  4 10:00:00 2027 GMT": the end of our own certificate.
  const std::string& valid_until() const;
  const Impl& impl() const { return *impl_; }

 private:
  const std::unique_ptr<Impl> impl_;
};

}  // namespace yeto::net
