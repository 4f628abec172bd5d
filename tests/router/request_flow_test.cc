// The good ways through RouterCore: tokens of two workers become one answer.
#include <string>

#include "gtest/gtest.h"

#include "tests/router/fake_cluster.h"
#include "tests/router/request_phase.h"

namespace baton::router {

using obs::kRequestFinishNames;
using obs::RequestFinish;
using scheduler::FinishReason;
using text::StopMatcher;

namespace {

constexpr size_t kByLength = static_cast<size_t>(RequestFinish::kLength);

TEST(RequestFlowTest, BothWorkersStartAtOnceAndKnowEachOther) {
  FakeCluster cluster;
  cluster.JoinPair();
  GenerateRequest request = cluster.Request("hello", 7);
  request.sampling.seed = 42;
  request.num_choices = 3;
  const RequestUid uid = cluster.Submit(std::move(request));
  const auto decode = cluster.Log("decode-0").Of(Order::Kind::kDecode);
  const auto prefill = cluster.Log("prefill-0").Of(Order::Kind::kPrefill);
  ASSERT_EQ(decode.size(), 1u);
  ASSERT_EQ(prefill.size(), 1u);
  for (const Order& order : {decode[0], prefill[0]}) {
    EXPECT_EQ(order.uid, uid);
    EXPECT_EQ(order.attempt, 1u);
    EXPECT_EQ(order.prompt, BytesOf("hello"));
    EXPECT_EQ(order.sampling.seed, 42u);
    EXPECT_EQ(order.sampling.max_tokens, 7u);
    EXPECT_EQ(order.num_choices, 3u);
    EXPECT_EQ(order.deadline_ms, 86'400'000u) << "no deadline: the most that a worker takes";
  }
  EXPECT_EQ(decode[0].peer, "prefill-0");
  EXPECT_EQ(prefill[0].peer, "decode-0");
}

// The worker that computes the prompt knows; its word is bounded by what is possible.
TEST(RequestFlowTest, CachedTokensAreThoseOfTheWorkerThatComputesThePrompt) {
  for (const auto& [told, counted] : {std::pair{4u, 4u}, std::pair{5u, 5u}, std::pair{600u, 5u}}) {
    FakeCluster cluster;
    cluster.JoinPair();
    const RequestUid uid = cluster.Submit(cluster.Request("prompt", 2));
    cluster.State("decode-0", uid, WorkerRequestState::kReserved);
    WorkerRequestStatus status;
    status.uid = uid;
    status.attempt = 1;
    status.state = WorkerRequestState::kPrefillStarted;
    status.cached_tokens = told;
    cluster.core.OnSessionStatus(cluster.Session("prefill-0"), status, cluster.now_us);
    cluster.State("decode-0", uid, WorkerRequestState::kVerified);
    cluster.Text("decode-0", uid, 0, "ab", FinishReason::kLength);
    ASSERT_TRUE(cluster.sink->result.has_value());
    EXPECT_EQ(cluster.sink->result->timings.cached_tokens, counted) << "of 6, told " << told;
    EXPECT_EQ(cluster.sink->result->timings.prefix_source(), "pool");
    const auto& sources = cluster.metrics.prefix_tokens_total;
    EXPECT_EQ(sources[static_cast<size_t>(obs::PrefixSource::kPool)]->value(), counted);
    EXPECT_EQ(sources[static_cast<size_t>(obs::PrefixSource::kComputed)]->value(), 6u - counted);
  }
}

TEST(RequestFlowTest, TwoStreamsBecomeOne) {
  FakeCluster cluster;
  cluster.JoinPair();
  const RequestUid uid = PlayTo(cluster, Phase::kDecoding);
  EXPECT_EQ(cluster.sink->Text(), "abc");
  cluster.Text("decode-0", uid, 3, "d", FinishReason::kLength);
  EXPECT_EQ(cluster.sink->Text(), "abcd");
  ASSERT_TRUE(cluster.sink->result.has_value());
  EXPECT_EQ(cluster.sink->result->num_prompt_tokens, 6u);
  EXPECT_EQ(cluster.sink->result->num_completion_tokens, 4u);
  EXPECT_EQ(cluster.sink->Finish(), FinishReason::kLength);
  const RequestTimings& timings = cluster.sink->result->timings;
  EXPECT_TRUE(timings.disaggregated);
  EXPECT_EQ(timings.prefill_worker, "prefill-0");
  EXPECT_EQ(timings.decode_worker, "decode-0");
  EXPECT_EQ(timings.transport, "shm");
  EXPECT_EQ(timings.kv_bytes, 4096u);
  EXPECT_TRUE(timings.exact);
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(cluster.sink->tokens[i].index, i);
    EXPECT_EQ(cluster.sink->tokens[i].is_last, i == 3);
  }
  EXPECT_EQ(cluster.core.num_live(), 0u);
  EXPECT_TRUE(cluster.Log("decode-0").Of(Order::Kind::kCancel).empty())
      << "a worker that saw the end needs no cancellation";
  EXPECT_TRUE(cluster.Log("prefill-0").Of(Order::Kind::kCancel).empty());
  EXPECT_EQ(cluster.PlacedBlocks("decode-0"), 0u);
  EXPECT_EQ(cluster.PlacedBlocks("prefill-0"), 0u);
}

TEST(RequestFlowTest, TokenZeroWaitsForTheReservation) {
  FakeCluster cluster;
  cluster.JoinPair();
  const RequestUid uid = PlayTo(cluster, Phase::kPlaced);
  cluster.Text("prefill-0", uid, 0, "a");
  EXPECT_TRUE(cluster.sink->tokens.empty()) << "a refusal must still be able to become a status";
  cluster.State("decode-0", uid, WorkerRequestState::kReserved);
  EXPECT_EQ(cluster.sink->Text(), "a");
}

TEST(RequestFlowTest, FirstTokenIsEndOfGeneration) {
  FakeCluster cluster;
  cluster.JoinPair();
  const RequestUid uid = PlayTo(cluster, Phase::kPrefilling);
  cluster.Tokens("prefill-0", {FakeCluster::Token(uid, 0, kTestEos, FinishReason::kStop)});
  ASSERT_TRUE(cluster.sink->result.has_value());
  EXPECT_EQ(cluster.sink->Text(), "");
  EXPECT_EQ(cluster.sink->Finish(), FinishReason::kStop);
  EXPECT_EQ(cluster.sink->result->num_completion_tokens, 1u);
  // The transfer is still under way: both are told, so that its blocks are freed at once.
  EXPECT_EQ(cluster.Log("decode-0").Of(Order::Kind::kCancel).size(), 1u);
  EXPECT_EQ(cluster.Log("prefill-0").Of(Order::Kind::kCancel).size(), 1u);
}

TEST(RequestFlowTest, MaxTokensOne) {
  FakeCluster cluster;
  cluster.JoinPair();
  const RequestUid uid = PlayTo(cluster, Phase::kPrefilling, 1);
  cluster.Text("prefill-0", uid, 0, "x", FinishReason::kLength);
  ASSERT_TRUE(cluster.sink->result.has_value());
  EXPECT_EQ(cluster.sink->Text(), "x");
  EXPECT_EQ(cluster.sink->Finish(), FinishReason::kLength);
  // The decode worker's copy of the token comes too late and changes nothing.
  cluster.Text("decode-0", uid, 0, "x", FinishReason::kLength);
  cluster.State("decode-0", uid, WorkerRequestState::kFinished);
  EXPECT_EQ(cluster.sink->tokens.size(), 1u);
}

TEST(RequestFlowTest, StopTextAcrossTheHandOff) {
  FakeCluster cluster;
  cluster.JoinPair();
  GenerateRequest request = cluster.Request("p");
  request.stop = StopMatcher::Create({"zz", "ab"}).value();
  const RequestUid uid = cluster.Submit(std::move(request));
  cluster.State("decode-0", uid, WorkerRequestState::kReserved);
  cluster.Text("prefill-0", uid, 0, "a");
  ASSERT_EQ(cluster.sink->tokens.size(), 1u) << "one call per token, also while text is held";
  EXPECT_EQ(cluster.sink->Text(), "");
  cluster.State("decode-0", uid, WorkerRequestState::kVerified);
  cluster.Text("decode-0", uid, 0, "ab");
  ASSERT_TRUE(cluster.sink->result.has_value());
  EXPECT_EQ(cluster.sink->Text(), "");
  EXPECT_EQ(cluster.sink->Finish(), FinishReason::kStop);
  EXPECT_EQ(cluster.sink->tokens[0].stop_idx, std::nullopt);
  EXPECT_EQ(cluster.sink->tokens[1].stop_idx, 1u);
  EXPECT_EQ(cluster.sink->result->num_completion_tokens, 2u);
  EXPECT_EQ(cluster.Log("decode-0").Of(Order::Kind::kCancel).size(), 1u)
      << "the worker does not know stop texts, so it must be told";
}

TEST(RequestFlowTest, HeldTextIsReleasedWhenItIsNoStop) {
  FakeCluster cluster;
  cluster.JoinPair();
  GenerateRequest request = cluster.Request("p");
  request.stop = StopMatcher::Create({"abc"}).value();
  const RequestUid uid = cluster.Submit(std::move(request));
  cluster.Text("decode-0", uid, 0, "xabd");
  EXPECT_EQ(cluster.sink->Text(), "xabd");
  EXPECT_EQ(cluster.sink->tokens[1].text, "");
  EXPECT_EQ(cluster.sink->tokens[3].text, "abd");
  cluster.Text("decode-0", uid, 4, "ab", FinishReason::kLength);
  EXPECT_EQ(cluster.sink->Text(), "xabdab") << "the last token releases what is held";
  EXPECT_EQ(cluster.sink->Finish(), FinishReason::kLength);
}

TEST(RequestFlowTest, NoStopTextEndsAChoiceBeforeMinTokens) {
  for (const uint32_t min_tokens : {0u, 1u, 2u, 3u, 5u, 6u, 7u}) {
    SCOPED_TRACE(min_tokens);
    FakeCluster cluster;
    cluster.JoinPair();
    GenerateRequest request = cluster.Request("p");
    request.stop = StopMatcher::Create({"ab"}).value();
    request.sampling.min_tokens = min_tokens;
    const RequestUid uid = cluster.Submit(std::move(request));
    cluster.Text("decode-0", uid, 0, "abxxxab", FinishReason::kLength);
    ASSERT_TRUE(cluster.sink->result.has_value());
    // As in vLLM the first token that may end the choice is the one after min_tokens.
    const uint32_t num_tokens = min_tokens < 2 ? 2 : 7;
    EXPECT_EQ(cluster.sink->result->num_completion_tokens, num_tokens);
    EXPECT_EQ(cluster.sink->Text(), min_tokens < 2 ? "" : min_tokens < 7 ? "abxxx" : "abxxxab");
    EXPECT_EQ(cluster.sink->Finish(), min_tokens < 7 ? FinishReason::kStop : FinishReason::kLength);
  }
}

TEST(RequestFlowTest, NeverHalfACharacter) {
  FakeCluster cluster;
  cluster.JoinPair();
  const RequestUid uid = cluster.Submit(cluster.Request("p"));
  cluster.Text("decode-0", uid, 0, "\xf0\x9f\x98\x80");
  ASSERT_EQ(cluster.sink->tokens.size(), 4u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(cluster.sink->tokens[i].text, "");
  EXPECT_EQ(cluster.sink->tokens[3].text, "\xf0\x9f\x98\x80");
  cluster.Text("decode-0", uid, 4, "\xe4\xb8", FinishReason::kLength);
  EXPECT_EQ(cluster.sink->Text(), "\xf0\x9f\x98\x80\xef\xbf\xbd");
}

TEST(RequestFlowTest, StopTokenHasNoText) {
  FakeCluster cluster;
  cluster.JoinPair();
  const RequestUid uid = cluster.Submit(cluster.Request("p"));
  cluster.Text("decode-0", uid, 0, "ok.", FinishReason::kStop);
  EXPECT_EQ(cluster.sink->Text(), "ok") << "'.' was a stop token of the request";
  EXPECT_EQ(cluster.sink->tokens[2].stop_idx, std::nullopt);
  EXPECT_EQ(cluster.sink->result->num_completion_tokens, 3u);
}

TEST(RequestFlowTest, TwoCompletionsInAnyOrder) {
  for (const bool prefill_first : {true, false}) {
    FakeCluster cluster;
    cluster.JoinPair();
    const RequestUid uid = PlayTo(cluster, Phase::kVerified);
    if (prefill_first) cluster.State("prefill-0", uid, WorkerRequestState::kHandedOff);
    cluster.Text("decode-0", uid, 0, "ab");
    cluster.Text("decode-0", uid, 2, "c", FinishReason::kStop);
    cluster.State("decode-0", uid, WorkerRequestState::kFinished);
    if (!prefill_first) cluster.State("prefill-0", uid, WorkerRequestState::kHandedOff);
    EXPECT_TRUE(cluster.sink->result.has_value());
    EXPECT_EQ(cluster.PlacedBlocks("prefill-0"), 0u);
    EXPECT_EQ(cluster.metrics.stale_events_total->value(), 0u);
  }
}

TEST(RequestFlowTest, DecodeStreamAloneIsEnough) {
  FakeCluster cluster;
  cluster.JoinPair();
  const RequestUid uid = PlayTo(cluster, Phase::kReserved);
  // The prefill worker's message is late; the decode worker knows token 0 from the seal.
  cluster.State("decode-0", uid, WorkerRequestState::kVerified);
  cluster.Text("decode-0", uid, 0, "ab");
  cluster.Text("prefill-0", uid, 0, "a");
  EXPECT_EQ(cluster.sink->Text(), "ab");
}

TEST(RequestFlowTest, ChoicesAreIndependent) {
  FakeCluster cluster;
  cluster.JoinPair();
  GenerateRequest request = cluster.Request("p");
  request.num_choices = 2;
  request.stop = StopMatcher::Create({"!"}).value();
  const RequestUid uid = cluster.Submit(std::move(request));
  const auto token = [&](uint32_t choice, uint32_t index, char c,
                         FinishReason finish = FinishReason::kNone) {
    return FakeCluster::Token(uid, index, c, finish, choice);
  };
  cluster.Tokens("decode-0", {token(0, 0, 'a'), token(1, 0, 'A')});
  cluster.Tokens("decode-0", {token(0, 1, '!'), token(1, 1, 'B')});
  EXPECT_FALSE(cluster.sink->ended());
  EXPECT_EQ(cluster.sink->Finish(0), FinishReason::kStop);
  cluster.Tokens("decode-0", {token(0, 2, 'x'), token(1, 2, 'C', FinishReason::kLength)});
  ASSERT_TRUE(cluster.sink->result.has_value());
  EXPECT_EQ(cluster.sink->Text(0), "a");
  EXPECT_EQ(cluster.sink->Text(1), "ABC");
  EXPECT_EQ(cluster.sink->result->num_completion_tokens, 5u);
  EXPECT_TRUE(cluster.sink->tokens.back().is_last);
}

TEST(RequestFlowTest, LogprobsReachTheClient) {
  FakeCluster cluster;
  cluster.JoinPair();
  const RequestUid uid = cluster.Submit(cluster.Request("p"));
  WorkerToken token = FakeCluster::Token(uid, 0, 'a', FinishReason::kLength);
  token.has_logprob = true;
  token.logprob = -0.5f;
  cluster.Tokens("decode-0", {token});
  ASSERT_EQ(cluster.sink->tokens.size(), 1u);
  EXPECT_EQ(cluster.sink->tokens[0].logprob, -0.5f);
}

TEST(RequestFlowTest, UnequalTokensEndTheRequestAndAreCounted) {
  FakeCluster cluster;
  cluster.JoinPair();
  const RequestUid uid = PlayTo(cluster, Phase::kVerified);
  cluster.Text("decode-0", uid, 0, "b");
  ASSERT_TRUE(cluster.sink->error.has_value());
  EXPECT_EQ(cluster.sink->error->code, ErrorCode::kChainMismatch);
  EXPECT_EQ(cluster.metrics.kv_chain_mismatch_total->value(), 1u);
  EXPECT_EQ(cluster.Log("decode-0").Of(Order::Kind::kCancel).size(), 1u);
  EXPECT_EQ(cluster.PlacedBlocks("decode-0"), 0u);
}

TEST(RequestFlowTest, EventsOfOtherPlacementsAreDroppedAndCounted) {
  FakeCluster cluster;
  cluster.JoinPair();
  cluster.Join(FakeCluster::Describe("decode-1", WorkerRole::kDecode));
  const RequestUid uid = PlayTo(cluster, Phase::kPlaced);
  const bool on_zero = !cluster.Log("decode-0").Of(Order::Kind::kDecode).empty();
  const std::string other = on_zero ? "decode-1" : "decode-0";
  const std::string own = on_zero ? "decode-0" : "decode-1";
  cluster.Tokens(own, {FakeCluster::OfAttempt(7, FakeCluster::Token(uid, 0, 'x'))});
  cluster.Tokens(other, {FakeCluster::Token(uid, 0, 'x')});
  cluster.State(other, uid, WorkerRequestState::kFinished);
  EXPECT_TRUE(cluster.sink->tokens.empty());
  EXPECT_FALSE(cluster.sink->ended());
  EXPECT_EQ(cluster.metrics.stale_events_total->value(), 3u);
}

TEST(RequestFlowTest, TokensOutsideTheRequestEndIt) {
  const auto make = [](uint32_t choice, uint32_t index, TokenId token) {
    return FakeCluster::Token({1, 1}, index, token, FinishReason::kNone, choice);
  };
  for (const WorkerToken& bad : {make(1, 0, 'a'), make(0, 16, 'a'),
                                 make(0, 0, static_cast<TokenId>(kTestVocab)), make(0, 0, -1)}) {
    FakeCluster cluster;
    cluster.JoinPair();
    cluster.Submit(cluster.Request("p", 16));
    cluster.Tokens("decode-0", {bad});
    ASSERT_TRUE(cluster.sink->error.has_value());
    EXPECT_EQ(cluster.sink->error->code, ErrorCode::kWorkerFailed);
  }
}

TEST(RequestFlowTest, AggregatedModeUsesTheDecodeWorkerAlone) {
  RouterCoreConfig config;
  config.mode = ServeMode::kAggregated;
  FakeCluster cluster(config);
  cluster.JoinPair();
  const RequestUid uid = cluster.Submit(cluster.Request("p"));
  const auto orders = cluster.Log("decode-0").Of(Order::Kind::kDecode);
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_EQ(orders[0].peer, "");
  EXPECT_TRUE(cluster.Log("prefill-0").Of(Order::Kind::kPrefill).empty());
  cluster.Text("decode-0", uid, 0, "ab", FinishReason::kLength);
  ASSERT_TRUE(cluster.sink->result.has_value());
  const RequestTimings& timings = cluster.sink->result->timings;
  EXPECT_FALSE(timings.disaggregated);
  EXPECT_EQ(timings.prefill_worker, "decode-0");
  EXPECT_EQ(timings.transport, "local");
  EXPECT_EQ(timings.kv_bytes, 0u);
  EXPECT_TRUE(cluster.Log("decode-0").Of(Order::Kind::kCancel).empty());
}

TEST(RequestFlowTest, AdaptiveModeKeepsShortPromptsLocal) {
  RouterCoreConfig config;
  config.mode = ServeMode::kAdaptive;
  config.local_max_tokens = 4;
  FakeCluster cluster(config);
  cluster.JoinPair();
  cluster.Submit(cluster.Request("1234"));
  cluster.Submit(cluster.Request("12345"));
  const auto orders = cluster.Log("decode-0").Of(Order::Kind::kDecode);
  ASSERT_EQ(orders.size(), 2u);
  EXPECT_EQ(orders[0].peer, "");
  EXPECT_EQ(orders[1].peer, "prefill-0");
}

TEST(RequestFlowTest, StagesSumToTheWholeTime) {
  FakeCluster cluster;
  cluster.JoinPair();
  GenerateRequest request = cluster.Request("prompt");
  cluster.now_us += 1'000;
  const RequestUid uid = cluster.Submit(std::move(request));
  const auto step = [&](int64_t us) { cluster.now_us += us; };
  step(2'000);
  cluster.State("decode-0", uid, WorkerRequestState::kReserved);
  cluster.State("prefill-0", uid, WorkerRequestState::kPrefillStarted);
  step(4'000);
  cluster.State("prefill-0", uid, WorkerRequestState::kGranted);
  step(8'000);
  cluster.Text("prefill-0", uid, 0, "a");
  step(16'000);
  cluster.State("decode-0", uid, WorkerRequestState::kVerified);
  step(32'000);
  cluster.State("decode-0", uid, WorkerRequestState::kDecodeStarted);
  step(64'000);
  cluster.Text("decode-0", uid, 1, "b");
  cluster.State("decode-0", uid, WorkerRequestState::kFirstStepDone);
  step(128'000);
  cluster.Text("decode-0", uid, 2, "c", FinishReason::kLength);
  ASSERT_TRUE(cluster.sink->result.has_value());
  const RequestTimings& timings = cluster.sink->result->timings;
  EXPECT_DOUBLE_EQ(timings.queue_ms, 3.0);
  EXPECT_DOUBLE_EQ(timings.prefill_ms, 12.0);
  EXPECT_DOUBLE_EQ(timings.kv_wait_ms, 48.0);
  EXPECT_DOUBLE_EQ(timings.first_step_ms, 64.0);
  EXPECT_DOUBLE_EQ(timings.decode_ms, 128.0);
  const auto first = cluster.metrics.time_to_first_token_seconds[kByLength]->Read();
  EXPECT_EQ(first.cumulative.back(), 1u);
  EXPECT_DOUBLE_EQ(first.sum, 0.015);
  EXPECT_EQ(cluster.metrics.inter_token_latency_seconds->Read().cumulative.back(), 2u);
  EXPECT_EQ(cluster.metrics.generation_tokens_total->value(), 3u);
  EXPECT_EQ(cluster.metrics.prompt_tokens_total->value(), 6u);
  const auto& sources = cluster.metrics.prefix_tokens_total;
  EXPECT_EQ(sources[static_cast<size_t>(obs::PrefixSource::kPool)]->value(), 0u);
  EXPECT_EQ(sources[static_cast<size_t>(obs::PrefixSource::kComputed)]->value(), 6u);
  EXPECT_EQ(cluster.sink->result->timings.prefix_source(), "computed");
}

// Token 0 was sent first and came last, as it does after a lost segment.
TEST(RequestFlowTest, TokensThatOvertakeAreSeenWithTheOneBeforeThem) {
  FakeCluster cluster;
  cluster.JoinPair();
  const RequestUid uid = cluster.Submit(cluster.Request("prompt"));
  cluster.State("decode-0", uid, WorkerRequestState::kReserved);
  cluster.now_us += 1'000;
  cluster.Text("decode-0", uid, 1, "b", FinishReason::kLength);
  cluster.now_us += 200'000;
  cluster.Text("prefill-0", uid, 0, "a");
  ASSERT_TRUE(cluster.sink->result.has_value());
  const auto gaps = cluster.metrics.inter_token_latency_seconds->Read();
  EXPECT_EQ(gaps.cumulative.back(), 1u);
  EXPECT_EQ(gaps.sum, 0.0) << "a sum that falls looks like a restart";
  EXPECT_GE(cluster.metrics.e2e_request_latency_seconds[kByLength]->Read().sum,
            cluster.metrics.time_to_first_token_seconds[kByLength]->Read().sum);
}

// The worker's word of its first step comes after the token, which may end the request.
TEST(RequestFlowTest, AnAnswerOfTwoTokensHasAFirstStep) {
  FakeCluster cluster;
  cluster.JoinPair();
  const RequestUid uid = cluster.Submit(cluster.Request("prompt"));
  cluster.State("decode-0", uid, WorkerRequestState::kReserved);
  cluster.Text("prefill-0", uid, 0, "a");
  cluster.State("decode-0", uid, WorkerRequestState::kVerified);
  cluster.State("decode-0", uid, WorkerRequestState::kDecodeStarted);
  cluster.now_us += 5'000;
  cluster.Text("decode-0", uid, 1, "b", FinishReason::kLength);
  ASSERT_TRUE(cluster.sink->result.has_value());
  EXPECT_DOUBLE_EQ(cluster.sink->result->timings.first_step_ms, 5.0);
  EXPECT_DOUBLE_EQ(cluster.sink->result->timings.decode_ms, 0.0);
}

// A router that was held up hears both ends of each step at one time.
TEST(RequestFlowTest, StepsTakeTheTimeThatTheirWorkerMeasured) {
  FakeCluster cluster;
  cluster.JoinPair();
  const RequestUid uid = cluster.Submit(cluster.Request("prompt"));
  cluster.State("decode-0", uid, WorkerRequestState::kReserved);
  cluster.Text("prefill-0", uid, 0, "a");
  cluster.now_us += 30'000;
  cluster.State("decode-0", uid, WorkerRequestState::kVerified);
  cluster.State("decode-0", uid, WorkerRequestState::kDecodeStarted);
  for (const uint32_t index : {1u, 2u}) {
    WorkerToken token = FakeCluster::Token(uid, index, 'b');
    if (index == 2) token.finish = FinishReason::kLength;
    token.step_us = 4'000 + index * 1'000;
    cluster.Tokens("decode-0", {token});
  }
  ASSERT_TRUE(cluster.sink->result.has_value());
  const RequestTimings& timings = cluster.sink->result->timings;
  EXPECT_DOUBLE_EQ(timings.kv_wait_ms, 19.0);
  EXPECT_DOUBLE_EQ(timings.first_step_ms, 5.0);
  EXPECT_DOUBLE_EQ(timings.decode_ms, 6.0);
}

TEST(RequestFlowTest, GuessedTokensAreCountedOnceAndOnlyWhereDelivered) {
  FakeCluster cluster;
  cluster.JoinPair();
  const RequestUid uid = cluster.Submit(cluster.Request("prompt"));
  cluster.State("decode-0", uid, WorkerRequestState::kReserved);
  cluster.Text("prefill-0", uid, 0, "a");
  cluster.State("decode-0", uid, WorkerRequestState::kVerified);
  cluster.State("decode-0", uid, WorkerRequestState::kDecodeStarted);
  // A step of four guesses, two of which are right; the same again, as after a resume; and an end.
  std::vector<WorkerToken> tokens;
  for (const uint32_t index : {1u, 2u, 3u}) {
    tokens.push_back(FakeCluster::Token(uid, index, 'b'));
    tokens.back().num_proposed = index == 1 ? 4 : 0;
    tokens.back().step_row = index - 1;
    tokens.back().guess_state = wire::GuessState::kOn;
  }
  cluster.Tokens("decode-0", tokens);
  cluster.Tokens("decode-0", tokens);
  WorkerToken last = FakeCluster::Token(uid, 4, 'c', FinishReason::kLength);
  last.guess_state = wire::GuessState::kNoGain;
  cluster.Tokens("decode-0", {last});
  ASSERT_TRUE(cluster.sink->result.has_value());
  EXPECT_EQ(cluster.sink->result->timings.speculated, 4u);
  EXPECT_EQ(cluster.sink->result->timings.accepted, 2u);
  EXPECT_EQ(cluster.sink->result->timings.speculation, wire::GuessState::kNoGain);
}

// The streams of two workers are not ordered: the decode worker's tokens may come first.
TEST(RequestFlowTest, APrefillWorkersLateReportChangesNoStageAndNoNumber) {
  for (const bool reports : {true, false}) {
    FakeCluster cluster;
    cluster.JoinPair();
    cluster.cached_tokens = 4;
    const RequestUid uid = cluster.Submit(cluster.Request("prompt"));
    cluster.State("decode-0", uid, WorkerRequestState::kReserved);
    cluster.now_us += 10'000;
    cluster.State("decode-0", uid, WorkerRequestState::kVerified);
    cluster.State("decode-0", uid, WorkerRequestState::kDecodeStarted);
    cluster.Text("decode-0", uid, 0, "a");
    cluster.now_us += 5'000;
    cluster.Text("decode-0", uid, 1, "b");
    cluster.State("decode-0", uid, WorkerRequestState::kFirstStepDone);
    cluster.now_us += 20'000;
    if (reports) {
      cluster.State("prefill-0", uid, WorkerRequestState::kPrefillStarted);
      cluster.State("prefill-0", uid, WorkerRequestState::kGranted);
    }
    cluster.Text("decode-0", uid, 2, "c", FinishReason::kLength);
    ASSERT_TRUE(cluster.sink->result.has_value());
    const RequestTimings& timings = cluster.sink->result->timings;
    EXPECT_EQ(timings.cached_tokens, 4u) << reports;
    EXPECT_DOUBLE_EQ(timings.first_step_ms, 5.0) << reports;
    EXPECT_DOUBLE_EQ(timings.decode_ms, 20.0) << reports;
    EXPECT_DOUBLE_EQ(timings.queue_ms + timings.prefill_ms + timings.kv_wait_ms, 10.0) << reports;
  }
}

// A request that a deadline, its client or a failure cuts short has had its first token too.
TEST(RequestFlowTest, RequestsThatAreCutShortCountInTheHistograms) {
  struct Case {
    RequestFinish finish;
    void (*end)(FakeCluster& cluster, RequestUid uid);
  };
  const Case cases[] = {
      {RequestFinish::kCancelled,
       [](FakeCluster& cluster, RequestUid uid) {
         cluster.core.Cancel(uid, CancelCause::kClientLeft, cluster.now_us);
       }},
      {RequestFinish::kCancelled,
       [](FakeCluster& cluster, RequestUid uid) {
         cluster.core.Cancel(uid, CancelCause::kSlowClient, cluster.now_us);
       }},
      {RequestFinish::kDeadline,
       [](FakeCluster& cluster, RequestUid /*uid*/) { cluster.core.Tick(cluster.now_us); }},
      {RequestFinish::kError,
       [](FakeCluster& cluster, RequestUid uid) { cluster.Text("decode-0", uid, 1, "z"); }},
  };
  for (const Case& one : cases) {
    for (const bool has_token : {true, false}) {
      FakeCluster cluster;
      cluster.JoinPair();
      GenerateRequest request = cluster.Request("prompt");
      request.timeout_us = one.finish == RequestFinish::kDeadline ? 4'000'000 : 60'000'000;
      const RequestUid uid = cluster.Submit(std::move(request));
      cluster.State("decode-0", uid, WorkerRequestState::kReserved);
      cluster.now_us += 1'000'000;
      if (has_token) cluster.Text("prefill-0", uid, 0, "a");
      if (has_token) cluster.Text("decode-0", uid, 1, "b");
      cluster.now_us += 3'000'000;
      one.end(cluster, uid);
      if (one.finish == RequestFinish::kError && !has_token) continue;  // it has not ended
      ASSERT_TRUE(cluster.sink->error.has_value());
      for (size_t i = 0; i < kRequestFinishNames.size(); ++i) {
        const bool counts = has_token && i == static_cast<size_t>(one.finish);
        const auto first = cluster.metrics.time_to_first_token_seconds[i]->Read();
        const auto whole = cluster.metrics.e2e_request_latency_seconds[i]->Read();
        EXPECT_EQ(first.cumulative.back(), counts ? 1u : 0u) << kRequestFinishNames[i];
        EXPECT_EQ(whole.cumulative.back(), counts ? 1u : 0u) << kRequestFinishNames[i];
        EXPECT_DOUBLE_EQ(first.sum, counts ? 1.0 : 0.0) << kRequestFinishNames[i];
        EXPECT_DOUBLE_EQ(whole.sum, counts ? 4.0 : 0.0) << kRequestFinishNames[i];
      }
    }
  }
}

}  // namespace
}  // namespace baton::router
