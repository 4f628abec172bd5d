// How the router process leaves: what a drain waits for, and what a stop does not.
#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/api/router_process_rig.h"

namespace baton::api {

using http::RawClient;

namespace {

using std::chrono::steady_clock;

class RouterDrainTest : public RouterProcessTest {
 protected:
  void Restart(int64_t grace_us, int64_t timeout_us) {
    process_->Stop();
    RouterConfig config = TestConfig();
    config.drain_grace_us = grace_us;
    config.drain_timeout_us = timeout_us;
    StartProcess(config);
    JoinPair();
  }
  // Waits until no connection is taken any more.
  bool WaitClosed() {
    for (int i = 0; i < 400; ++i) {
      if (!RawClient(PortOf(process_->http_address())).connected()) return true;
      std::this_thread::sleep_for(milliseconds(25));
    }
    return false;
  }
  // Waits until clients were given so many tokens.
  bool WaitTokens(int num_tokens) {
    const std::string name = "\nbaton_generation_tokens_total{";
    for (int i = 0; i < 400; ++i) {
      const std::string metrics = HttpGet(process_->admin_address(), "/metrics");
      const size_t at = metrics.find(name);
      const size_t value = at == std::string::npos ? at : metrics.find("} ", at);
      if (value != std::string::npos && std::stoi(metrics.substr(value + 2)) >= num_tokens) {
        return true;
      }
      std::this_thread::sleep_for(milliseconds(25));
    }
    return false;
  }
};

TEST_F(RouterDrainTest, DrainLetsRunningAnswersEnd) {
  JoinPair();
  decode_->mood = ToyWorker::Mood::kSilent;
  prefill_->mood = ToyWorker::Mood::kSilent;
  grpc::Status status;
  std::thread client([&] { Stream(Chat(9), &status); });
  ASSERT_TRUE(decode_->WaitStarts(1));
  const auto start = steady_clock::now();
  // The second signal comes after a second.
  process_->Drain([&] { return steady_clock::now() - start < seconds(1); });
  EXPECT_FALSE(process_->ready());
  EXPECT_GE(steady_clock::now() - start, milliseconds(900)) << "a request still runs";
  process_->Stop();
  client.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(RouterDrainTest, IdleDrainIsQuick) {
  JoinPair();
  const auto start = steady_clock::now();
  process_->Drain([] { return true; });
  process_->Stop();
  EXPECT_LT(steady_clock::now() - start, seconds(4));
}

// A stop without a drain, as after two signals: nobody is to come back here.
TEST_F(RouterDrainTest, AStopAloneEndsReadiness) {
  JoinPair();
  ASSERT_TRUE(WaitReady(true));
  process_->Stop();
  EXPECT_FALSE(process_->ready());
}

// New connections are taken for the whole grace, and running streams have their time after it.
TEST_F(RouterDrainTest, TheTimeoutBeginsBehindTheGrace) {
  Restart(/*grace_us=*/600'000, /*timeout_us=*/300'000);
  decode_->mood = ToyWorker::Mood::kSilent;
  prefill_->mood = ToyWorker::Mood::kSilent;
  const auto start = steady_clock::now();
  std::thread drain([this] { process_->Drain([] { return true; }); });
  ASSERT_TRUE(WaitReady(false));
  EXPECT_THAT(HttpGet(process_->admin_address(), "/readyz"),
              ::testing::HasSubstr("is shutting down"));
  grpc::Status status;
  std::thread client([&] { Stream(Chat(9), &status); });
  EXPECT_TRUE(decode_->WaitStarts(1)) << "it is still accepted";
  drain.join();
  EXPECT_GE(steady_clock::now() - start, milliseconds(850));
  process_->Stop();
  client.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
}

// The head of the answer before went out before the drain: the client does not know that this
// connection ends.
TEST_F(RouterDrainTest, TheNextRequestOnAnOpenConnectionIsServed) {
  Restart(/*grace_us=*/0, /*timeout_us=*/20'000'000);
  const std::string body = R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":2})";
  const std::string request =
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Content-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body;
  RawClient client(PortOf(process_->http_address()));
  client.Send(request);
  EXPECT_NE(client.ReceiveResponse().find("200 OK"), std::string::npos);
  decode_->mood = ToyWorker::Mood::kSilent;
  prefill_->mood = ToyWorker::Mood::kSilent;
  grpc::Status status;
  std::thread other([&] { Stream(Chat(9), &status); });
  ASSERT_TRUE(decode_->WaitStarts(2));
  std::atomic<bool> is_over{false};
  std::thread drain([&] { process_->Drain([&] { return !is_over.load(); }); });
  ASSERT_TRUE(WaitClosed()) << "no new connection is taken";
  decode_->mood = ToyWorker::Mood::kServe;
  prefill_->mood = ToyWorker::Mood::kServe;
  client.Send(request);
  const std::string answer = client.ReceiveAll();
  EXPECT_NE(answer.find("200 OK"), std::string::npos) << answer;
  EXPECT_NE(answer.find("Connection: close"), std::string::npos) << answer;
  is_over = true;
  drain.join();
  process_->Stop();
  other.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
}

// Its status waits for a write that nobody takes, and the drain's own deadline is far away.
TEST_F(RouterDrainTest, AClientThatDoesNotReadDoesNotHoldUpASecondSignal) {
  Restart(/*grace_us=*/0, /*timeout_us=*/20'000'000);
  const auto stub = StubThatTakesLittle();
  grpc::ClientContext context;
  auto reader = stub->StreamChatCompletion(&context, LongChat(400, 8));
  ASSERT_TRUE(WaitTokens(200)) << "some hundred KiB, behind a window of 64";
  const auto start = steady_clock::now();
  process_->Drain([&] { return steady_clock::now() - start < milliseconds(200); });
  process_->Stop();
  EXPECT_LT(steady_clock::now() - start, seconds(10));
  v1::ChatCompletionChunk chunk;
  while (reader->Read(&chunk)) {
  }
  EXPECT_FALSE(reader->Finish().ok());
}

}  // namespace
}  // namespace baton::api
