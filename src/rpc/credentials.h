// Credentials of the gRPC connections between the processes of a cluster, from the three files of
// --tls-cert, --tls-key and --tls-ca; without files the connections are plaintext. Files that are
// replaced count for new connections, once they fit together (tls_feed.h). Any thread.
//
// As on the KV connection (src/tls/tls_identity.h), a certificate says that its holder belongs to
// the cluster; host names are not compared.
#ifndef BATON_RPC_CREDENTIALS_H_
#define BATON_RPC_CREDENTIALS_H_

#include <memory>

#include "grpcpp/security/auth_context.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"

#include "src/tls/tls_files.h"

namespace baton::rpc {

// The certificate that a server asks of a client. A certificate that is given and not good ends the
// connection in either case.
enum class ClientCertificate : uint8_t { kRequired, kIfGiven };

// How often gRPC looks at what TlsFeed has found, seconds.
inline constexpr unsigned kTlsRefreshS = 10;

// `files` empty = plaintext. Nobody is served while they do not pass TlsIdentity::Load.
std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(const tls::TlsFiles& files,
                                                                 unsigned refresh_s = kTlsRefreshS);
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const tls::TlsFiles& files,
                                                               ClientCertificate wanted,
                                                               unsigned refresh_s = kTlsRefreshS);

// True when the peer of a call has shown a certificate, which the server then has verified.
bool HasVerifiedCertificate(const grpc::AuthContext& peer);

}  // namespace baton::rpc

#endif  // BATON_RPC_CREDENTIALS_H_
