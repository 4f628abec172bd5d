// Idempotency keys over HTTP: what is a key, what tells two requests apart, and under which names
// an answer goes.
#include "src/api/idempotency_key.h"

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/base/limits.h"
#include "tests/api/http_api_rig.h"

namespace baton::api {

using http::HttpHeaders;
using limits::kMaxIdempotencyKeyBytes;
using router::GenerateRequest;
using router::IdempotencyKey;
using router::ResponseSink;

namespace {

using testing::HasSubstr;
using testing::SizeIs;

class IdempotencyKeyTest : public HttpApiTest {
 protected:
  std::shared_ptr<FakeResponder> PostWith(HttpHeaders headers,
                                          const std::string& body = kHello + "}",
                                          const std::string& path = kChatPath) {
    headers.Add("Content-Type", "application/json");
    auto responder = Send("POST", path, body, std::move(headers));
    EXPECT_TRUE(responder->Wait());
    return responder;
  }
  // The key with which the router got the last of `count` requests.
  IdempotencyKey KeyOf(size_t count) {
    const auto submitted = submitter_.WaitSubmitted(count - 1);
    EXPECT_NE(submitted.request.key, nullptr);
    return submitted.request.key == nullptr ? IdempotencyKey{} : *submitted.request.key;
  }
};

TEST_F(IdempotencyKeyTest, AKeyIsOneToMaxPrintableCharacters) {
  AnswerWith("x");
  const std::string longest(kMaxIdempotencyKeyBytes, 'k');
  for (const std::string& good : {std::string("k"), std::string("\"quoted key~\""), longest}) {
    EXPECT_EQ(PostWith({{"idempotency-KEY", good}})->status, 200) << good;
  }
  for (const std::string& bad : {std::string(), longest + "k", std::string("tab\t"),
                                 std::string("\x7f"), std::string("caf\xc3\xa9")}) {
    const auto responder = PostWith({{"Idempotency-Key", bad}});
    EXPECT_EQ(responder->status, 400) << bad;
    EXPECT_EQ(Text(*responder, {"error", "param"}), "Idempotency-Key");
    EXPECT_EQ(Text(*responder, {"error", "code"}), "invalid_value");
    EXPECT_THAT(Text(*responder, {"error", "message"}), HasSubstr("1 to 255 printable"));
  }
  const auto twice = PostWith({{"Idempotency-Key", "a"}, {"Idempotency-Key", "a"}});
  EXPECT_EQ(twice->status, 400) << "one of the two would be dropped";
  EXPECT_EQ(submitter_.num_submitted(), 3u);
  EXPECT_THAT(submitter_.refused(), SizeIs(6));
}

TEST_F(IdempotencyKeyTest, MostRequestsHaveNone) {
  AnswerWith("x");
  Post(kChatPath, kHello + "}");
  EXPECT_EQ(submitter_.WaitSubmitted(0).request.key, nullptr);
  const std::string echo = R"({"prompt":"x","max_tokens":0,"echo":true})";
  const auto responder = PostWith({{"Idempotency-Key", "k"}}, echo, kCompletionPath);
  EXPECT_EQ(responder->status, 200) << "nothing is computed, so there is nothing to share";
  EXPECT_EQ(submitter_.num_submitted(), 1u);
}

TEST_F(IdempotencyKeyTest, KeyEndpointAndBodyTellRequestsApart) {
  AnswerWith("x");
  const std::string text = R"({"prompt":"hello"})";
  PostWith({{"Idempotency-Key", "k"}, {"X-Request-Id", "one"}});
  PostWith({{"Idempotency-Key", "k"}, {"X-Request-Id", "two"}});
  PostWith({{"Idempotency-Key", "k"}}, kHello + R"(,"seed":1})");
  PostWith({{"Idempotency-Key", "other"}});
  PostWith({{"Idempotency-Key", "k"}}, text, kCompletionPath);
  const IdempotencyKey first = KeyOf(1);
  EXPECT_EQ(KeyOf(2).scope, first.scope);
  EXPECT_EQ(KeyOf(2).fingerprint, first.fingerprint) << "its name is not part of a request";
  EXPECT_EQ(first.name.request_id, "one");
  EXPECT_EQ(KeyOf(2).name.request_id, "two");
  EXPECT_EQ(KeyOf(3).scope, first.scope);
  EXPECT_NE(KeyOf(3).fingerprint, first.fingerprint);
  EXPECT_NE(KeyOf(4).scope, first.scope);
  EXPECT_NE(KeyOf(5).scope, first.scope) << "chat and completions do not meet";
}

// The name of an attempt and the time that its client waits are no part of its content.
TEST_F(IdempotencyKeyTest, ARetryMayHaveANewNameAndDeadlineInItsBody) {
  AnswerWith("x");
  size_t num_posted = 0;
  const auto post = [this, &num_posted](const std::string& rest) {
    PostWith({{"Idempotency-Key", "k"}}, kHello + rest + "}");
    return KeyOf(++num_posted);
  };
  const IdempotencyKey first =
      post(R"(,"request_id":"one","timeout_ms":1000,"seed":5,"top_p":0.5)");
  EXPECT_EQ(first.timeout_us, 1'000'000);
  EXPECT_EQ(first.name.request_id, "one");
  const IdempotencyKey retry = post(R"( , "seed":5.0, "top_p":5e-1,"request_id":"two")");
  EXPECT_EQ(retry.fingerprint, first.fingerprint);
  EXPECT_EQ(retry.name.request_id, "two");
  for (const char* other :
       {R"(,"seed":6,"top_p":0.5)", R"(,"seed":5)", R"(,"seed":5,"top_p":0.25)",
        R"(,"seed":5,"top_p":0.5,"x":["request_id"])",
        R"(,"seed":5,"top_p":0.5,"x":{"timeout_ms":1})", R"(,"seed":5,"top_p":0.5,"n":null)"}) {
    EXPECT_NE(post(other).fingerprint, first.fingerprint) << other;
  }
}

// As the router does it for a request that joins another's generation.
TEST_F(IdempotencyKeyTest, AnAnswerGoesByTheNamesOfItsGeneration) {
  const auto play = [](const GenerateRequest& /*request*/, ResponseSink& sink) {
    sink.OnAccepted({"chatcmpl-first", "first-request", 1234});
    PlayText(sink, "ab");
    sink.OnFinished(TestResult(3, 2));
  };
  submitter_.answer = play;
  const HttpHeaders headers = {{"Idempotency-Key", "k"}, {"X-Request-Id", "second-request"}};
  const auto whole = PostWith(headers);
  EXPECT_EQ(whole->Header("X-Request-Id"), "first-request");
  EXPECT_EQ(Text(*whole, {"id"}), "chatcmpl-first");
  EXPECT_EQ(Text(*whole, {"created"}), "1234");
  const std::string body = R"({"stream":true,"messages":[{"role":"user","content":"hello"}]})";
  const auto stream = PostWith(headers, body);
  EXPECT_EQ(stream->Header("X-Request-Id"), "first-request");
  const auto events = Events(stream->body);
  ASSERT_THAT(events, SizeIs(5)) << stream->body;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    EXPECT_THAT(events[i], HasSubstr(R"("id":"chatcmpl-first")"));
    EXPECT_THAT(events[i], HasSubstr(R"("created":1234)"));
  }
}

}  // namespace
}  // namespace baton::api
