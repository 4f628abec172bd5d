// Tests what RouterCore counts of its pools and of the ends of choices.
#include <algorithm>

#include "gtest/gtest.h"

#include "tests/router/fake_cluster.h"
#include "tests/router/request_phase.h"

namespace baton::router {

using obs::Counter;
using obs::kRequestCodes;
using scheduler::FinishReason;

namespace {

TEST(RouterMetricsTest, TheDecodeWorkersCountAsOnePool) {
  FakeCluster cluster;
  cluster.core.Tick(cluster.now_us);
  EXPECT_EQ(cluster.metrics.kv_pool_blocks->value(), 0);
  EXPECT_EQ(cluster.metrics.decode_kv_pressure->value(), 0);
  cluster.JoinPair();
  WorkerDescription larger = FakeCluster::Describe("decode-1", WorkerRole::kDecode);
  larger.num_blocks = 192;
  cluster.Join(std::move(larger));
  cluster.Report("decode-0", {}, 0);  // all 64 in use
  cluster.core.Tick(cluster.now_us);
  EXPECT_EQ(cluster.metrics.kv_pool_blocks->value(), 256) << "the prefill worker's are not in it";
  EXPECT_EQ(cluster.metrics.kv_block_tokens->value(), 16);
  EXPECT_EQ(cluster.metrics.decode_kv_pressure->value(), 0.25);
}

TEST(RouterMetricsTest, ALostDecodeWorkerLeavesThePool) {
  FakeCluster cluster;
  cluster.JoinPair();
  cluster.core.Tick(cluster.now_us);
  ASSERT_EQ(cluster.metrics.kv_pool_blocks->value(), 64);
  cluster.core.OnLeaseClosed(cluster.leases["decode-0"]);
  cluster.core.Tick(cluster.now_us);
  EXPECT_EQ(cluster.metrics.kv_pool_blocks->value(), 0);
  EXPECT_EQ(cluster.metrics.kv_block_tokens->value(), 0);
}

TEST(RouterMetricsTest, ChoicesAreCountedByWhatEndedThem) {
  FakeCluster cluster;
  cluster.JoinPair();
  GenerateRequest request = cluster.Request("prompt", 2);
  request.num_choices = 2;
  const RequestUid uid = cluster.Submit(std::move(request));
  cluster.State("decode-0", uid, WorkerRequestState::kReserved);
  cluster.State("decode-0", uid, WorkerRequestState::kVerified);
  cluster.Tokens("decode-0", {FakeCluster::Token(uid, 0, 'a', FinishReason::kStop, 0)});
  EXPECT_EQ(cluster.metrics.choices_finished_total[0]->value(), 0u) << "the request goes on";
  cluster.Tokens("decode-0", {FakeCluster::Token(uid, 0, 'b', FinishReason::kNone, 1),
                              FakeCluster::Token(uid, 1, 'c', FinishReason::kLength, 1)});
  ASSERT_TRUE(cluster.sink->result.has_value());
  EXPECT_EQ(cluster.metrics.choices_finished_total[0]->value(), 1u);
  EXPECT_EQ(cluster.metrics.choices_finished_total[1]->value(), 1u);
}

// A client may look at the metrics as soon as it has its answer.
TEST(RouterMetricsTest, WhoIsToldOfTheEndFindsItCounted) {
  for (const bool good : {true, false}) {
    FakeCluster cluster;
    cluster.JoinPair();
    const RequestUid uid = cluster.Submit(cluster.Request("prompt", 1));
    cluster.State("decode-0", uid, WorkerRequestState::kReserved);
    cluster.State("decode-0", uid, WorkerRequestState::kVerified);
    ASSERT_EQ(cluster.metrics.requests_running->value(), 1);
    int num_told = 0;
    cluster.sink->on_end = [&] {
      ++num_told;
      EXPECT_EQ(cluster.metrics.requests_running->value(), 0);
      uint64_t num_counted = 0;
      for (const Counter* counter : cluster.metrics.requests_total) {
        num_counted += counter->value();
      }
      EXPECT_EQ(num_counted, 1u);
      EXPECT_EQ(cluster.metrics.prompt_tokens_total->value(), good ? 6u : 0u);
    };
    if (good) {
      cluster.Tokens("decode-0", {FakeCluster::Token(uid, 0, 'a', FinishReason::kLength, 0)});
    } else {
      cluster.core.Cancel(uid, CancelCause::kClientLeft, cluster.now_us);
    }
    EXPECT_EQ(num_told, 1);
  }
}

// The number of requests that were answered with `code`.
uint64_t NumAnswered(const FakeCluster& cluster, int code) {
  const auto at = std::find(kRequestCodes.begin(), kRequestCodes.end(), code);
  return cluster.metrics.requests_total[static_cast<size_t>(at - kRequestCodes.begin())]->value();
}

// An answer that finds no memory at its API, amid its tokens or with the last one.
TEST(RouterMetricsTest, AnAnswerThatItsSinkGivesUpIsCountedAsTheClientSeesIt) {
  for (const ErrorCode code : {ErrorCode::kQueueFull, ErrorCode::kConflict}) {
    for (const bool finishes : {true, false}) {
      FakeCluster cluster;
      cluster.JoinPair();
      const RequestUid uid = cluster.Submit(cluster.Request("prompt", 2));
      cluster.State("decode-0", uid, WorkerRequestState::kReserved);
      cluster.State("decode-0", uid, WorkerRequestState::kVerified);
      cluster.Tokens("decode-0", {FakeCluster::Token(uid, 0, 'a', FinishReason::kNone, 0)});
      cluster.sink->own = PlainError(code);
      if (finishes) {
        cluster.Tokens("decode-0", {FakeCluster::Token(uid, 1, 'b', FinishReason::kLength, 0)});
      } else {
        cluster.core.Cancel(uid, CancelCause::kClientLeft, cluster.now_us);
      }
      EXPECT_EQ(NumAnswered(cluster, HttpStatusOf(code)), 1u) << finishes;
      EXPECT_EQ(NumAnswered(cluster, 200), 0u) << finishes;
      EXPECT_EQ(NumAnswered(cluster, 499), 0u) << finishes;
    }
  }
}

// A request that ends badly after its first token is in both counters of tokens, others in none.
TEST(RouterMetricsTest, PromptsAreCountedWithTheirFirstToken) {
  for (const bool has_token : {true, false}) {
    FakeCluster cluster;
    cluster.JoinPair();
    const RequestUid uid = cluster.Submit(cluster.Request("prompt", 9));
    cluster.State("decode-0", uid, WorkerRequestState::kReserved);
    cluster.State("decode-0", uid, WorkerRequestState::kVerified);
    if (has_token) {
      cluster.Tokens("decode-0", {FakeCluster::Token(uid, 0, 'a', FinishReason::kNone, 0)});
      cluster.Tokens("decode-0", {FakeCluster::Token(uid, 1, 'b', FinishReason::kNone, 0)});
    }
    cluster.core.Cancel(uid, CancelCause::kClientLeft, cluster.now_us);
    EXPECT_EQ(cluster.metrics.prompt_tokens_total->value(), has_token ? 6u : 0u);
    EXPECT_EQ(cluster.metrics.generation_tokens_total->value(), has_token ? 2u : 0u);
  }
}

}  // namespace
}  // namespace baton::router
