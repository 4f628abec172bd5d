// Certificates made while a test runs: an authority, and what it signs, as files in a folder that
// goes with the test.
#ifndef BATON_TESTS_TLS_TEST_CERTS_H_
#define BATON_TESTS_TLS_TEST_CERTS_H_

#include <openssl/types.h>

#include <cstdint>
#include <string>

#include "src/tls/tls_files.h"

namespace baton::tls::test {

// A new folder, removed with everything in it.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Replaces a file in one step, as an operator should.
void ReplaceText(const std::string& path, const std::string& text);
std::string TextOf(const std::string& path);

// How a certificate differs from a good one. Times are seconds from now.
struct CertOptions {
  int64_t begin_s = -3600;
  int64_t end_s = 86'400;
  std::string usage = "serverAuth,clientAuth";
  std::string names = "DNS:localhost,IP:127.0.0.1";
  std::string passphrase;  // of the key; "" = none
};

// An authority with a key of its own.
class TestAuthority {
 public:
  TestAuthority();
  ~TestAuthority();
  TestAuthority(const TestAuthority&) = delete;
  TestAuthority& operator=(const TestAuthority&) = delete;

  // Writes FOLDER/NAME.crt, .key and .ca.
  TlsFiles Issue(const TempFolder& folder, const std::string& name,
                 const CertOptions& options = {}) const;

 private:
  EVP_PKEY* key_;
  X509* cert_;
};

}  // namespace baton::tls::test

#endif  // BATON_TESTS_TLS_TEST_CERTS_H_
