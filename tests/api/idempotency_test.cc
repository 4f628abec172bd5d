// Idempotency keys through the whole router: toy workers, broken connections, retries over both
// APIs.
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"

#include "tests/api/router_process_rig.h"

namespace baton::api {

using http::RawClient;

namespace {

using testing::HasSubstr;

class IdempotencyTest : public RouterProcessTest {
 protected:
  // One call of a stream, which the test may leave half read.
  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::ChatCompletionChunk>> reader;
  };
  std::unique_ptr<Call> Open(const std::string& key, const v1::ChatCompletionRequest& request,
                             milliseconds timeout = milliseconds(60'000)) {
    auto call = std::make_unique<Call>();
    call->context.AddMetadata("idempotency-key", key);
    call->context.set_deadline(std::chrono::system_clock::now() + timeout);
    call->reader = chat_->StreamChatCompletion(&call->context, request);
    return call;
  }
  // The next `count` tokens of a call, and its end when there are fewer.
  static std::vector<v1::ChatCompletionChunk> Read(Call& call, size_t count) {
    std::vector<v1::ChatCompletionChunk> chunks;
    v1::ChatCompletionChunk chunk;
    while (chunks.size() < count && call.reader->Read(&chunk)) chunks.push_back(chunk);
    return chunks;
  }
  static std::string BodyOf(const std::string& answer) {
    return answer.substr(answer.find("\r\n\r\n"));
  }
  static std::string TextOf(const std::vector<v1::ChatCompletionChunk>& chunks) {
    std::string text;
    for (const auto& chunk : chunks) text += chunk.choices(0).delta().content();
    return text;
  }
  std::string Post(const std::string& key, const std::string& body) {
    RawClient client(PortOf(process_->http_address()));
    client.Send(HttpRequestText(key, body, true));
    return client.ReceiveAll();
  }
  static std::string HttpRequestText(const std::string& key, const std::string& body, bool closes) {
    return "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: " + key +
           (closes ? "\r\nConnection: close" : "") +
           "\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
           "\r\n\r\n" + body;
  }
  // A generation was cancelled, and so its workers were told.
  bool IsAnyCancelled() {
    const std::string metrics = HttpGet(process_->admin_address(), "/metrics");
    return metrics.find("code=\"499\"} 0\n") == std::string::npos;
  }
  // The value of a JSON text member by its name, the first one in `text`.
  static std::string Member(const std::string& text, const std::string& name) {
    const size_t at = text.find("\"" + name + "\":\"");
    if (at == std::string::npos) return "";
    const size_t begin = at + name.size() + 4;
    return text.substr(begin, text.find('"', begin) - begin);
  }
};

constexpr const char* kChatBody =
    R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":5,"seed":1})";

TEST_F(IdempotencyTest, AGrpcRetryAfterABrokenStreamFindsItsGeneration) {
  JoinPair();
  decode_->mood = ToyWorker::Mood::kEndless;  // two tokens, and it computes on
  auto first = Open("k", Chat(20));
  const auto before = Read(*first, 2);
  ASSERT_EQ(before.size(), 2u);
  first->context.TryCancel();
  EXPECT_EQ(first->reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  ASSERT_TRUE(WaitMetric("state=\"orphaned\"} 1\n")) << "nobody reads it, and it goes on";

  auto retry = Open("k", Chat(20));
  const auto again = Read(*retry, 2);
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(TextOf(again), TextOf(before));
  EXPECT_EQ(again[0].id(), before[0].id());
  EXPECT_EQ(again[0].request_id(), before[0].request_id());
  EXPECT_EQ(again[0].created(), before[0].created());
  EXPECT_GE(again[1].server_times().sent_unix_us(), again[1].server_times().token_unix_us());
  const auto& initial = retry->context.GetServerInitialMetadata();
  ASSERT_EQ(initial.count("x-request-id"), 1u);
  const grpc::string_ref name = initial.find("x-request-id")->second;
  EXPECT_EQ(std::string(name.data(), name.size()), before[0].request_id());
  ASSERT_TRUE(WaitMetric("state=\"live\"} 1\n"));
  EXPECT_FALSE(IsAnyCancelled()) << "no worker was told of the broken stream";
  retry->context.TryCancel();
  retry->reader->Finish();
}

// Being cut off is a cancellation of the call, and that of a call is no word about its generation.
TEST_F(IdempotencyTest, TheFirstGrpcReaderIsCutOffAloneWhenItDoesNotRead) {
  RestartImpatient();
  constexpr uint32_t kTokens = 400;
  constexpr uint32_t kChoices = 8;
  decode_->waits_before = kTokens - 1;
  const v1::ChatCompletionRequest request = LongChat(kTokens, kChoices);
  const auto stub = StubThatTakesLittle();
  Call slow;
  slow.context.AddMetadata("idempotency-key", "k");
  slow.reader = stub->StreamChatCompletion(&slow.context, request);
  ASSERT_TRUE(WaitMetric("result=\"new\"} 1\n"));
  {
    auto beside = Open("k", request);
    EXPECT_EQ(Read(*beside, kChoices * (kTokens - 1)).size(), kChoices * (kTokens - 1));
    beside->context.TryCancel();
    beside->reader->Finish();
  }
  ASSERT_TRUE(WaitMetric("state=\"orphaned\"} 1\n")) << "both are gone, and it waits for a retry";
  auto retry = Open("k", request);
  EXPECT_EQ(Read(*retry, kChoices).size(), kChoices);
  decode_->waits_before = UINT32_MAX;
  EXPECT_EQ(Read(*retry, kChoices * kTokens).size(), kChoices * (kTokens - 1));
  EXPECT_TRUE(retry->reader->Finish().ok());
  EXPECT_LT(Read(slow, kChoices * kTokens).size(), kChoices * (kTokens - 1));
  EXPECT_EQ(slow.reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_FALSE(IsAnyCancelled());
}

TEST_F(IdempotencyTest, AfterItsOwnDeadlineAGrpcClientFindsWhatWasComputed) {
  JoinPair();
  decode_->mood = ToyWorker::Mood::kEndless;
  auto first = Open("k", Chat(20), milliseconds(1500));
  const auto before = Read(*first, 3);
  ASSERT_EQ(before.size(), 2u);
  EXPECT_EQ(first->reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  ASSERT_TRUE(WaitMetric("state=\"orphaned\"} 1\n"));
  v1::ChatCompletionRequest request = Chat(20);
  request.set_request_id("second");
  request.set_timeout_ms(30'000);
  auto retry = Open("k", request);
  const auto again = Read(*retry, 2);
  ASSERT_EQ(again.size(), 2u) << "a new name and deadline are no other request";
  EXPECT_EQ(again[0].id(), before[0].id());
  EXPECT_EQ(again[0].request_id(), before[0].request_id());
  EXPECT_THAT(HttpGet(process_->admin_address(), "/metrics"), HasSubstr("result=\"joined\"} 1\n"));
  retry->context.TryCancel();
  retry->reader->Finish();
}

TEST_F(IdempotencyTest, OneGenerationForCallsBesideAndAfterEachOther) {
  JoinPair();
  constexpr int kCalls = 4;
  std::vector<std::string> ids(kCalls);
  std::vector<std::thread> threads;
  for (int i = 0; i < kCalls; ++i) {
    threads.emplace_back([this, i, &ids] {
      auto call = Open("k", Chat(6));
      const auto chunks = Read(*call, 100);
      EXPECT_TRUE(call->reader->Finish().ok());
      EXPECT_EQ(TextOf(chunks), "abcdef");
      ASSERT_EQ(chunks.size(), 6u);
      EXPECT_EQ(chunks.back().usage().completion_tokens(), 6u);
      ids[i] = chunks[0].id();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& id : ids) EXPECT_EQ(id, ids[0]);
  const std::string metrics = HttpGet(process_->admin_address(), "/metrics");
  EXPECT_THAT(metrics, HasSubstr("code=\"200\"} 1\n"));
  EXPECT_THAT(metrics, HasSubstr("result=\"joined\"} 3\n"));
  EXPECT_THAT(metrics, HasSubstr("state=\"finished\"} 1\n"));

  grpc::ClientContext context;
  context.AddMetadata("idempotency-key", "k");
  v1::ChatCompletionResponse response;
  const grpc::Status status = chat_->ChatCompletion(&context, Chat(6), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT)
      << "the same message, but whole: not the same request";
  const auto& trailing = context.GetServerTrailingMetadata();
  ASSERT_EQ(trailing.count("baton-error-code"), 1u);
  EXPECT_EQ(trailing.find("baton-error-code")->second, "idempotency_key_reused");
  EXPECT_EQ(trailing.find("baton-error-param")->second, "idempotency-key");
  EXPECT_EQ(context.GetServerInitialMetadata().count("x-request-id"), 1u);
}

TEST_F(IdempotencyTest, UnaryCallsAndCompletionsHaveKeysToo) {
  JoinPair();
  v1::CompletionRequest request;
  request.set_prompt("hi");
  request.set_max_tokens(3);
  (*request.mutable_logit_bias())[5] = 0.5f;
  (*request.mutable_logit_bias())[6] = 0.5f;
  v1::CompletionResponse answers[2];
  for (v1::CompletionResponse& answer : answers) {
    grpc::ClientContext context;
    context.AddMetadata("idempotency-key", "k");
    ASSERT_TRUE(completion_->Complete(&context, request, &answer).ok());
  }
  EXPECT_EQ(answers[0].SerializeAsString(), answers[1].SerializeAsString());
  EXPECT_EQ(answers[1].choices(0).text(), "abc");
  grpc::ClientContext context;
  context.AddMetadata("idempotency-key", std::string(256, 'k'));
  v1::CompletionResponse refused;
  EXPECT_EQ(completion_->Complete(&context, request, &refused).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(HttpGet(process_->admin_address(), "/metrics"), HasSubstr("code=\"200\"} 1\n"));
}

TEST_F(IdempotencyTest, AnHttpRetryAfterABrokenStreamGetsOneAnswer) {
  JoinPair();
  decode_->mood = ToyWorker::Mood::kEndless;
  const std::string body =
      R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":20,"stream":true})";
  std::string before;
  {
    RawClient client(PortOf(process_->http_address()));
    client.Send(HttpRequestText("k", body, false));
    before = client.ReceiveUntil("\"b\"");
    ASSERT_THAT(before, HasSubstr("\"b\""));
    client.Reset();
  }
  ASSERT_TRUE(WaitMetric("state=\"orphaned\"} 1\n"));
  RawClient retry(PortOf(process_->http_address()));
  retry.Send(HttpRequestText("k", body, false));
  const std::string again = retry.ReceiveUntil("\"b\"");
  EXPECT_THAT(again, HasSubstr("\"a\""));
  EXPECT_EQ(Member(again, "id"), Member(before, "id"));
  EXPECT_FALSE(IsAnyCancelled());
  // Without a key nobody waits for a retry.
  RawClient plain(PortOf(process_->http_address()));
  plain.Send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Content-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body);
  ASSERT_THAT(plain.ReceiveUntil("\"b\""), HasSubstr("\"b\""));
  plain.Reset();
  EXPECT_TRUE(decode_->WaitCancels(1));
}

TEST_F(IdempotencyTest, WholeHttpAnswersAreEqualAndOtherBodiesAreRefused) {
  JoinPair();
  const std::string first = Post("k", kChatBody);
  const std::string second = Post("k", kChatBody);
  ASSERT_THAT(first, HasSubstr("200 OK"));
  EXPECT_EQ(BodyOf(first), BodyOf(second)) << "also ids, usage and timings";
  const std::string other =
      Post("k", R"({"messages":[{"role":"user","content":"ho"}],"max_tokens":5})");
  EXPECT_THAT(other, HasSubstr("400 Bad Request"));
  EXPECT_EQ(Member(other, "code"), "idempotency_key_reused");
  EXPECT_EQ(Member(other, "param"), "Idempotency-Key");
  const std::string metrics = HttpGet(process_->admin_address(), "/metrics");
  EXPECT_THAT(metrics, HasSubstr("code=\"200\"} 1\n"));
  EXPECT_THAT(metrics, HasSubstr("code=\"400\"} 1\n"));
  EXPECT_THAT(metrics, HasSubstr("result=\"conflict\"} 1\n"));
}

TEST_F(IdempotencyTest, AnAnswerIsThereWhileItsModelHasNoWorker) {
  JoinPair();
  const std::string first = Post("k", kChatBody);
  ASSERT_THAT(first, HasSubstr("200 OK"));
  const std::string text = TextOf(Read(*Open("g", Chat(5)), 100));
  EXPECT_FALSE(text.empty());
  decode_->Stop();
  prefill_->Stop();
  ASSERT_TRUE(WaitReady(false));
  EXPECT_EQ(BodyOf(Post("k", kChatBody)), BodyOf(first));
  EXPECT_EQ(TextOf(Read(*Open("g", Chat(5)), 100)), text);
  EXPECT_THAT(Post("k", R"({"messages":[{"role":"user","content":"ho"}]})"),
              HasSubstr("idempotency_key_reused"));
  EXPECT_THAT(Post("new", kChatBody), HasSubstr("503 ")) << "nobody can compute it";
}

TEST_F(IdempotencyTest, AFailureIsNotRemembered) {
  JoinPair();
  decode_->mood = ToyWorker::Mood::kReject;
  EXPECT_THAT(Post("k", kChatBody), HasSubstr("500 "));
  decode_->mood = ToyWorker::Mood::kServe;
  EXPECT_THAT(Post("k", kChatBody), HasSubstr("200 OK")) << "the retry runs anew";
  EXPECT_THAT(HttpGet(process_->admin_address(), "/metrics"), HasSubstr("result=\"new\"} 2\n"));
}

}  // namespace
}  // namespace baton::api
