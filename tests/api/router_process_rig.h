// The whole router process, toy workers and clients of both APIs.
#ifndef BATON_TESTS_API_ROUTER_PROCESS_RIG_H_
#define BATON_TESTS_API_ROUTER_PROCESS_RIG_H_

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"

#include "baton/v1/inference.grpc.pb.h"
#include "src/api/router_process.h"
#include "tests/api/toy_worker.h"
#include "tests/http/raw_client.h"

namespace baton::api {

using std::chrono::milliseconds;
using std::chrono::seconds;

inline RouterConfig TestConfig() {
  RouterConfig config;
  config.grpc_address = "127.0.0.1:0";
  config.http_address = "127.0.0.1:0";
  config.admin_address = "127.0.0.1:0";
  config.drain_grace_us = 100'000;
  config.drain_timeout_us = 5'000'000;
  return config;
}

inline uint16_t PortOf(const std::string& address) {
  return static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
}

class RouterProcessTest : public testing::Test {
 protected:
  void SetUp() override { StartProcess(TestConfig()); }

  void StartProcess(const RouterConfig& config) {
    auto process = RouterProcess::Start(config);
    ASSERT_TRUE(process.ok()) << process.status();
    process_ = *std::move(process);
    channel_ = grpc::CreateChannel(process_->grpc_address(), grpc::InsecureChannelCredentials());
    chat_ = v1::ChatService::NewStub(channel_);
    completion_ = v1::CompletionService::NewStub(channel_);
    models_ = v1::ModelService::NewStub(channel_);
  }

  // With a script: a model whose template knows thoughts, and what it says.
  void JoinPair(const std::string& script = "") {
    decode_ = std::make_unique<ToyWorker>("decode-0", v1::WORKER_ROLE_DECODE);
    prefill_ = std::make_unique<ToyWorker>("prefill-0", v1::WORKER_ROLE_PREFILL);
    for (ToyWorker* worker : {decode_.get(), prefill_.get()}) {
      worker->script = script;
      if (!script.empty()) worker->chat_template = router::TestSpec().chat_template + "<think>\n";
    }
    decode_->Register(process_->grpc_address());
    prefill_->Register(process_->grpc_address(), "decode-0");
    ASSERT_TRUE(WaitReady(true));
  }

  bool WaitReady(bool ready) {
    for (int i = 0; i < 400; ++i) {
      if (process_->ready() == ready) return true;
      std::this_thread::sleep_for(milliseconds(25));
    }
    return false;
  }

  // Anew, with a pair of workers and a short patience with clients that do not read.
  void RestartImpatient() {
    process_->Stop();
    RouterConfig config = TestConfig();
    config.core.slow_client_us = 300'000;
    StartProcess(config);
    JoinPair();
  }

  // A stub whose connection takes in little: without a fixed window it would be megabytes.
  std::unique_ptr<v1::ChatService::Stub> StubThatTakesLittle() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    return v1::ChatService::NewStub(grpc::CreateCustomChannel(
        process_->grpc_address(), grpc::InsecureChannelCredentials(), arguments));
  }

  static v1::ChatCompletionRequest Chat(int max_tokens) {
    v1::ChatCompletionRequest request;
    v1::ChatMessage* message = request.add_messages();
    message->set_role("user");
    message->set_content("hi");
    request.set_max_completion_tokens(max_tokens);
    return request;
  }
  // One whose answer is far more than is buffered for a client.
  static v1::ChatCompletionRequest LongChat(int max_tokens, int num_choices) {
    v1::ChatCompletionRequest request = Chat(max_tokens);
    request.set_n(num_choices);
    request.set_logprobs(true);
    request.set_top_logprobs(20);
    return request;
  }
  // All chunks of a stream; `status` gets its end.
  std::vector<v1::ChatCompletionChunk> Stream(const v1::ChatCompletionRequest& request,
                                              grpc::Status* status) {
    grpc::ClientContext context;
    auto reader = chat_->StreamChatCompletion(&context, request);
    std::vector<v1::ChatCompletionChunk> chunks;
    v1::ChatCompletionChunk chunk;
    while (reader->Read(&chunk)) chunks.push_back(chunk);
    *status = reader->Finish();
    return chunks;
  }
  std::string HttpGet(const std::string& address, const std::string& path) {
    http::RawClient client(PortOf(address));
    client.Send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    return client.ReceiveAll();
  }
  // Waits until /metrics has the line.
  bool WaitMetric(const std::string& line) {
    for (int i = 0; i < 400; ++i) {
      if (HttpGet(process_->admin_address(), "/metrics").find(line) != std::string::npos) {
        return true;
      }
      std::this_thread::sleep_for(milliseconds(25));
    }
    return false;
  }
  // Waits until so many workers have been refused for that reason.
  bool IsCounted(const std::string& reason, int count) {
    const std::string line = "reason=\"" + reason + "\"} " + std::to_string(count) + "\n";
    for (int i = 0; i < 200; ++i) {
      const std::string metrics = HttpGet(process_->admin_address(), "/metrics");
      size_t at = metrics.find("\nbaton_registrations_refused_total{");
      while (at != std::string::npos) {
        const size_t end = metrics.find('\n', at + 1);
        if (metrics.substr(at + 1, end - at).ends_with(line)) return true;
        at = metrics.find("\nbaton_registrations_refused_total{", at + 1);
      }
      std::this_thread::sleep_for(milliseconds(25));
    }
    return false;
  }

  std::string HttpPost(const std::string& path, const std::string& body) {
    http::RawClient client(PortOf(process_->http_address()));
    client.Send("POST " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" +
                "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
                "\r\n\r\n" + body);
    return client.ReceiveAll();
  }

  std::unique_ptr<RouterProcess> process_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::ChatService::Stub> chat_;
  std::unique_ptr<v1::CompletionService::Stub> completion_;
  std::unique_ptr<v1::ModelService::Stub> models_;
  std::unique_ptr<ToyWorker> decode_;
  std::unique_ptr<ToyWorker> prefill_;
};

}  // namespace baton::api

#endif  // BATON_TESTS_API_ROUTER_PROCESS_RIG_H_
