// When a stream begins: before that a failure has a status, after it an event.

#include "gtest/gtest.h"

#include "tests/api/http_api_rig.h"

namespace baton::api {

using router::GenerateRequest;
using router::ResponseSink;
using router::SilenceError;

namespace {

class StreamBeginTest : public HttpApiTest {};

// Proxies and clients end what says nothing for a minute: a stream begins when a worker has it.
TEST_F(StreamBeginTest, AStreamBeginsWhenAWorkerHasTakenIt) {
  const auto responder = Send("POST", kChatPath, kHello + R"(,"stream":true})");
  const auto submitted = submitter_.WaitSubmitted();
  ASSERT_TRUE(responder->WaitOnClosedSet());
  EXPECT_EQ(responder->status, 0) << "it may still become a 429";
  submitted.sink->OnTaken();
  EXPECT_EQ(responder->status, 200);
  EXPECT_EQ(responder->Header("Content-Type"), "text/event-stream");
  EXPECT_EQ(responder->Header("Cache-Control"), "no-cache");
  EXPECT_EQ(responder->Header("X-Accel-Buffering"), "no");
  EXPECT_EQ(responder->body, "") << "no event before the first token";
  EXPECT_EQ(responder->filler, ": ping\n\n");
  EXPECT_EQ(responder->silence_ms, 15'000);
  PlayText(*submitted.sink, "Hi");
  submitted.sink->OnFinished(TestResult(9, 2));
  EXPECT_EQ(Events(responder->body).back(), "[DONE]");
}

TEST_F(StreamBeginTest, FailureBetweenHeadersAndFirstTokenIsAnEventWithoutDone) {
  submitter_.answer = [](const GenerateRequest&, ResponseSink& sink) {
    sink.OnTaken();
    sink.OnFailed(SilenceError(600'000'000));
  };
  auto responder = Post(kChatPath, kHello + R"(,"stream":true})");
  EXPECT_EQ(responder->status, 200);
  const auto events = Events(responder->body);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(
      events[0],
      R"({"error":{"message":"The request took too long: no token came for 600 s, the longest )"
      R"(silence that this server allows (--request-timeout).","type":"timeout_error",)"
      R"("param":null,"code":"deadline_exceeded"}})");
  EXPECT_TRUE(responder->closes);
  // A whole answer has its status to the end.
  responder = Post(kChatPath, kHello + "}");
  EXPECT_EQ(responder->status, 504);
  EXPECT_EQ(responder->filler, "");
}

}  // namespace
}  // namespace baton::api
