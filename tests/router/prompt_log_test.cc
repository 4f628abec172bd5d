// Log-probabilities of prompts on their way through the router: before the first token, once, from
// workers that know the field.
#include <string>
#include <utility>

#include "gtest/gtest.h"

#include "tests/router/fake_cluster.h"

namespace baton::router {

using scheduler::FinishReason;

namespace {

class PromptLogTest : public testing::Test {
 protected:
  static WorkerDescription Describe(const std::string& id, WorkerRole role, bool logs = true) {
    WorkerDescription worker = FakeCluster::Describe(id, role);
    worker.logs_prompts = logs;
    return worker;
  }
  void JoinPair() {
    cluster.Join(Describe("decode-0", WorkerRole::kDecode));
    cluster.Join(Describe("prefill-0", WorkerRole::kPrefill));
    cluster.Report("prefill-0", {"decode-0"});
  }
  GenerateRequest Logged(std::string_view prompt) {
    GenerateRequest request = cluster.Request(prompt, 2);
    request.sampling.prompt_logprobs = 1;
    request.fields.prompt_logprobs = "echo";
    return request;
  }
  static WorkerToken Row(RequestUid uid, uint32_t pos, char token, uint32_t attempt = 1) {
    WorkerToken row = FakeCluster::Token(uid, 0, token);
    row.attempt = attempt;
    row.prompt_pos = pos;
    row.rank = pos;
    row.has_logprob = true;
    row.logprob = -static_cast<float>(pos);
    row.top_logprobs = {{'z', -0.5f}};
    return row;
  }

  explicit PromptLogTest(RouterCoreConfig config = {}) : cluster(config) {}

  FakeCluster cluster;
};

// Nothing waits for a prefill worker.
class LocalPromptLogTest : public PromptLogTest {
 protected:
  LocalPromptLogTest() : PromptLogTest({.mode = ServeMode::kAggregated}) {}
};

// Against an objective that every first token meets.
class MeasuredPromptLogTest : public PromptLogTest {
 protected:
  static RouterCoreConfig Config() {
    RouterCoreConfig config{.mode = ServeMode::kAggregated};
    config.objective.ttft_us = 500'000'000;
    return config;
  }
  MeasuredPromptLogTest() : PromptLogTest(Config()) {}

  // Observations of all ends of a request.
  template <typename Histograms>
  static uint64_t CountOf(const Histograms& histograms) {
    uint64_t count = 0;
    for (const obs::Histogram* histogram : histograms) count += histogram->Read().cumulative.back();
    return count;
  }
};

// The answer of `echo` with max_tokens 0 has no token, though one is computed.
TEST_F(MeasuredPromptLogTest, APromptAloneCountsAsOneAndItsTokenAsNone) {
  cluster.Join(Describe("decode-0", WorkerRole::kDecode));
  for (const bool is_alone : {true, false}) {
    GenerateRequest request = Logged("abc");
    request.echoes_alone = is_alone;
    request.sampling.max_tokens = 1;
    const RequestUid uid = cluster.Submit(std::move(request));
    cluster.State("decode-0", uid, WorkerRequestState::kReserved);
    cluster.Tokens("decode-0", {Row(uid, 1, 'b'), Row(uid, 2, 'c')});
    cluster.Text("decode-0", uid, 0, "x", is_alone ? FinishReason::kStop : FinishReason::kLength);
    ASSERT_TRUE(cluster.sink->result.has_value());
    EXPECT_EQ(cluster.metrics.choices_finished_total[0]->value(), 0u);
    EXPECT_EQ(cluster.metrics.choices_finished_total[1]->value(), is_alone ? 1u : 2u);
    const uint32_t num_tokens = is_alone ? 0 : 1;
    EXPECT_EQ(cluster.sink->result->num_completion_tokens, num_tokens);
    EXPECT_EQ(cluster.sink->result->num_prompt_tokens, 3u);
    EXPECT_EQ(cluster.metrics.generation_tokens_total->value(), num_tokens);
    EXPECT_EQ(cluster.metrics.prompt_tokens_total->value(), is_alone ? 3u : 6u);
    EXPECT_EQ(CountOf(cluster.metrics.time_to_first_token_seconds), num_tokens);
    EXPECT_EQ(CountOf(cluster.metrics.e2e_request_latency_seconds), num_tokens);
    EXPECT_EQ(CountOf(cluster.metrics.stage_seconds), num_tokens * obs::kNumRequestStages);
    EXPECT_EQ(cluster.metrics.slo_requests_total[0][0]->value() +
                  cluster.metrics.slo_requests_total[0][1]->value(),
              num_tokens);
  }
}

TEST_F(PromptLogTest, TokensWaitForThem) {
  JoinPair();
  const RequestUid uid = cluster.Submit(Logged("abc"));
  cluster.State("decode-0", uid, WorkerRequestState::kReserved);
  cluster.Tokens("prefill-0", {Row(uid, 1, 'b')});
  // The decode worker's stream is ahead.
  cluster.Tokens("decode-0",
                 {cluster.Token(uid, 0, 'x'), cluster.Token(uid, 1, 'y', FinishReason::kLength)});
  cluster.State("decode-0", uid, WorkerRequestState::kFinished);
  EXPECT_TRUE(cluster.sink->tokens.empty());
  EXPECT_FALSE(cluster.sink->ended());
  cluster.Tokens("prefill-0", {Row(uid, 2, 'c')});
  ASSERT_NE(cluster.sink->prompt_log, nullptr);
  const PromptLogprobs& log = *cluster.sink->prompt_log;
  ASSERT_EQ(log.rows.size(), 2u);
  EXPECT_EQ(log.rows[1].logprob, -2.0f);
  EXPECT_EQ(log.rows[1].rank, 2u);
  ASSERT_EQ(log.TopOf(1).size(), 1u);
  EXPECT_EQ(log.TopOf(1)[0].token, 'z');
  EXPECT_EQ(cluster.sink->Text(), "xy");
  EXPECT_TRUE(cluster.sink->result.has_value());
}

TEST_F(LocalPromptLogTest, WhatAnotherAttemptRepeatsIsTakenOnce) {
  cluster.Join(Describe("decode-0", WorkerRole::kDecode));
  const RequestUid uid = cluster.Submit(Logged("abcd"));
  cluster.State("decode-0", uid, WorkerRequestState::kReserved);
  cluster.Tokens("decode-0", {Row(uid, 1, 'b'), Row(uid, 2, 'c'), Row(uid, 1, 'b', 2),
                              Row(uid, 2, 'c', 2), Row(uid, 3, 'd', 2)});
  ASSERT_NE(cluster.sink->prompt_log, nullptr);
  EXPECT_EQ(cluster.sink->prompt_log->rows.size(), 3u);
}

TEST_F(LocalPromptLogTest, AnotherTokenThanThePromptsFailsTheRequest) {
  cluster.Join(Describe("decode-0", WorkerRole::kDecode));
  const RequestUid uid = cluster.Submit(Logged("abc"));
  cluster.Tokens("decode-0", {Row(uid, 1, 'x')});
  ASSERT_TRUE(cluster.sink->error.has_value());
  EXPECT_EQ(cluster.sink->error->code, ErrorCode::kWorkerFailed);
}

TEST_F(LocalPromptLogTest, AWorkerThatEndsWithoutThemIsNotBelieved) {
  cluster.Join(Describe("decode-0", WorkerRole::kDecode));
  const RequestUid uid = cluster.Submit(Logged("abc"));
  cluster.State("decode-0", uid, WorkerRequestState::kReserved);
  cluster.Text("decode-0", uid, 0, "xy", FinishReason::kLength);
  cluster.State("decode-0", uid, WorkerRequestState::kFinished);
  ASSERT_TRUE(cluster.sink->error.has_value());
  EXPECT_EQ(cluster.sink->error->code, ErrorCode::kWorkerLost);
  EXPECT_TRUE(cluster.sink->tokens.empty());
}

TEST_F(LocalPromptLogTest, AWorkerOfAnOlderReleaseGetsNone) {
  cluster.Join(Describe("decode-0", WorkerRole::kDecode, false));
  cluster.Submit(Logged("abc"));
  ASSERT_TRUE(cluster.sink->error.has_value());
  EXPECT_EQ(cluster.sink->error->code, ErrorCode::kUnsupported);
  EXPECT_EQ(cluster.sink->error->param, "echo");
  EXPECT_TRUE(cluster.Log("decode-0").Of(Order::Kind::kDecode).empty());
  cluster.Join(Describe("decode-1", WorkerRole::kDecode));
  cluster.Submit(Logged("abc"));
  EXPECT_TRUE(cluster.Log("decode-0").Of(Order::Kind::kDecode).empty());
  EXPECT_EQ(cluster.Log("decode-1").Of(Order::Kind::kDecode).size(), 1u);
}

TEST_F(LocalPromptLogTest, APromptOfOneTokenHasNone) {
  cluster.Join(Describe("decode-0", WorkerRole::kDecode, false));
  const RequestUid uid = cluster.Submit(Logged("a"));
  cluster.State("decode-0", uid, WorkerRequestState::kReserved);
  cluster.Text("decode-0", uid, 0, "xy", FinishReason::kLength);
  EXPECT_EQ(cluster.sink->Text(), "xy");
}

}  // namespace
}  // namespace baton::router
