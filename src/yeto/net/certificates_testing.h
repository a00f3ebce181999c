// SPDX-License-Identifier: Apache-2.0
// Certificates for tests: a CA in memory that signs what a test asks for and writes the PEM files
// into a folder. Keys are EC P-256, made anew each time.
#pragma once

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "yeto/base/files.h"
#include "yeto/base/result.h"
#include "yeto/net/tls.h"

namespace yeto::net {

// Relative to now.
struct TestValidity {
  long from_s = -3600;
  long until_s = 3600;
};

class TestCa {
 public:
  // Files go into `folder`, which must exist.
  explicit TestCa(std::filesystem::path folder, const std::string& name = "ca")
      : folder_(std::move(folder)), name_(name), key_(new_key()) {
    certificate_.reset(X509_new());
    fill(certificate_.get(), key_.get(), name, {});
    add(certificate_.get(), NID_basic_constraints, "critical,CA:TRUE");
    X509_set_issuer_name(certificate_.get(), X509_get_subject_name(certificate_.get()));
    sign(certificate_.get());
    write(ca_file(), pem(certificate_.get()));
  }

  std::filesystem::path ca_file() const { return folder_ / (name_ + ".pem"); }

  // A certificate that names `uris`, its key, and this CA.
  TlsFiles issue(const std::string& name, const std::vector<std::string>& uris,
                 TestValidity validity = {}) const {
    const Key key(new_key());
    const Certificate certificate(X509_new());
    fill(certificate.get(), key.get(), name, validity);
    X509_set_issuer_name(certificate.get(), X509_get_subject_name(certificate_.get()));
    std::string names;
    for (const std::string& uri : uris) {
      names += (names.empty() ? "URI:" : ",URI:") + uri;
    }
    if (!names.empty()) {
      add(certificate.get(), NID_subject_alt_name, names);
    }
    sign(certificate.get());
    const TlsFiles files{folder_ / (name_ + "-" + name + ".pem"),
                         folder_ / (name_ + "-" + name + ".key"), ca_file()};
    write(files.cert, pem(certificate.get()));
    write(files.key, pem(key.get()));
    return files;
  }

 private:
  struct Free {
    void operator()(X509* certificate) const { X509_free(certificate); }
    void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
    void operator()(BIO* bio) const { BIO_free(bio); }
  };
  using Certificate = std::unique_ptr<X509, Free>;
  using Key = std::unique_ptr<EVP_PKEY, Free>;

  static EVP_PKEY* new_key() {
    EVP_PKEY* key = EVP_EC_gen("P-256");
    YETO_CHECK(key != nullptr, "no key");
    return key;
  }
  static void fill(X509* certificate, EVP_PKEY* key, const std::string& name,
                   TestValidity validity) {
    static long serial = 0;
    X509_set_version(certificate, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), ++serial);
    X509_gmtime_adj(X509_getm_notBefore(certificate), validity.from_s);
    X509_gmtime_adj(X509_getm_notAfter(certificate), validity.until_s);
    X509_set_pubkey(certificate, key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_UTF8,
                               reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  }
  static void add(X509* certificate, int what, const std::string& value) {
    X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, what, value.c_str());
    YETO_CHECK(extension != nullptr, "not an extension");
    X509_add_ext(certificate, extension, -1);
    X509_EXTENSION_free(extension);
  }
  void sign(X509* certificate) const {
    YETO_CHECK(X509_sign(certificate, key_.get(), EVP_sha256()) > 0, "not signed");
  }
  static std::string pem(X509* certificate) {
    const std::unique_ptr<BIO, Free> bio(BIO_new(BIO_s_mem()));
    PEM_write_bio_X509(bio.get(), certificate);
    return text(bio.get());
  }
  static std::string pem(EVP_PKEY* key) {
    const std::unique_ptr<BIO, Free> bio(BIO_new(BIO_s_mem()));
    PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr);
    return text(bio.get());
  }
  static std::string text(BIO* bio) {
    char* data = nullptr;
    const long size = BIO_get_mem_data(bio, &data);
    return {data, static_cast<std::size_t>(size)};
  }
  static void write(const std::filesystem::path& path, const std::string& text) {
    const Status written = write_file_atomic(path, text, 0600);
    YETO_CHECK(written.has_value(), "a test's folder cannot be written");
  }

  const std::filesystem::path folder_;
  const std::string name_;
  const Key key_;
  Certificate certificate_;
};

}  // namespace yeto::net
