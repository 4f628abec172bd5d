#include "tests/tls/test_certs.h"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "src/base/check.h"
#include "src/base/random.h"

namespace baton::tls::test {
namespace {

EVP_PKEY* NewKey() {
  EVP_PKEY* const key = EVP_EC_gen("P-256");
  BATON_CHECK(key != nullptr, "no key");
  return key;
}

void AddExtension(X509* cert, X509* issuer, int nid, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, cert, nullptr, nullptr, 0);
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value);
  BATON_CHECK(extension != nullptr, "extension {}", value);
  X509_add_ext(cert, extension, -1);
  X509_EXTENSION_free(extension);
}

// Unsigned, without extensions; the issuer is the subject until it is set.
X509* NewCert(const std::string& name, EVP_PKEY* key, int64_t begin_s, int64_t end_s) {
  X509* const cert = X509_new();
  X509_set_version(cert, 2);
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(cert), RandomU64() >> 1);
  X509_gmtime_adj(X509_getm_notBefore(cert), begin_s);
  X509_gmtime_adj(X509_getm_notAfter(cert), end_s);
  X509_set_pubkey(cert, key);
  X509_NAME* const subject = X509_get_subject_name(cert);
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_issuer_name(cert, subject);
  return cert;
}

// Returns the text that `write` puts into a memory BIO.
template <typename Write>
std::string PemOf(Write write) {
  BIO* const bio = BIO_new(BIO_s_mem());
  BATON_CHECK(write(bio) == 1, "pem");
  char* text = nullptr;
  const long size = BIO_get_mem_data(bio, &text);
  std::string result(text, static_cast<size_t>(size));
  BIO_free(bio);
  return result;
}

std::string PemOfKey(EVP_PKEY* key, const std::string& passphrase) {
  std::string words = passphrase;
  return PemOf([&](BIO* bio) {
    const EVP_CIPHER* const cipher = words.empty() ? nullptr : EVP_aes_128_cbc();
    return PEM_write_bio_PrivateKey(bio, key, cipher,
                                    reinterpret_cast<unsigned char*>(words.data()),
                                    static_cast<int>(words.size()), nullptr, nullptr);
  });
}

}  // namespace

TempFolder::TempFolder() {
  std::string path = (std::filesystem::temp_directory_path() / "baton_tls_XXXXXX").string();
  BATON_CHECK(mkdtemp(path.data()) != nullptr, "mkdtemp {}", path);
  path_ = path;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void ReplaceText(const std::string& path, const std::string& text) {
  std::ofstream(path + ".new", std::ios::binary) << text;
  std::filesystem::rename(path + ".new", path);
}

std::string TextOf(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

TestAuthority::TestAuthority()
    : key_(NewKey()), cert_(NewCert("test authority", key_, -86'400, 864'000)) {
  AddExtension(cert_, cert_, NID_basic_constraints, "critical,CA:TRUE");
  AddExtension(cert_, cert_, NID_key_usage, "critical,keyCertSign,cRLSign");
  AddExtension(cert_, cert_, NID_subject_key_identifier, "hash");
  BATON_CHECK(X509_sign(cert_, key_, EVP_sha256()) > 0, "sign");
}

TestAuthority::~TestAuthority() {
  X509_free(cert_);
  EVP_PKEY_free(key_);
}

TlsFiles TestAuthority::Issue(const TempFolder& folder, const std::string& name,
                              const CertOptions& options) const {
  EVP_PKEY* const key = NewKey();
  X509* const cert = NewCert(name, key, options.begin_s, options.end_s);
  X509_set_issuer_name(cert, X509_get_subject_name(cert_));
  AddExtension(cert, cert_, NID_basic_constraints, "critical,CA:FALSE");
  AddExtension(cert, cert_, NID_subject_alt_name, options.names.c_str());
  AddExtension(cert, cert_, NID_authority_key_identifier, "keyid");
  if (!options.usage.empty()) AddExtension(cert, cert_, NID_ext_key_usage, options.usage.c_str());
  BATON_CHECK(X509_sign(cert, key_, EVP_sha256()) > 0, "sign");
  const std::string stem = folder.path() + "/" + name;
  const TlsFiles files{stem + ".crt", stem + ".key", stem + ".ca"};
  ReplaceText(files.cert, PemOf([&](BIO* bio) { return PEM_write_bio_X509(bio, cert); }));
  ReplaceText(files.key, PemOfKey(key, options.passphrase));
  ReplaceText(files.ca, PemOf([&](BIO* bio) { return PEM_write_bio_X509(bio, cert_); }));
  X509_free(cert);
  EVP_PKEY_free(key);
  return files;
}

}  // namespace baton::tls::test
