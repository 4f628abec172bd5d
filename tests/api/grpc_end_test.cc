// How long a gRPC call may outlive its answer, by clients that take nothing of it.
#include <string>

#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"

#include "tests/api/raw_grpc_client.h"
#include "tests/api/router_process_rig.h"

namespace baton::api {
namespace {

class GrpcEndTest : public RouterProcessTest {
 protected:
  static std::string TextToTokenize() {
    v1::TokenizeRequest request;
    request.set_content("some text");
    return request.SerializeAsString();
  }
};

// All of it is far below what pauses a client, and nothing else would end the call.
TEST_F(GrpcEndTest, NoCallWaitsForEverForAClientThatReadsNothing) {
  RestartImpatient();
  struct Case {
    const char* path;
    std::string message;
  };
  for (const Case& c :
       {Case{"/baton.v1.ChatService/StreamChatCompletion", Chat(3).SerializeAsString()},
        Case{"/baton.v1.ChatService/ChatCompletion", Chat(3).SerializeAsString()},
        Case{"/baton.v1.ModelService/Tokenize", TextToTokenize()},
        Case{"/baton.v1.ModelService/ListModels", ""}}) {
    RawGrpcClient client(PortOf(process_->grpc_address()));
    client.Call(c.path, c.message);
    EXPECT_TRUE(client.WaitEnd()) << c.path;
    EXPECT_EQ(client.num_data_bytes(), 0u) << c.path;
  }
}

TEST_F(GrpcEndTest, WhoReadsLateGetsAllOfIt) {
  JoinPair();
  RawGrpcClient client(PortOf(process_->grpc_address()));
  client.Call("/baton.v1.ChatService/StreamChatCompletion", Chat(3).SerializeAsString());
  ASSERT_TRUE(WaitMetric("code=\"200\"} 1\n"));
  client.OpenWindow(1 << 20);
  EXPECT_TRUE(client.WaitEnd());
  EXPECT_FALSE(client.was_reset());
  EXPECT_GT(client.num_data_bytes(), 3 * 20u) << "three chunks";
}

// Calls whose limit passes while they end: under which thread's hands is a matter of luck.
TEST_F(GrpcEndTest, ALimitThatPassesDuringTheEndHarmsNobody) {
  process_->Stop();
  RouterConfig config = TestConfig();
  config.core.slow_client_us = 1;
  StartProcess(config);
  JoinPair();
  for (int i = 0; i < 300; ++i) {
    grpc::ClientContext context;
    grpc::Status status;
    v1::ChatCompletionResponse response;
    if (i % 3 == 0) {
      Stream(Chat(2), &status);
    } else if (i % 3 == 1) {
      status = chat_->ChatCompletion(&context, Chat(2), &response);
    } else {
      v1::ListModelsResponse models;
      status = models_->ListModels(&context, {}, &models);
    }
    EXPECT_TRUE(status.ok() || status.error_code() == grpc::StatusCode::CANCELLED)
        << i << ": " << status.error_message();
  }
}

}  // namespace
}  // namespace baton::api
