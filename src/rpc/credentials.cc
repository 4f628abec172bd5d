#include "src/rpc/credentials.h"

#include "grpc/grpc_security_constants.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_certificate_verifier.h"
#include "grpcpp/security/tls_credentials_options.h"

#include "src/rpc/tls_feed.h"

namespace baton::rpc {

using tls::TlsFiles;

namespace {

namespace ge = grpc::experimental;

std::shared_ptr<ge::CertificateProviderInterface> Watch(const TlsFiles& files, unsigned refresh_s) {
  const TlsFiles& copies = TlsFeed::CopiesOf(files);
  return std::make_shared<ge::FileWatcherCertificateProvider>(copies.key, copies.cert, copies.ca,
                                                              refresh_s);
}

// Both ends show their own certificate and hold the other's against the authority. The verifier
// that checks nothing more replaces gRPC's comparison of host names, not that.
void SetUp(ge::TlsCredentialsOptions* options) {
  options->watch_root_certs();
  options->watch_identity_key_cert_pairs();
  options->set_certificate_verifier(std::make_shared<ge::NoOpCertificateVerifier>());
  options->set_check_call_host(false);
}

}  // namespace

std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(const TlsFiles& files,
                                                                 unsigned refresh_s) {
  if (files.empty()) return grpc::InsecureChannelCredentials();
  ge::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(Watch(files, refresh_s));
  SetUp(&options);
  options.set_verify_server_certs(true);
  return ge::TlsCredentials(options);
}

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const TlsFiles& files,
                                                               ClientCertificate wanted,
                                                               unsigned refresh_s) {
  if (files.empty()) return grpc::InsecureServerCredentials();
  ge::TlsServerCredentialsOptions options(Watch(files, refresh_s));
  SetUp(&options);
  options.set_cert_request_type(wanted == ClientCertificate::kRequired
                                    ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                    : GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  return ge::TlsServerCredentials(options);
}

bool HasVerifiedCertificate(const grpc::AuthContext& peer) {
  // Not IsPeerAuthenticated: that wants a name in the certificate.
  return !peer.FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME).empty();
}

}  // namespace baton::rpc
