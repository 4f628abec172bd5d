// Tests who reaches a gRPC server of the cluster and who does not, with real servers and channels
// and with certificates made here.
#include "src/rpc/credentials.h"

#include <openssl/bio.h>
#include <openssl/ssl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>

#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"

#include "baton/v1/inference.grpc.pb.h"
#include "src/rpc/tls_feed.h"
#include "tests/tls/test_certs.h"

namespace baton::rpc::test {

using tls::TlsFiles;
using tls::test::ReplaceText;
using tls::test::TempFolder;
using tls::test::TestAuthority;
using tls::test::TextOf;

namespace {

constexpr unsigned kQuickRefreshS = 1;

// Answers every call, and tells whether the last one came with a certificate.
class Probe final : public v1::ModelService::Service {
 public:
  explicit Probe(std::shared_ptr<grpc::ServerCredentials> credentials) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", std::move(credentials), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
  }
  ~Probe() override { server_->Shutdown(std::chrono::system_clock::now()); }

  grpc::Status ListModels(grpc::ServerContext* context, const v1::ListModelsRequest*,
                          v1::ListModelsResponse*) override {
    saw_certificate = HasVerifiedCertificate(*context->auth_context());
    return grpc::Status::OK;
  }

  // One call over a connection of its own.
  grpc::Status Ask(const std::shared_ptr<grpc::ChannelCredentials>& credentials) const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto stub =
        v1::ModelService::NewStub(grpc::CreateCustomChannel(address_, credentials, arguments));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    v1::ListModelsResponse response;
    return stub->ListModels(&context, {}, &response);
  }

  const std::string& address() const { return address_; }

  std::atomic<bool> saw_certificate{false};

 private:
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

// As a client of the public API: trusts the authority, has no certificate, compares host names.
std::shared_ptr<grpc::ChannelCredentials> OrdinaryClient(const TlsFiles& files) {
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = TextOf(files.ca);
  return grpc::SslCredentials(options);
}

class CredentialsTest : public testing::Test {
 protected:
  static grpc::StatusCode CodeOf(const Probe& probe,
                                 const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    return probe.Ask(credentials).error_code();
  }

  TempFolder folder_;
  TestAuthority authority_;
  TestAuthority stranger_;
  const TlsFiles member_ = authority_.Issue(folder_, "member");
  const TlsFiles other_member_ = authority_.Issue(folder_, "other-member");
  const TlsFiles foreign_ = stranger_.Issue(folder_, "foreign");
};

TEST_F(CredentialsTest, WithoutFilesConnectionsArePlaintext) {
  Probe probe(MakeServerCredentials({}, ClientCertificate::kRequired));
  EXPECT_EQ(CodeOf(probe, MakeChannelCredentials({})), grpc::StatusCode::OK);
  EXPECT_FALSE(probe.saw_certificate);
  EXPECT_EQ(CodeOf(probe, MakeChannelCredentials(member_)), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(CredentialsTest, AServerOfWorkersTakesMembersOnly) {
  Probe probe(MakeServerCredentials(member_, ClientCertificate::kRequired));
  EXPECT_EQ(CodeOf(probe, MakeChannelCredentials(other_member_)), grpc::StatusCode::OK);
  EXPECT_TRUE(probe.saw_certificate);
  EXPECT_EQ(CodeOf(probe, MakeChannelCredentials({})), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(CodeOf(probe, OrdinaryClient(member_)), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(CodeOf(probe, MakeChannelCredentials(foreign_)), grpc::StatusCode::UNAVAILABLE);
}

// Each side alone must refuse: here one of them trusts the other.
TEST_F(CredentialsTest, EachSideChecksTheOther) {
  TlsFiles foreign_that_trusts_us = foreign_;
  foreign_that_trusts_us.ca = member_.ca;
  {
    Probe probe(MakeServerCredentials(member_, ClientCertificate::kRequired));
    const grpc::Status status = probe.Ask(MakeChannelCredentials(foreign_that_trusts_us));
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << "the server took a stranger";
  }
  Probe probe(MakeServerCredentials(foreign_that_trusts_us, ClientCertificate::kRequired));
  const grpc::Status status = probe.Ask(MakeChannelCredentials(member_));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << "the client took a stranger";
}

TEST_F(CredentialsTest, ExpiredCertificatesAreRefused) {
  const TlsFiles expired = authority_.Issue(folder_, "expired", {.end_s = -60});
  Probe good(MakeServerCredentials(member_, ClientCertificate::kRequired));
  EXPECT_EQ(CodeOf(good, MakeChannelCredentials(expired)), grpc::StatusCode::UNAVAILABLE);
  Probe bad(MakeServerCredentials(expired, ClientCertificate::kRequired));
  EXPECT_EQ(CodeOf(bad, MakeChannelCredentials(member_)), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(CredentialsTest, APublicServerTakesOrdinaryClientsAndTellsThemFromMembers) {
  Probe probe(MakeServerCredentials(member_, ClientCertificate::kIfGiven));
  EXPECT_EQ(CodeOf(probe, MakeChannelCredentials(other_member_)), grpc::StatusCode::OK);
  EXPECT_TRUE(probe.saw_certificate);
  EXPECT_EQ(CodeOf(probe, OrdinaryClient(member_)), grpc::StatusCode::OK);
  EXPECT_FALSE(probe.saw_certificate);
  // A certificate that is no good is worse than none.
  TlsFiles foreign_that_trusts_us = foreign_;
  foreign_that_trusts_us.ca = member_.ca;
  EXPECT_EQ(CodeOf(probe, MakeChannelCredentials(foreign_that_trusts_us)),
            grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(CodeOf(probe, MakeChannelCredentials({})), grpc::StatusCode::UNAVAILABLE);
}

// Members are not told apart by name: a worker is reached at an address that no certificate names.
TEST_F(CredentialsTest, HostNamesOfMembersAreNotCompared) {
  const TlsFiles nameless = authority_.Issue(folder_, "nameless", {.names = "DNS:elsewhere"});
  Probe probe(MakeServerCredentials(nameless, ClientCertificate::kIfGiven));
  EXPECT_EQ(CodeOf(probe, MakeChannelCredentials(member_)), grpc::StatusCode::OK);
  EXPECT_EQ(CodeOf(probe, OrdinaryClient(member_)), grpc::StatusCode::UNAVAILABLE);
}

// Nothing of gRPC 1.51 can refuse TLS 1.2, but nobody who knows 1.3 ends up with it.
TEST_F(CredentialsTest, ServersPreferTls13) {
  Probe probe(MakeServerCredentials(member_, ClientCertificate::kIfGiven));
  SSL_CTX* const context = SSL_CTX_new(TLS_client_method());
  const unsigned char http2[] = "\x02h2";
  SSL_CTX_set_alpn_protos(context, http2, sizeof(http2) - 1);
  SSL* const ssl = SSL_new(context);
  BIO* const socket = BIO_new_connect(probe.address().c_str());
  SSL_set_bio(ssl, socket, socket);
  EXPECT_EQ(SSL_connect(ssl), 1);
  EXPECT_EQ(SSL_version(ssl), TLS1_3_VERSION);
  SSL_free(ssl);
  SSL_CTX_free(context);
}

TEST_F(CredentialsTest, ReplacedFilesCountForNewConnections) {
  const TlsFiles mine = authority_.Issue(folder_, "mine");
  Probe probe(MakeServerCredentials(mine, ClientCertificate::kRequired, kQuickRefreshS));
  ASSERT_EQ(CodeOf(probe, MakeChannelCredentials(member_)), grpc::StatusCode::OK);
  ASSERT_EQ(CodeOf(probe, MakeChannelCredentials(foreign_)), grpc::StatusCode::UNAVAILABLE);
  ReplaceText(mine.ca, TextOf(foreign_.ca));
  ReplaceText(mine.key, TextOf(foreign_.key));
  ReplaceText(mine.cert, TextOf(foreign_.cert));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (CodeOf(probe, MakeChannelCredentials(foreign_)) != grpc::StatusCode::OK) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "the new files were never used";
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_EQ(CodeOf(probe, MakeChannelCredentials(member_)), grpc::StatusCode::UNAVAILABLE);
}

// An operator replaces key and certificate by two commands: between them they do not fit.
TEST_F(CredentialsTest, FilesThatDoNotFitTogetherChangeNothing) {
  const TlsFiles mine = authority_.Issue(folder_, "mine");
  Probe probe(MakeServerCredentials(mine, ClientCertificate::kRequired, kQuickRefreshS));
  ASSERT_EQ(CodeOf(probe, MakeChannelCredentials(member_)), grpc::StatusCode::OK);
  const TlsFiles& copies = TlsFeed::CopiesOf(mine);
  const std::string good_key = TextOf(copies.key);
  const auto serve_on = [&] {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2 * kQuickRefreshS);
    do {
      ASSERT_EQ(CodeOf(probe, MakeChannelCredentials(member_)), grpc::StatusCode::OK);
      ASSERT_EQ(TextOf(copies.key), good_key);
    } while (std::chrono::steady_clock::now() < end);
  };
  ReplaceText(mine.key, TextOf(other_member_.key));
  serve_on();
  // gRPC itself ends the process where a folder has the name of a file.
  ASSERT_EQ(std::remove(mine.cert.c_str()), 0);
  ASSERT_EQ(mkdir(mine.cert.c_str(), 0700), 0);
  serve_on();
  ASSERT_EQ(rmdir(mine.cert.c_str()), 0);
  ReplaceText(mine.cert, TextOf(other_member_.cert));
  ReplaceText(mine.key, TextOf(other_member_.key));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (TextOf(copies.key) != TextOf(other_member_.key)) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "the good files were never taken";
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(CodeOf(probe, MakeChannelCredentials(member_)), grpc::StatusCode::OK);
}

// Files that were never good serve nobody, and end no process: not a folder either.
TEST_F(CredentialsTest, NobodyIsServedByFilesThatAreNoFiles) {
  TlsFiles folders = member_;
  folders.cert = folder_.path();
  Probe probe(MakeServerCredentials(folders, ClientCertificate::kIfGiven));
  EXPECT_EQ(CodeOf(probe, MakeChannelCredentials(member_)), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(CodeOf(probe, OrdinaryClient(member_)), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace baton::rpc::test
