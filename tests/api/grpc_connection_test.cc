// Which gRPC connections the router gives up, and which it keeps.
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"

#include "tests/api/raw_grpc_client.h"
#include "tests/api/router_process_rig.h"

namespace baton::api {
namespace {

constexpr const char* kStream = "/baton.v1.ChatService/StreamChatCompletion";

class GrpcConnectionTest : public RouterProcessTest {
 protected:
  void Restart(const ServerKeepalive& keepalive) {
    process_->Stop();
    RouterConfig config = TestConfig();
    config.keepalive = keepalive;
    StartProcess(config);
    JoinPair();
    // Their answers never come.
    decode_->mood = ToyWorker::Mood::kSilent;
    prefill_->mood = ToyWorker::Mood::kSilent;
  }

  // Eighty calls with 4 MB of messages of a legal size, none of which is whole. What they send
  // fits the window of a new stream.
  std::vector<std::unique_ptr<RawGrpcClient>> SendParts() {
    std::vector<std::unique_ptr<RawGrpcClient>> clients;
    for (int i = 0; i < 80; ++i) {
      clients.push_back(std::make_unique<RawGrpcClient>(PortOf(process_->grpc_address())));
      clients.back()->CallInPart(kStream, size_t{8} << 20, std::string(50'000, 'a'));
    }
    return clients;
  }
};

TEST_F(GrpcConnectionTest, AHostThatVanishedIsGivenUp) {
  Restart({.time_ms = 100, .timeout_ms = 2'000});  // the workers of the test are clients, too
  RawGrpcClient idle(PortOf(process_->grpc_address()));
  idle.AnswerNoPings();
  EXPECT_TRUE(idle.WaitClosed());
  RawGrpcClient with_call(PortOf(process_->grpc_address()));
  with_call.AnswerNoPings();
  with_call.Call(kStream, Chat(3).SerializeAsString());
  EXPECT_TRUE(with_call.WaitClosed());
  EXPECT_TRUE(decode_->WaitCancels(1)) << "nobody waits for the answer any more";
}

// As long as it lasts, however long nothing is said; workers' leases are such streams as well.
TEST_F(GrpcConnectionTest, AStreamKeepsItsConnectionAndWithoutOneItIsIdle) {
  Restart({.time_ms = 100, .timeout_ms = 5'000, .max_idle_ms = 200});
  RawGrpcClient client(PortOf(process_->grpc_address()));
  client.Call(kStream, Chat(3).SerializeAsString());
  EXPECT_TRUE(client.WaitPings(10)) << "a second";
  EXPECT_TRUE(process_->ready());
  client.Cancel();
  EXPECT_TRUE(client.WaitClosed());
  EXPECT_TRUE(process_->ready()) << "both workers are still there";
}

// As Go sends for the longest time it knows; in nanoseconds the end of it is before the beginning.
TEST_F(GrpcConnectionTest, ADeadlineInSomeCenturiesIsNone) {
  Restart({});
  int num_calls = 0;
  for (const char* timeout : {"2562048H", "99999999H", "10M"}) {
    RawGrpcClient client(PortOf(process_->grpc_address()));
    client.Call(kStream, Chat(3).SerializeAsString(), timeout);
    EXPECT_TRUE(decode_->WaitStarts(++num_calls)) << timeout << ": it was not even begun";
    client.Cancel();
  }
}

TEST_F(GrpcConnectionTest, AClientDoesNotNoticeThatItsIdleConnectionWasClosed) {
  Restart({.max_idle_ms = 100});
  grpc::ChannelArguments of_its_own;  // else it is the workers' connection
  of_its_own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto channel = grpc::CreateCustomChannel(process_->grpc_address(),
                                                 grpc::InsecureChannelCredentials(), of_its_own);
  const auto stub = v1::ModelService::NewStub(channel);
  v1::ListModelsResponse models;
  grpc::ClientContext first;
  ASSERT_TRUE(stub->ListModels(&first, {}, &models).ok());
  const auto deadline = std::chrono::system_clock::now() + seconds(10);
  EXPECT_TRUE(channel->WaitForStateChange(GRPC_CHANNEL_READY, deadline));
  grpc::ClientContext second;
  EXPECT_TRUE(stub->ListModels(&second, {}, &models).ok());
}

// The server's pings give the beat, above the least interval of 500 ms.
TEST_F(GrpcConnectionTest, AnIdleClientMayPing) {
  Restart({.time_ms = 600, .timeout_ms = 5'000});
  RawGrpcClient client(PortOf(process_->grpc_address()));
  for (int i = 1; i <= 4; ++i) {
    EXPECT_TRUE(client.WaitPings(i));
    client.Ping();
  }
  EXPECT_TRUE(client.WaitPings(5)) << "the connection stands";
}

TEST_F(GrpcConnectionTest, MessagesThatAreNotWholeHoldNoMoreThanTheLimit) {
  process_->Stop();
  RouterConfig config = TestConfig();
  config.grpc_memory_bytes = size_t{2} << 20;
  StartProcess(config);
  JoinPair();
  auto clients = SendParts();
  size_t num_ended = 0;
  for (int i = 0; i < 400 && num_ended == 0; ++i) {
    for (const auto& client : clients) num_ended += client->HasEnded() ? 1 : 0;
    if (num_ended == 0) std::this_thread::sleep_for(milliseconds(25));
  }
  EXPECT_GT(num_ended, 0u) << "4 MB are held, the limit is 2 MiB";
  clients.clear();
  // A connection that the library closed is opened again.
  grpc::Status status;
  for (int i = 0; i < 400; ++i) {
    grpc::ClientContext context;
    v1::ListModelsResponse models;
    status = models_->ListModels(&context, {}, &models);
    if (status.ok()) break;
    std::this_thread::sleep_for(milliseconds(25));
  }
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(GrpcConnectionTest, MessagesBelowTheLimitAreWaitedFor) {
  Restart({});
  const auto clients = SendParts();
  RawGrpcClient other(PortOf(process_->grpc_address()));
  other.Call(kStream, Chat(3).SerializeAsString());
  EXPECT_TRUE(decode_->WaitStarts(1));
  for (const auto& client : clients) EXPECT_FALSE(client->HasEnded());
}

}  // namespace
}  // namespace baton::api
