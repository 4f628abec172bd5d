// The objective of a router (--slo): who is refused for it, at once and by which wait, and how
// requests count.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "src/router/queue_forecast.h"
#include "src/router/service_objective.h"
#include "tests/router/fake_cluster.h"

namespace baton::router {

using obs::EarlyRefusal;
using obs::Objective;
using obs::ObjectiveResult;
using scheduler::FinishReason;

namespace {

constexpr int64_t kMs = 1'000;
constexpr int64_t kSecond = 1'000'000;

TEST(FirstTokenTest, APromptMayWaitForWhatItLeavesOfTheObjective) {
  const int64_t ttft_us = 500 * kMs;
  EXPECT_FALSE(RefusalForFirstToken({.wait_us = 300 * kMs, .own_us = 200 * kMs}, ttft_us));
  const auto refusal = RefusalForFirstToken({.wait_us = 2'301 * kMs, .own_us = 200 * kMs}, ttft_us);
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(HttpStatusOf(refusal->code), 429);
  EXPECT_EQ(refusal->retry_after_s, 3u) << "2.0 s too long, and a millisecond";
  EXPECT_EQ(refusal->Message(),
            "A request that comes now would wait about 2.5 s for its first token, and the server's "
            "--slo ttft is 500 ms; try again later.");
}

// It could never be served otherwise, and a client that comes again would learn nothing new.
TEST(FirstTokenTest, APromptLongerThanTheObjectiveIsServedWhileNothingWaits) {
  const int64_t ttft_us = 500 * kMs;
  EXPECT_FALSE(RefusalForFirstToken({.wait_us = 0, .own_us = 3 * kSecond}, ttft_us));
  EXPECT_FALSE(RefusalForFirstToken({.wait_us = 50 * kMs, .own_us = 3 * kSecond}, ttft_us));
  EXPECT_TRUE(RefusalForFirstToken({.wait_us = 51 * kMs, .own_us = 3 * kSecond}, ttft_us));
}

TEST(FirstTokenTest, TheQueueRefusesByTheShorterLimit) {
  WaitLimits limits = {.queue_wait_us = 10 * kSecond, .ttft_us = 500 * kMs};
  EXPECT_FALSE(RefusalForWait(500 * kMs, limits).has_value());
  const auto refused = RefusalForWait(1'500 * kMs, limits);
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->retry_after_s, 1u);
  EXPECT_EQ(refused->Message(),
            "A request that comes now would wait about 1.5 s for its turn, and the server's --slo "
            "ttft is 500 ms; try again later.");
  limits.ttft_us = 0;
  EXPECT_FALSE(RefusalForWait(1'500 * kMs, limits).has_value());
  limits = {.queue_wait_us = kSecond, .ttft_us = 20 * kSecond};
  EXPECT_NE(RefusalForWait(3 * kSecond, limits)->Message().find("--queue-wait-ms is 1000"),
            std::string::npos);
}

TEST(FirstTokenTest, WhoHasNoTokenMissesWhenTheServerIsAtFault) {
  struct Case {
    ErrorCode code;
    int64_t age_us;
    bool missed;
  };
  const Case cases[] = {{ErrorCode::kQueueTimeout, 1, true},
                        {ErrorCode::kWorkerLost, 1, true},
                        {ErrorCode::kWorkerFailed, 1, true},
                        {ErrorCode::kQueueFull, kSecond, false},
                        {ErrorCode::kContextLengthExceeded, kSecond, false},
                        {ErrorCode::kNoWorkers, kSecond, false},
                        {ErrorCode::kCancelled, 500 * kMs, false},
                        {ErrorCode::kCancelled, 501 * kMs, true},
                        {ErrorCode::kDeadlineExceeded, 100 * kMs, false},
                        {ErrorCode::kDeadlineExceeded, kSecond, true}};
  for (const Case& c : cases) {
    EXPECT_EQ(MissedFirstToken(c.code, c.age_us, 500 * kMs), c.missed)
        << ErrorNameOf(c.code) << " after " << c.age_us;
  }
}

TEST(GapCountTest, OneOfAHundredGapsMayBeLate) {
  GapCount few;
  for (int i = 0; i < 99; ++i) few.Count(50, 50);
  EXPECT_TRUE(few.IsMet()) << "a gap as long as the objective meets it";
  GapCount late = few;
  late.Count(51, 50);
  EXPECT_EQ(late.num_gaps, 100u);
  EXPECT_TRUE(late.IsMet());
  late.Count(51, 50);
  EXPECT_FALSE(late.IsMet());
  GapCount one;
  one.Count(51, 50);
  EXPECT_FALSE(one.IsMet()) << "of fewer than 100 gaps all count";
}

// One decode worker that computes prompts itself, for a router of these objectives.
class ObjectiveTest : public testing::Test {
 protected:
  static RouterCoreConfig ConfigOf(const ServiceObjective& objective) {
    RouterCoreConfig config;
    config.mode = ServeMode::kAggregated;
    config.objective = objective;
    return config;
  }
  void Join(uint32_t batch_limit) {
    WorkerDescription worker = FakeCluster::Describe("decode-0", WorkerRole::kDecode);
    worker.num_blocks = 4096;
    worker.max_running = 256;
    cluster_.Join(worker);
    Report(batch_limit);
  }
  void Report(uint32_t batch_limit) {
    WorkerLoadReport load;
    load.ready = true;
    load.num_blocks = 4096;
    load.blocks[0] = 4096;
    load.batch_limit = batch_limit;
    load.prefill_tokens_per_s = speed_;
    load.backlog_tokens = backlog_tokens_;
    cluster_.core.OnWorkerLoad(cluster_.leases["decode-0"], load, cluster_.now_us);
  }
  RequestUid Submit(size_t num_prompt_tokens) {
    return cluster_.Submit(cluster_.Request(std::string(num_prompt_tokens, 'p'), 4));
  }
  uint64_t Count(Objective objective, ObjectiveResult result) {
    return cluster_.metrics
        .slo_requests_total[static_cast<size_t>(objective)][static_cast<size_t>(result)]
        ->value();
  }
  uint64_t NumMet(Objective objective) { return Count(objective, ObjectiveResult::kMet); }
  uint64_t NumMissed(Objective objective) { return Count(objective, ObjectiveResult::kMissed); }
  uint64_t NumRefused() {
    return cluster_.metrics.early_refusals_total[static_cast<size_t>(EarlyRefusal::kFirstToken)]
        ->value();
  }
  const std::optional<RequestError>& ErrorOf(RequestUid uid) { return cluster_.sinks[uid]->error; }
  // The tokens of an answer of four, with these gaps between them.
  void Answer(RequestUid uid, int64_t gap_us) {
    for (uint32_t i = 0; i < 4; ++i) {
      if (i > 0) cluster_.now_us += gap_us;
      cluster_.Text("decode-0", uid, i, "a", i == 3 ? FinishReason::kLength : FinishReason::kNone);
    }
  }

  explicit ObjectiveTest(const ServiceObjective& objective = {.ttft_us = 500 * kMs,
                                                              .itl_us = 50 * kMs})
      : cluster_(ConfigOf(objective)) {}

  FakeCluster cluster_;
  float speed_ = 1'000;  // prompt tokens a second
  uint64_t backlog_tokens_ = 0;
};

class NoObjectiveTest : public ObjectiveTest {
 protected:
  NoObjectiveTest() : ObjectiveTest(ServiceObjective{}) {}
};

// Each prompt of 200 tokens takes 0.2 s: the third has its token after 0.6 s.
TEST_F(ObjectiveTest, WhoWouldHaveItsFirstTokenLateIsToldAtOnce) {
  Join(64);
  const RequestUid first = Submit(200);
  const RequestUid second = Submit(200);
  EXPECT_FALSE(ErrorOf(first).has_value());
  EXPECT_FALSE(ErrorOf(second).has_value());
  const RequestUid third = Submit(200);
  ASSERT_TRUE(ErrorOf(third).has_value());
  EXPECT_EQ(HttpStatusOf(ErrorOf(third)->code), 429);
  EXPECT_EQ(ErrorNameOf(ErrorOf(third)->code), "queue_full");
  EXPECT_EQ(ErrorOf(third)->retry_after_s, 1u);
  EXPECT_EQ(ErrorOf(third)->Message(),
            "A request that comes now would wait about 0.6 s for its first token, and the server's "
            "--slo ttft is 500 ms; try again later.");
  EXPECT_EQ(NumRefused(), 1u);
  EXPECT_FALSE(ErrorOf(Submit(50)).has_value()) << "a short prompt still meets it";
  EXPECT_EQ(NumMissed(Objective::kTtft), 0u) << "who is refused at the door missed nothing";
  Answer(first, 10 * kMs);
  EXPECT_FALSE(ErrorOf(Submit(50)).has_value()) << "its prompt is computed";
}

// The last report was made while the prompt was computed.
TEST_F(ObjectiveTest, APromptThatIsComputedHoldsNobodyUpUntilTheNextReport) {
  Join(64);
  const RequestUid first = Submit(400);
  backlog_tokens_ = 400;
  Report(64);
  EXPECT_TRUE(ErrorOf(Submit(200)).has_value()) << "0.6 s";
  Answer(first, 10 * kMs);
  const RequestUid second = Submit(200);
  EXPECT_FALSE(ErrorOf(second).has_value()) << "nothing runs";
  Answer(second, 10 * kMs);
  Report(64);  // another router sent as much there
  EXPECT_TRUE(ErrorOf(Submit(200)).has_value());
}

TEST_F(NoObjectiveTest, WithoutAnObjectiveNobodyIsRefusedForThePromptsBeforeIt) {
  Join(64);
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(ErrorOf(Submit(200)).has_value());
  EXPECT_EQ(NumRefused(), 0u);
  EXPECT_EQ(cluster_.metrics.slo_seconds[0]->value(), 0.0);
  Answer(cluster_.Log("decode-0").Of(Order::Kind::kDecode)[0].uid, kSecond);
  EXPECT_EQ(NumMet(Objective::kTtft) + NumMissed(Objective::kItl), 0u) << "nothing is counted";
  EXPECT_TRUE(cluster_.core.TopologyView(cluster_.now_us).objectives.empty());
}

TEST_F(ObjectiveTest, ALongPromptIsServedWhileNothingWaits) {
  speed_ = 400;
  Join(64);
  EXPECT_FALSE(ErrorOf(Submit(400)).has_value()) << "a second of its own";
  EXPECT_TRUE(ErrorOf(Submit(400)).has_value());
}

// The queue is bounded by the objective, not by the queue wait of 10 s.
TEST_F(ObjectiveTest, NobodyWaitsInTheQueueForLongerThanTheObjective) {
  Join(1);
  std::vector<RequestUid> uids;
  for (uint32_t i = 0; i < 1 + WorkerRegistry::kPromptsAhead; ++i) uids.push_back(Submit(1));
  const RequestUid waits = Submit(1);
  ASSERT_FALSE(ErrorOf(waits).has_value());
  ASSERT_EQ(cluster_.core.num_queued(), 1u);
  for (int i = 0; i < 6; ++i) {
    cluster_.now_us += 100 * kMs;
    Report(1);
    cluster_.core.Tick(cluster_.now_us);
  }
  ASSERT_TRUE(ErrorOf(waits).has_value());
  EXPECT_EQ(ErrorOf(waits)->code, ErrorCode::kQueueTimeout);
  EXPECT_EQ(ErrorOf(waits)->Message(),
            "No worker had room in time, and the server's --slo ttft is 500 ms; try again later.");
  EXPECT_GE(ErrorOf(waits)->retry_after_s, 1u);
  EXPECT_EQ(NumMissed(Objective::kTtft), 1u);
}

// A prompt of several that its own siblings held up: its client is told nothing yet.
TEST_F(ObjectiveTest, WhatIsSubmittedAgainHasMissedNothing) {
  Join(1);
  for (uint32_t i = 0; i < 1 + WorkerRegistry::kPromptsAhead; ++i) Submit(1);
  const RequestUid waits = Submit(1);
  ASSERT_EQ(cluster_.core.num_queued(), 1u);
  cluster_.sinks[waits]->tries_again = true;
  for (int i = 0; i < 6; ++i) {
    cluster_.now_us += 100 * kMs;
    Report(1);
    cluster_.core.Tick(cluster_.now_us);
  }
  ASSERT_TRUE(ErrorOf(waits).has_value());
  EXPECT_EQ(ErrorOf(waits)->code, ErrorCode::kQueueTimeout);
  EXPECT_EQ(NumMissed(Objective::kTtft), 0u);
  for (const obs::Counter* counter : cluster_.metrics.requests_total) {
    EXPECT_EQ(counter->value(), 0u) << "nor has a request ended";
  }
}

// The reports of its worker may still have the prompts of its siblings.
TEST_F(ObjectiveTest, WhatSkipsTheForecastIsPlacedWhereThereIsRoom) {
  Join(64);
  Submit(200);
  Submit(200);
  EXPECT_TRUE(ErrorOf(Submit(200)).has_value());
  GenerateRequest request = cluster_.Request(std::string(200, 'q'), 4);
  request.skips_forecast = true;
  const RequestUid uid = cluster_.Submit(std::move(request));
  EXPECT_FALSE(ErrorOf(uid).has_value());
  EXPECT_EQ(cluster_.core.num_queued(), 0u) << "it has its place";
  EXPECT_EQ(NumRefused(), 1u);
}

TEST_F(ObjectiveTest, RequestsCountByTheirFirstTokenAndTheirGaps) {
  Join(64);
  Answer(Submit(1), 50 * kMs);
  EXPECT_EQ(NumMet(Objective::kTtft), 1u);
  EXPECT_EQ(NumMet(Objective::kItl), 1u);
  Answer(Submit(1), 51 * kMs);
  EXPECT_EQ(NumMet(Objective::kTtft), 2u);
  EXPECT_EQ(NumMissed(Objective::kItl), 1u);
  const RequestUid late = Submit(1);
  cluster_.now_us += 501 * kMs;
  Report(64);
  Answer(late, 10 * kMs);
  EXPECT_EQ(NumMissed(Objective::kTtft), 1u);
  EXPECT_EQ(NumMet(Objective::kItl), 2u);
  const RequestUid cancelled = Submit(1);
  cluster_.core.Cancel(cancelled, CancelCause::kClientLeft, cluster_.now_us + 100 * kMs);
  EXPECT_EQ(NumMet(Objective::kTtft) + NumMissed(Objective::kTtft), 3u)
      << "a client that leaves in time says nothing";
}

TEST_F(ObjectiveTest, TheTopologyAndTheMetricsShowTheObjectives) {
  Join(64);
  Answer(Submit(1), 60 * kMs);
  const Topology topology = cluster_.core.TopologyView(cluster_.now_us);
  ASSERT_EQ(topology.objectives.size(), 2u);
  EXPECT_EQ(topology.objectives[0].name, "ttft");
  EXPECT_EQ(topology.objectives[0].limit_us, 500 * kMs);
  EXPECT_EQ(topology.objectives[0].num_met, 1u);
  EXPECT_EQ(topology.objectives[1].name, "itl");
  EXPECT_EQ(topology.objectives[1].num_missed, 1u);
  EXPECT_EQ(cluster_.metrics.slo_seconds[static_cast<size_t>(Objective::kTtft)]->value(), 0.5);
  EXPECT_EQ(cluster_.metrics.slo_seconds[static_cast<size_t>(Objective::kItl)]->value(), 0.05);
}

// A stream that runs goes on: what it has already cost would be lost.
TEST_F(ObjectiveTest, AStreamThatLostItsWorkerIsNotRefused) {
  Join(64);
  const RequestUid uid = Submit(100);
  cluster_.Text("decode-0", uid, 0, "a");
  cluster_.core.OnLeaseClosed(cluster_.leases["decode-0"]);
  cluster_.now_us += 2 * kSecond;
  Join(64);
  cluster_.Advance(100 * kMs, {});
  EXPECT_FALSE(ErrorOf(uid).has_value());
}

}  // namespace
}  // namespace baton::router
