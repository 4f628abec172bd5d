#include "src/tls/tls_identity.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <string>
#include <utility>
#include <vector>

#include "src/base/regular_file.h"

namespace baton::tls {
namespace {

// A chain of ten certificates is 20 KiB; a bundle of all public authorities 250 KiB.
constexpr size_t kMaxFileBytes = size_t{1} << 20;
// The most bytes that a peer may send as its chain.
constexpr long kMaxPeerChainBytes = 64 << 10;
// The 128-bit suite first: its key is long enough, and it encrypts a third faster.
constexpr const char* kSuites =
    "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";

// Old HTTP clients speak TLS 1.2: the suites have forward secrecy and authenticated ciphers.
constexpr const char* kTls12Suites = "ECDHE+AESGCM:ECDHE+CHACHA20";
// The protocols that the HTTP port speaks, as ALPN writes lists of them.
constexpr unsigned char kHttpProtocols[] = "\x08http/1.1";

// Deleter of OpenSSL's objects.
template <auto Free>
struct OpensslFree {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
using BioPtr = std::unique_ptr<BIO, OpensslFree<BIO_free>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, OpensslFree<EVP_PKEY_free>>;
using CertPtr = std::unique_ptr<X509, OpensslFree<X509_free>>;
using StorePtr = std::unique_ptr<X509_STORE, OpensslFree<X509_STORE_free>>;
using VerifyPtr = std::unique_ptr<X509_STORE_CTX, OpensslFree<X509_STORE_CTX_free>>;
using ContextPtr = std::unique_ptr<SSL_CTX, OpensslFree<SSL_CTX_free>>;

// "--tls-cert FILE", for messages.
std::string Named(const char* flag, const std::string& path) {
  return fmt::format("{} {}", flag, path);
}

// A server has nobody to ask.
int RefusePassphrase(char* /*buffer*/, int /*size*/, int /*writing*/, void* asked) {
  *static_cast<bool*>(asked) = true;
  return -1;
}

StatusOr<std::string> ReadText(const std::string& name, const std::string& path) {
  StatusOr<std::string> text = ReadRegularFile(path, kMaxFileBytes);
  if (text.ok()) return text;
  return InvalidArgument("{}: {}", name, std::string(text.status().message()));
}

StatusOr<BioPtr> PemOf(const std::string& name, const std::string& text) {
  BioPtr bio(BIO_new(BIO_s_mem()));
  const auto size = static_cast<int>(text.size());
  if (bio == nullptr || (size > 0 && BIO_write(bio.get(), text.data(), size) != size)) {
    return InvalidArgument("{}: {}", name, TakeOpensslError());
  }
  return bio;
}

// Every certificate of the text, at least one.
StatusOr<std::vector<CertPtr>> ReadCertificates(const std::string& name, const std::string& text) {
  BATON_ASSIGN_OR_RETURN(const BioPtr bio, PemOf(name, text));
  std::vector<CertPtr> certs;
  ERR_clear_error();
  while (X509* const cert = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    certs.emplace_back(cert);
  }
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  const std::string error = TakeOpensslError();
  if (certs.empty()) return InvalidArgument("{} holds no PEM certificate ({})", name, error);
  if (!at_end) {
    return InvalidArgument("{}: certificate {} is damaged ({})", name, certs.size() + 1, error);
  }
  return certs;
}

StatusOr<KeyPtr> ReadKey(const std::string& name, const std::string& text) {
  BATON_ASSIGN_OR_RETURN(const BioPtr bio, PemOf(name, text));
  ERR_clear_error();
  bool wants_passphrase = false;
  KeyPtr key(PEM_read_bio_PrivateKey(bio.get(), nullptr, &RefusePassphrase, &wants_passphrase));
  if (key != nullptr) return key;
  const std::string error = TakeOpensslError();
  if (wants_passphrase) {
    return InvalidArgument("{} wants a passphrase; give a key without one", name);
  }
  return InvalidArgument("{} holds no PEM private key ({})", name, error);
}

std::string TimeText(const ASN1_TIME* time) {
  const BioPtr bio(BIO_new(BIO_s_mem()));
  if (bio == nullptr || ASN1_TIME_print(bio.get(), time) != 1) return "?";
  char* text = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &text);
  return std::string(text, static_cast<size_t>(size));
}

Status CheckDates(const std::string& name, const X509* cert) {
  const ASN1_TIME* const end = X509_get0_notAfter(cert);
  const ASN1_TIME* const begin = X509_get0_notBefore(cert);
  if (X509_cmp_current_time(end) < 0) {
    return InvalidArgument("{} expired on {}", name, TimeText(end));
  }
  if (X509_cmp_current_time(begin) > 0) {
    return InvalidArgument("{} is not valid before {}", name, TimeText(begin));
  }
  return OkStatus();
}

// Verifies the own chain as a peer will, so that a certificate which everyone would refuse stops
// the start instead.
Status CheckChain(const TlsFiles& files, const std::vector<CertPtr>& chain, X509_STORE* store) {
  STACK_OF(X509)* const others = sk_X509_new_null();
  for (size_t i = 1; i < chain.size(); ++i) sk_X509_push(others, chain[i].get());
  Status status;
  for (const bool as_server : {true, false}) {
    const VerifyPtr verify(X509_STORE_CTX_new());
    if (verify == nullptr ||
        X509_STORE_CTX_init(verify.get(), store, chain[0].get(), others) != 1) {
      status = InvalidArgument("--tls-cert {}: {}", files.cert, TakeOpensslError());
      break;
    }
    X509_STORE_CTX_set_purpose(verify.get(),
                               as_server ? X509_PURPOSE_SSL_SERVER : X509_PURPOSE_SSL_CLIENT);
    if (X509_verify_cert(verify.get()) == 1) continue;
    const int error = X509_STORE_CTX_get_error(verify.get());
    status = InvalidArgument(
        "--tls-cert {} does not verify against --tls-ca {} as a {}: {}{}", files.cert, files.ca,
        as_server ? "server" : "client", X509_verify_cert_error_string(error),
        error == X509_V_ERR_INVALID_PURPOSE ? " (it needs serverAuth and clientAuth)" : "");
    break;
  }
  sk_X509_free(others);
  ERR_clear_error();
  return status;
}

StatusOr<StorePtr> MakeStore(const std::string& name, const std::string& text) {
  BATON_ASSIGN_OR_RETURN(const std::vector<CertPtr> authorities, ReadCertificates(name, text));
  StorePtr store(X509_STORE_new());
  for (const CertPtr& authority : authorities) {
    if (store == nullptr || X509_STORE_add_cert(store.get(), authority.get()) != 1) {
      return InvalidArgument("{}: {}", name, TakeOpensslError());
    }
  }
  return store;
}

// A client that offers HTTP/2 only is told so, instead of being answered in what it does not speak.
int ChooseHttpProtocol(SSL* /*ssl*/, const unsigned char** chosen, unsigned char* size,
                       const unsigned char* offered, unsigned int num_offered, void* /*unused*/) {
  unsigned char* found = nullptr;
  const int result = SSL_select_next_proto(&found, size, kHttpProtocols, sizeof(kHttpProtocols) - 1,
                                           offered, num_offered);
  if (result != OPENSSL_NPN_NEGOTIATED) return SSL_TLSEXT_ERR_ALERT_FATAL;
  *chosen = found;
  return SSL_TLSEXT_ERR_OK;
}

// Lets clients of the HTTP port do more than the processes of the cluster.
bool AdmitHttpClients(SSL_CTX* context, X509_STORE* store) {
  const bool good = SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) == 1 &&
                    SSL_CTX_set_cipher_list(context, kTls12Suites) == 1;
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  // Browsers then offer certificates of this authority alone, and ask nobody where they have none.
  STACK_OF(X509)* const authorities = X509_STORE_get1_all_certs(store);
  for (int i = 0; i < sk_X509_num(authorities); ++i) {
    SSL_CTX_add_client_CA(context, sk_X509_value(authorities, i));
  }
  sk_X509_pop_free(authorities, X509_free);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET |
                                   SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_IGNORE_UNEXPECTED_EOF);
  // One call reads one record: a client that sends others than data has no event loop for itself.
  SSL_CTX_clear_mode(context, SSL_MODE_AUTO_RETRY);
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_alpn_select_cb(context, &ChooseHttpProtocol, nullptr);
  return good;
}

bool SetUp(SSL_CTX* context, const std::vector<CertPtr>& chain, EVP_PKEY* key, X509_STORE* store) {
  bool good = SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
              SSL_CTX_set_ciphersuites(context, kSuites) == 1 &&
              SSL_CTX_use_certificate(context, chain[0].get()) == 1 &&
              SSL_CTX_use_PrivateKey(context, key) == 1;
  SSL_CTX_set1_cert_store(context, store);
  for (size_t i = 1; i < chain.size(); ++i) {
    good = good && SSL_CTX_add1_chain_cert(context, chain[i].get()) == 1;
  }
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_max_cert_list(context, kMaxPeerChainBytes);
  // Connections live as long as their workers: nothing is resumed, so no tickets cross.
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  good = good && SSL_CTX_set_num_tickets(context, 0) == 1;
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  return good;
}

}  // namespace

std::string TakeOpensslError() {
  const unsigned long error = ERR_get_error();
  ERR_clear_error();
  const char* const reason = ERR_reason_error_string(error);
  return reason != nullptr ? reason : fmt::format("OpenSSL error {}", error);
}

TlsIdentity::~TlsIdentity() { SSL_CTX_free(context_); }

StatusOr<std::shared_ptr<const TlsIdentity>> TlsIdentity::Load(const TlsFiles& files,
                                                               TlsPeers peers) {
  BATON_RETURN_IF_ERROR(CheckTlsFlags(files));
  if (files.empty()) return InvalidArgument("no TLS files are named");
  const std::string name = Named("--tls-cert", files.cert);
  const std::string key_name = Named("--tls-key", files.key);
  const std::string ca_name = Named("--tls-ca", files.ca);
  TlsTexts texts;
  BATON_ASSIGN_OR_RETURN(texts.cert, ReadText(name, files.cert));
  BATON_ASSIGN_OR_RETURN(const std::vector<CertPtr> chain, ReadCertificates(name, texts.cert));
  BATON_ASSIGN_OR_RETURN(texts.key, ReadText(key_name, files.key));
  BATON_ASSIGN_OR_RETURN(const KeyPtr key, ReadKey(key_name, texts.key));
  if (X509_check_private_key(chain[0].get(), key.get()) != 1) {
    ERR_clear_error();
    return InvalidArgument("--tls-key {} is not the key of --tls-cert {}", files.key, files.cert);
  }
  BATON_RETURN_IF_ERROR(CheckDates(name, chain[0].get()));
  BATON_ASSIGN_OR_RETURN(texts.ca, ReadText(ca_name, files.ca));
  BATON_ASSIGN_OR_RETURN(const StorePtr store, MakeStore(ca_name, texts.ca));
  BATON_RETURN_IF_ERROR(CheckChain(files, chain, store.get()));
  ContextPtr context(SSL_CTX_new(TLS_method()));
  if (context == nullptr || !SetUp(context.get(), chain, key.get(), store.get())) {
    return InvalidArgument("{} cannot be used: {}", name, TakeOpensslError());
  }
  if (peers == TlsPeers::kHttpClients && !AdmitHttpClients(context.get(), store.get())) {
    return InvalidArgument("{} cannot be used for HTTP: {}", name, TakeOpensslError());
  }
  return std::shared_ptr<const TlsIdentity>(new TlsIdentity(context.release(), std::move(texts)));
}

}  // namespace baton::tls
