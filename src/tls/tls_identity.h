// TlsIdentity: a process's certificate, key and trusted authority, read and checked, ready to start
// connections with. Within the cluster that is TLS 1.3 only, and both sides show a certificate of
// that authority. Clients of the HTTP port may speak TLS 1.2 and need no certificate.
//
// A peer is checked by the authority that signed its certificate, not by its host name: workers are
// reached at addresses that no certificate can name in advance. The introduction says which worker
// answers (kvcache/transport/handshake.h).
//
// Immutable; any thread. Connections keep what they need of it alive.
#ifndef BATON_TLS_TLS_IDENTITY_H_
#define BATON_TLS_TLS_IDENTITY_H_

#include <openssl/types.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "src/base/status.h"
#include "src/tls/tls_files.h"

namespace baton::tls {

// Whom connections are with.
enum class TlsPeers : uint8_t {
  kCluster,      // processes of the cluster
  kHttpClients,  // clients of the HTTP port; a certificate that one shows must be the authority's
};

// See the file comment.
class TlsIdentity {
 public:
  // InvalidArgument, naming the flag and the file, when one cannot be read or parsed.
  // InvalidArgument too when the key is not the certificate's or wants a passphrase, or when the
  // certificate is not valid now. InvalidArgument also when it is not signed by the authority for
  // both ends of a connection.
  static StatusOr<std::shared_ptr<const TlsIdentity>> Load(const TlsFiles& files,
                                                           TlsPeers peers = TlsPeers::kCluster);

  ~TlsIdentity();
  TlsIdentity(const TlsIdentity&) = delete;
  TlsIdentity& operator=(const TlsIdentity&) = delete;

  // Not const: OpenSSL counts references in it.
  SSL_CTX* ssl_context() const { return context_; }
  // For another library that makes its own connections from them.
  const TlsTexts& texts() const { return texts_; }

 private:
  TlsIdentity(SSL_CTX* context, TlsTexts texts) : context_(context), texts_(std::move(texts)) {}

  SSL_CTX* const context_;
  const TlsTexts texts_;
};

// The oldest error that OpenSSL has noted on this thread, as words; forgets all of them.
std::string TakeOpensslError();

}  // namespace baton::tls

#endif  // BATON_TLS_TLS_IDENTITY_H_
