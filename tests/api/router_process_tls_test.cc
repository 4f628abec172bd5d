// The router with certificates: its gRPC port serves ordinary clients of the public API, and lets
// only members of the cluster register.
#include <memory>
#include <string>

#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"

#include "baton/v1/worker.grpc.pb.h"
#include "src/rpc/credentials.h"
#include "tests/api/router_process_rig.h"
#include "tests/tls/test_certs.h"

namespace baton::api {

namespace test = tls::test;
using rpc::MakeChannelCredentials;
using tls::TlsFiles;

namespace {

class RouterProcessTlsTest : public RouterProcessTest {
 protected:
  void SetUp() override {
    RouterConfig config = TestConfig();
    config.tls = router_files_;
    StartProcess(config);
  }

  std::shared_ptr<grpc::Channel> ChannelWith(
      const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(process_->grpc_address(), credentials, arguments);
  }
  std::shared_ptr<grpc::ChannelCredentials> OrdinaryClient() const {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = test::TextOf(router_files_.ca);
    return grpc::SslCredentials(options);
  }
  static grpc::Status ListModels(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(20));
    v1::ListModelsResponse response;
    return v1::ModelService::NewStub(channel)->ListModels(&context, {}, &response);
  }
  // The fate of a worker that says hello over this channel.
  static grpc::Status TryToRegister(const std::shared_ptr<grpc::Channel>& channel) {
    const auto stub = v1::RouterRegistry::NewStub(channel);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(20));
    const auto lease = stub->Register(&context);
    v1::WorkerReport hello;
    FillToyHello({"decode-9", v1::WORKER_ROLE_DECODE, "127.0.0.1:1", "weights-a", ""},
                 hello.mutable_hello());
    lease->Write(hello);
    v1::RouterDirective ack;
    EXPECT_FALSE(lease->Read(&ack)) << "the router answered a hello";
    return lease->Finish();
  }

  test::TempFolder folder_;
  test::TestAuthority authority_;
  test::TestAuthority stranger_;
  const TlsFiles router_files_ = authority_.Issue(folder_, "router");
  const TlsFiles worker_files_ = authority_.Issue(folder_, "worker");
};

TEST_F(RouterProcessTlsTest, WorkersWithCertificatesServeClientsWithout) {
  decode_ = std::make_unique<ToyWorker>("decode-0", v1::WORKER_ROLE_DECODE, worker_files_);
  prefill_ = std::make_unique<ToyWorker>("prefill-0", v1::WORKER_ROLE_PREFILL, worker_files_);
  decode_->Register(process_->grpc_address());
  prefill_->Register(process_->grpc_address(), "decode-0");
  ASSERT_TRUE(WaitReady(true));
  chat_ = v1::ChatService::NewStub(ChannelWith(OrdinaryClient()));
  grpc::Status status;
  EXPECT_EQ(Stream(Chat(5), &status).size(), 5u);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(prefill_->WaitStarts(1)) << "the session to the other worker is encrypted too";
}

TEST_F(RouterProcessTlsTest, TheRegistryRefusesWhoeverShowsNoCertificate) {
  const auto ordinary = ChannelWith(OrdinaryClient());
  EXPECT_TRUE(ListModels(ordinary).ok()) << "the public API is open on the same connection";
  const grpc::Status status = TryToRegister(ordinary);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_NE(status.error_message().find("--tls-cert"), std::string::npos);
  EXPECT_TRUE(IsCounted("certificate", 1));
  // Neither without TLS nor with somebody else's authority.
  EXPECT_EQ(TryToRegister(ChannelWith(grpc::InsecureChannelCredentials())).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  TlsFiles foreign = stranger_.Issue(folder_, "foreign");
  foreign.ca = router_files_.ca;
  EXPECT_EQ(TryToRegister(ChannelWith(MakeChannelCredentials(foreign))).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  EXPECT_FALSE(process_->ready());
}

TEST_F(RouterProcessTlsTest, BadFilesStopTheStart) {
  RouterConfig config = TestConfig();
  config.tls = router_files_;
  config.tls.key = worker_files_.key;
  const auto process = RouterProcess::Start(config);
  ASSERT_FALSE(process.ok());
  EXPECT_NE(process.status().message().find("is not the key of --tls-cert"), std::string::npos);
}

}  // namespace
}  // namespace baton::api
