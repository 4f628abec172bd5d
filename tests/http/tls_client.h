// A TLS client over a RawClient's socket, for tests of the HTTP server. One thread.
#ifndef BATON_TESTS_HTTP_TLS_CLIENT_H_
#define BATON_TESTS_HTTP_TLS_CLIENT_H_

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "src/base/check.h"
#include "src/tls/tls_files.h"
#include "tests/http/raw_client.h"

namespace baton::http {

// How a client speaks TLS.
struct TlsClientOptions {
  int version = TLS1_3_VERSION;  // this one alone
  std::string alpn = "http/1.1";
  tls::TlsFiles identity;  // shows its certificate; empty = none
};

// One connection, which trusts everybody. Every wait for bytes ends after ten seconds.
class TlsClient {
 public:
  explicit TlsClient(uint16_t port, const TlsClientOptions& options = {})
      : raw_(port), context_(SSL_CTX_new(TLS_client_method())) {
    SSL_CTX_set_min_proto_version(context_, options.version);
    SSL_CTX_set_max_proto_version(context_, options.version);
    const tls::TlsFiles& files = options.identity;
    if (!files.empty()) {
      BATON_CHECK(
          SSL_CTX_use_certificate_chain_file(context_, files.cert.c_str()) == 1 &&
              SSL_CTX_use_PrivateKey_file(context_, files.key.c_str(), SSL_FILETYPE_PEM) == 1,
          "{}", files.cert);
    }
    const timeval limit{10, 0};
    ::setsockopt(raw_.fd(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    ssl_ = SSL_new(context_);
    SSL_set_fd(ssl_, raw_.fd());
    const std::string list = std::string(1, static_cast<char>(options.alpn.size())) + options.alpn;
    SSL_set_alpn_protos(ssl_, reinterpret_cast<const unsigned char*>(list.data()),
                        static_cast<unsigned>(list.size()));
    // Another name than the certificate's: the server does not mind.
    SSL_set_tlsext_host_name(ssl_, "another.example");
    connected_ = SSL_connect(ssl_) == 1;
    if (!connected_) error_ = Reason();
  }
  ~TlsClient() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
  TlsClient(const TlsClient&) = delete;
  TlsClient& operator=(const TlsClient&) = delete;

  bool connected() const { return connected_; }
  // Why it is not.
  const std::string& error() const { return error_; }
  RawClient& raw() { return raw_; }
  SSL* ssl() { return ssl_; }

  std::string Protocol() const {
    const unsigned char* name = nullptr;
    unsigned size = 0;
    SSL_get0_alpn_selected(ssl_, &name, &size);
    return size == 0 ? "" : std::string(reinterpret_cast<const char*>(name), size);
  }
  // The server's certificate as text that tells it from others.
  std::string ServerSerial() const {
    X509* const cert = SSL_get1_peer_certificate(ssl_);
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    X509_digest(cert, EVP_sha256(), digest, &size);
    X509_free(cert);
    return std::string(reinterpret_cast<const char*>(digest), size);
  }

  bool Send(std::string_view bytes) {
    return SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size())) ==
           static_cast<int>(bytes.size());
  }
  // Says that it sends nothing more, and reads on.
  void CloseSending() { SSL_shutdown(ssl_); }

  // Everything up to and with `end`; less when the server closed or ten seconds passed.
  std::string ReceiveUntil(std::string_view end) {
    while (received_.find(end) == std::string::npos && ReceiveSome()) {
    }
    const size_t found = received_.find(end);
    const size_t size = found == std::string::npos ? received_.size() : found + end.size();
    std::string result = received_.substr(0, size);
    received_.erase(0, size);
    return result;
  }
  std::string ReceiveAll() {
    while (ReceiveSome()) {
    }
    return std::exchange(received_, {});
  }
  // The server ended the connection by TLS's own word, and no answer was cut.
  bool ended_well() const { return ended_well_; }
  // Why the last read got nothing.
  std::string Reason() {
    const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
    return reason == nullptr ? "" : reason;
  }

 private:
  bool ReceiveSome() {
    char bytes[16384];
    ERR_clear_error();
    const int got = SSL_read(ssl_, bytes, sizeof(bytes));
    if (got > 0) received_.append(bytes, static_cast<size_t>(got));
    if (got <= 0) ended_well_ = SSL_get_error(ssl_, got) == SSL_ERROR_ZERO_RETURN;
    return got > 0;
  }

  RawClient raw_;
  SSL_CTX* const context_;
  SSL* ssl_ = nullptr;
  bool connected_ = false;
  bool ended_well_ = false;
  std::string error_;
  std::string received_;
};

}  // namespace baton::http

#endif  // BATON_TESTS_HTTP_TLS_CLIENT_H_
