// When a client is told that a worker has its request, how long it may hear nothing after that, and
// when one that found no room had better come again.
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/base/limits.h"
#include "src/router/retry_estimate.h"
#include "tests/router/fake_cluster.h"
#include "tests/router/request_phase.h"

namespace baton::router {

using limits::kMaxRetryAfterS;
using scheduler::FinishReason;

namespace {

using ::testing::HasSubstr;

constexpr int64_t kSecond = 1'000'000;

TEST(RequestTakenTest, BothWorkersHaveItBeforeTheClientIsTold) {
  for (const bool decode_first : {true, false}) {
    FakeCluster cluster;
    cluster.JoinPair();
    const RequestUid uid = PlayTo(cluster, Phase::kPlaced);
    EXPECT_EQ(cluster.sink->num_taken, 0);
    const auto reserve = [&] { cluster.State("decode-0", uid, WorkerRequestState::kReserved); };
    const auto begin = [&] {
      cluster.State("prefill-0", uid, WorkerRequestState::kPrefillStarted);
    };
    decode_first ? reserve() : begin();
    EXPECT_EQ(cluster.sink->num_taken, 0) << "the other may refuse it";
    decode_first ? begin() : reserve();
    EXPECT_EQ(cluster.sink->num_taken, 1);
    cluster.Text("prefill-0", uid, 0, "a");
    EXPECT_EQ(cluster.sink->num_taken, 1);
  }
}

TEST(RequestTakenTest, APromptThatWaitsAtItsWorkerIsTakenAfterASecond) {
  FakeCluster cluster;
  cluster.JoinPair();
  PlayTo(cluster, Phase::kReserved);
  cluster.Advance(900'000, {"decode-0", "prefill-0"});
  EXPECT_EQ(cluster.sink->num_taken, 0);
  cluster.Advance(200'000, {"decode-0", "prefill-0"});
  EXPECT_EQ(cluster.sink->num_taken, 1);
}

TEST(RequestTakenTest, AWorkerAloneHasItOnceItBegins) {
  RouterCoreConfig config;
  config.mode = ServeMode::kAggregated;
  FakeCluster cluster(config);
  cluster.Join(FakeCluster::Describe("decode-0", WorkerRole::kDecode));
  const RequestUid uid = cluster.Submit(cluster.Request("prompt"));
  EXPECT_EQ(cluster.sink->num_taken, 0);
  cluster.State("decode-0", uid, WorkerRequestState::kPrefillStarted);
  EXPECT_EQ(cluster.sink->num_taken, 1);
}

TEST(RequestTakenTest, WhoIsRefusedOrWaitsIsToldNothing) {
  FakeCluster cluster;
  cluster.JoinPair();
  PlayTo(cluster, Phase::kQueued);
  for (int tick = 0; tick < 110; ++tick) {  // the pool stays full beyond the queue wait
    cluster.now_us += 100'000;
    cluster.Report("decode-0", {}, 0);
    cluster.Report("prefill-0", {"decode-0"});
    cluster.core.Tick(cluster.now_us);
  }
  ASSERT_TRUE(cluster.sink->error.has_value());
  EXPECT_EQ(cluster.sink->error->code, ErrorCode::kQueueTimeout);
  EXPECT_EQ(cluster.sink->num_taken, 0);

  FakeCluster refusing;
  refusing.JoinPair();
  const RequestUid uid = PlayTo(refusing, Phase::kReserved);
  refusing.State("prefill-0", uid, WorkerRequestState::kRejected, StatusCode::kResourceExhausted);
  EXPECT_EQ(refusing.sink->num_taken, 0) << "the decode worker alone is not enough";
}

TEST(RequestTakenTest, TheClientIsToldOnceWhateverHappensToItsWorkers) {
  FakeCluster cluster;
  JoinOldPair(cluster);
  const RequestUid uid = PlayTo(cluster, Phase::kPrefilling);
  EXPECT_EQ(cluster.sink->num_taken, 1);
  cluster.State("prefill-0", uid, WorkerRequestState::kFailed, StatusCode::kInternal);
  cluster.Advance(200'000, {"decode-0", "prefill-0"});
  // As a pair or alone: the second attempt is taken too.
  cluster.State("decode-0", uid, WorkerRequestState::kReserved, StatusCode::kOk, 2);
  for (const char* worker : {"decode-0", "prefill-0"}) {
    cluster.State(worker, uid, WorkerRequestState::kPrefillStarted, StatusCode::kOk, 2);
  }
  EXPECT_EQ(cluster.sink->num_taken, 1);
}

// One token a minute for an hour: it flows.
TEST(RequestSilenceTest, AnAnswerThatFlowsHasNoEnd) {
  FakeCluster cluster;
  cluster.JoinPair();
  const RequestUid uid = PlayTo(cluster, Phase::kDecoding, 100);
  for (uint32_t minute = 0; minute < 60; ++minute) {
    for (int i = 0; i < 6; ++i) {
      cluster.Advance(10 * kSecond - 1, {"decode-0", "prefill-0"});
      cluster.State("decode-0", uid, WorkerRequestState::kDecodeStarted);  // it lives
    }
    cluster.Text("decode-0", uid, 3 + minute, "x");
    ASSERT_FALSE(cluster.sink->ended()) << minute;
  }
  EXPECT_EQ(cluster.sink->tokens.size(), 63u);
}

TEST(RequestSilenceTest, SilenceEndsARequestFromItsArrivalOrItsLastToken) {
  for (const bool has_token : {false, true}) {
    RouterCoreConfig config;
    config.request_timeout_us = 5 * kSecond;
    FakeCluster cluster(config);
    cluster.JoinPair();
    const RequestUid uid = PlayTo(cluster, has_token ? Phase::kDecoding : Phase::kPrefilling);
    cluster.Advance(4 * kSecond, {"decode-0", "prefill-0"});
    if (has_token) cluster.Text("decode-0", uid, 3, "d");
    cluster.Advance(900'000, {"decode-0", "prefill-0"});
    EXPECT_FALSE(cluster.sink->ended());
    cluster.Advance(has_token ? 4'200'000 : 200'000, {"decode-0", "prefill-0"});
    ASSERT_TRUE(cluster.sink->error.has_value());
    EXPECT_EQ(HttpStatusOf(cluster.sink->error->code), 504);
    EXPECT_THAT(cluster.sink->error->Message(), HasSubstr("no token came for 5 s"));
    EXPECT_THAT(cluster.sink->error->Message(), HasSubstr("--request-timeout"));
  }
}

TEST(RequestSilenceTest, TimeThatTheRouterDidNotLiveIsNoSilence) {
  RouterCoreConfig config;
  config.request_timeout_us = 5 * kSecond;
  FakeCluster cluster(config);
  cluster.JoinPair();
  PlayTo(cluster, Phase::kDecoding);
  cluster.now_us += 60 * kSecond;
  cluster.core.ForgiveSilence(60 * kSecond);
  cluster.Advance(4 * kSecond, {"decode-0", "prefill-0"});
  EXPECT_FALSE(cluster.sink->ended());
}

// The client reads a little every two seconds, for longer than the silence allowed. `complete`: all
// tokens are known at the router.
TEST(RequestSilenceTest, ASlowReaderIsNoSilenceOfAWorker) {
  for (const bool complete : {true, false}) {
    RouterCoreConfig config;
    config.request_timeout_us = 5 * kSecond;
    FakeCluster cluster(config);
    cluster.JoinPair();
    const RequestUid uid = PlayTo(cluster, Phase::kDecoding);
    cluster.sink->buffered = 2 * kPauseBytes;
    cluster.Text("decode-0", uid, 3, "def", complete ? FinishReason::kLength : FinishReason::kNone);
    for (int i = 0; i < 10; ++i) {
      cluster.sink->buffered -= 1000;
      cluster.Advance(2 * kSecond, {"decode-0", "prefill-0"});
      if (!complete)
        cluster.State("decode-0", uid, WorkerRequestState::kDecodeStarted);  // it lives
      ASSERT_FALSE(cluster.sink->ended()) << i;
    }
    cluster.sink->buffered = 0;
    cluster.Advance(kSecond, {"decode-0", "prefill-0"});
    EXPECT_EQ(cluster.sink->Text(), "abcdef");
    EXPECT_EQ(cluster.sink->result.has_value(), complete);
    EXPECT_FALSE(cluster.sink->error.has_value());
    if (complete) continue;
    cluster.Advance(5 * kSecond, {"decode-0", "prefill-0"});
    ASSERT_TRUE(cluster.sink->error.has_value()) << "now the worker is waited for";
    EXPECT_EQ(HttpStatusOf(cluster.sink->error->code), 504);
  }
}

TEST(RequestSilenceTest, ADeadlineOfTheClientIsTotalAndNamedAsItsOwn) {
  FakeCluster cluster;
  cluster.JoinPair();
  GenerateRequest request = cluster.Request("prompt", 100);
  request.timeout_us = 3 * kSecond;
  request.fields.timeout = "grpc-timeout";
  const RequestUid uid = cluster.Submit(std::move(request));
  EXPECT_EQ(cluster.Log("decode-0").Of(Order::Kind::kDecode).at(0).deadline_ms, 3'000u);
  cluster.State("decode-0", uid, WorkerRequestState::kReserved);
  for (uint32_t i = 0; i < 29; ++i) {
    cluster.Text(i == 0 ? "prefill-0" : "decode-0", uid, i, "x");
    cluster.Advance(100'000, {"decode-0", "prefill-0"});
  }
  EXPECT_FALSE(cluster.sink->ended());
  cluster.Advance(200'000, {"decode-0", "prefill-0"});
  ASSERT_TRUE(cluster.sink->error.has_value());
  EXPECT_EQ(cluster.sink->error->param, "grpc-timeout");
  EXPECT_THAT(cluster.sink->error->Message(), HasSubstr("'grpc-timeout' gave it 3000 ms"));
}

RunningAnswer Running(int64_t age_s, int64_t decode_s, uint32_t num_tokens, uint32_t max_tokens) {
  return {.age_us = age_s * kSecond,
          .decode_us = decode_s * kSecond,
          .num_tokens = num_tokens,
          .max_tokens = max_tokens};
}

TEST(RetryEstimateTest, PlacesComeFreeAsTheRunningAnswersEnd) {
  RetryEstimate estimate;
  EXPECT_EQ(estimate.AfterS(100), 1u) << "nothing runs";
  // At a token a second: 10, 20 and 30 s to go.
  estimate.Look({Running(12, 10, 11, 31), Running(12, 10, 11, 21), Running(12, 10, 11, 41)}, 0);
  EXPECT_EQ(estimate.AfterS(0), 10u);
  EXPECT_EQ(estimate.AfterS(1), 20u);
  EXPECT_EQ(estimate.AfterS(2), 30u);
  EXPECT_EQ(estimate.AfterS(3), 42u) << "the first place again, after a whole answer of 32 s";
  EXPECT_EQ(estimate.AfterS(1'000'000), kMaxRetryAfterS);
}

TEST(RetryEstimateTest, WhatOthersTookBoundsAnswersOfOpenLength) {
  RetryEstimate estimate;
  for (int i = 0; i < 40; ++i) estimate.OnServed(8 * kSecond, 8);
  estimate.Look({Running(3, 2, 3, 8000)}, 0);
  EXPECT_EQ(estimate.AfterS(0), 5u);
  EXPECT_EQ(estimate.AfterS(1), 13u);
  estimate.Look({Running(30, 29, 30, 8000)}, kSecond);
  EXPECT_EQ(estimate.AfterS(0), 1u) << "it has taken longer than most: it ends soon";
}

// A prompt of 1 s and 20 tokens took 2 s while few ran: now a token takes half a second.
TEST(RetryEstimateTest, AnswersTakeAsLongAsTheirTokensTakeNow) {
  RetryEstimate estimate;
  for (int i = 0; i < 40; ++i) estimate.OnServed(2 * kSecond, 20);
  const RunningAnswer third = {
      .age_us = 2 * kSecond, .decode_us = kSecond, .num_tokens = 3, .max_tokens = 8000};
  estimate.Look({third, third}, 0);
  EXPECT_EQ(estimate.AfterS(0), 9u) << "17 tokens: 8.5 s";
  EXPECT_EQ(estimate.AfterS(1), 9u);
  EXPECT_EQ(estimate.AfterS(2), 19u) << "8.5 s, then a whole answer of 10.5 s";
  EXPECT_EQ(estimate.AfterS(5), 30u) << "8.5 s and two whole answers: 29.5 s";
}

// The one that has no token yet has all its decode time before it.
TEST(RetryEstimateTest, AnAnswerThatHasNotBegunHasItsTokensToCome) {
  RetryEstimate estimate;
  const RunningAnswer third = {
      .age_us = 3 * kSecond, .decode_us = kSecond, .num_tokens = 3, .max_tokens = 83};
  const RunningAnswer fresh = {.age_us = kSecond, .num_tokens = 0, .max_tokens = 40};
  const RunningAnswer first = {.age_us = 2 * kSecond, .num_tokens = 1, .max_tokens = 59};
  estimate.Look({third, fresh, first}, 0);
  EXPECT_EQ(estimate.AfterS(0), 21u) << "a second of its prompt, 40 tokens of half a second";
  EXPECT_EQ(estimate.AfterS(1), 29u) << "58 tokens";
  EXPECT_EQ(estimate.AfterS(2), 40u) << "80 tokens";
}

TEST(RetryEstimateTest, OfWhatHasSaidNothingAsLongAgain) {
  RetryEstimate estimate;
  EXPECT_TRUE(estimate.IsStale(0));
  estimate.Look({Running(7, 0, 0, 100)}, 0);
  EXPECT_EQ(estimate.AfterS(0), 7u);
  EXPECT_FALSE(estimate.IsStale(50'000));
  EXPECT_TRUE(estimate.IsStale(100'000));
}

// Eight run at a token a second and have 30 s to go; ten more find no room within half a second.
TEST(RetryEstimateTest, ARefusalOfAFullServerNamesTheTimeOfItsTurn) {
  RouterCoreConfig config;
  config.mode = ServeMode::kAggregated;
  config.queue_wait_us = kSecond / 2;
  FakeCluster cluster(config);
  cluster.Join(FakeCluster::Describe("decode-0", WorkerRole::kDecode));
  std::vector<RequestUid> running;
  for (int i = 0; i < 8; ++i) running.push_back(cluster.Submit(cluster.Request("p", 33)));
  for (uint32_t token = 0; token < 3; ++token) {
    for (const RequestUid uid : running) cluster.Text("decode-0", uid, token, "x");
    if (token < 2) cluster.Advance(kSecond, {"decode-0"});
  }
  std::vector<std::shared_ptr<RecordingSink>> late;
  for (int i = 0; i < 10; ++i) {
    cluster.Submit(cluster.Request("p", 33));
    late.push_back(cluster.sink);
  }
  cluster.Advance(kSecond, {"decode-0"});
  uint32_t longest_s = 0;
  for (const auto& sink : late) {
    ASSERT_TRUE(sink->error.has_value());
    EXPECT_EQ(sink->error->code, ErrorCode::kQueueTimeout);
    EXPECT_GE(sink->error->retry_after_s, 29u);
    longest_s = std::max(longest_s, sink->error->retry_after_s);
  }
  EXPECT_EQ(longest_s, 60u) << "two of them wait for a whole answer more, bounded";
}

}  // namespace
}  // namespace baton::router
