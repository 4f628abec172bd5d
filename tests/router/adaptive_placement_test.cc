// Tests that --mode adaptive places each prompt by what workers report and by what was placed
// before, and that the reason of each placement is counted and remembered.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "tests/router/fake_cluster.h"

namespace baton::router {

using scheduler::kNumRouteReasons;
using scheduler::RouteReason;
using scheduler::RouteReasonName;

namespace {

RouterCoreConfig Adaptive(int64_t itl_objective_us = 0) {
  RouterCoreConfig config;
  config.mode = ServeMode::kAdaptive;
  config.objective.itl_us = itl_objective_us;
  return config;
}

// A prefill worker and a decode worker. Prompts are of 40 tokens: 80 ms at 500 tokens a second.
struct AdaptiveCluster : FakeCluster {
  // `core_budget`: of both workers; 0 = each has cores of its own.
  explicit AdaptiveCluster(RouterCoreConfig config = Adaptive(), uint64_t core_budget = 0)
      : FakeCluster(config) {
    for (const WorkerRole role : {WorkerRole::kDecode, WorkerRole::kPrefill}) {
      const std::string id = role == WorkerRole::kDecode ? "decode-0" : "prefill-0";
      WorkerDescription worker = Describe(id, role);
      worker.host_id = "a host";
      worker.core_budget = core_budget;
      worker.home_cores = core_budget == 0 ? 0 : 1;
      Join(std::move(worker));
    }
    Report("prefill-0", {"decode-0"});
  }

  // A heartbeat of the worker: what it has to compute, and how fast it is; 0 = not measured.
  void Tell(const std::string& id, uint64_t backlog_tokens, float tokens_per_s) {
    WorkerLoadReport load = LoadOf(id);
    load.backlog_tokens = backlog_tokens;
    load.prefill_tokens_per_s = tokens_per_s;
    core.OnWorkerLoad(leases[id], load, now_us);
  }
  // The decode worker runs so many streams, in steps of `step_us`.
  void TellStreams(uint32_t num_streams, uint32_t step_us) {
    WorkerLoadReport load = LoadOf("decode-0");
    load.running = num_streams;
    load.step_us = step_us;
    core.OnWorkerLoad(leases["decode-0"], load, now_us);
  }
  // True: a prefill worker got it.
  bool IsSplit() {
    const size_t before = Log("prefill-0").Of(Order::Kind::kPrefill).size();
    Submit(Request(std::string(40, 'p')));
    return Log("prefill-0").Of(Order::Kind::kPrefill).size() > before;
  }
  uint64_t NumRoutes(RouteReason reason) const {
    const auto label = std::ranges::find(obs::kRouteReasonLabels, RouteReasonName(reason));
    return metrics.routes_total[static_cast<size_t>(label - obs::kRouteReasonLabels.begin())]
        ->value();
  }

 private:
  WorkerLoadReport LoadOf(const std::string& id) {
    WorkerLoadReport load;
    load.ready = true;
    load.num_blocks = blocks[id];
    load.blocks[0] = blocks[id];
    if (id == "prefill-0") {
      load.links = {{"decode-0", lives["decode-0"], LinkKind::kShm, 0, true}};
    }
    return load;
  }
};

TEST(AdaptivePlacementTest, WhatWasPlacedIsAQueueAtOnce) {
  AdaptiveCluster cluster;
  EXPECT_TRUE(cluster.IsSplit()) << "both are idle and equal";
  EXPECT_FALSE(cluster.IsSplit()) << "80 ms, not 192";
  EXPECT_FALSE(cluster.IsSplit()) << "160 ms, not 192";
  EXPECT_TRUE(cluster.IsSplit()) << "240 ms there";
  EXPECT_EQ(cluster.NumRoutes(RouteReason::kPair), 2u);
  EXPECT_EQ(cluster.NumRoutes(RouteReason::kPrefillQueue), 2u);
}

TEST(AdaptivePlacementTest, StreamsOfTheDecodeWorkerCount) {
  AdaptiveCluster cluster;
  cluster.Tell("prefill-0", 120, 0);  // 240 ms
  cluster.TellStreams(4, 5'000);
  EXPECT_TRUE(cluster.IsSplit()) << "320 ms, less 40, against 80 for it and for each stream";
  cluster.TellStreams(0, 5'000);
  EXPECT_FALSE(cluster.IsSplit());
}

// A burst: no heartbeat comes before its end.
TEST(AdaptivePlacementTest, StreamsCountBeforeAHeartbeatTellsOfThem) {
  AdaptiveCluster cluster;
  for (int i = 0; i < 4; ++i) {
    const RequestUid uid = cluster.Submit(cluster.Request(std::string(40, 'p')));
    EXPECT_EQ(cluster.Log("prefill-0").Of(Order::Kind::kPrefill).size(), i + 1u);
    cluster.State("prefill-0", uid, WorkerRequestState::kPrefillDone);
  }
  cluster.Tell("prefill-0", 120, 0);
  EXPECT_TRUE(cluster.IsSplit()) << "240 + 128 + 80 ms, less an eighth, against 80 for it and four";
  cluster.Tell("prefill-0", 160, 0);
  EXPECT_FALSE(cluster.IsSplit());
}

TEST(AdaptivePlacementTest, StreamsThatEndedCountNoMore) {
  AdaptiveCluster cluster;
  std::vector<RequestUid> uids;
  for (int i = 0; i < 4; ++i) {
    uids.push_back(cluster.Submit(cluster.Request(std::string(40, 'p'))));
    cluster.State("prefill-0", uids.back(), WorkerRequestState::kPrefillDone);
  }
  for (const RequestUid uid : uids) cluster.core.Cancel(uid);
  cluster.Tell("prefill-0", 120, 0);
  EXPECT_FALSE(cluster.IsSplit()) << "240 + 80 ms there, against 80 and no stream";
}

TEST(AdaptivePlacementTest, ABurstIsNoReasonForTheOtherWorkerOfTheSameCores) {
  AdaptiveCluster cluster(Adaptive(), /*core_budget=*/5);
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(cluster.IsSplit()) << i << " prompts wait";
  EXPECT_EQ(cluster.NumRoutes(RouteReason::kPair), 6u);
}

// Blocks of 16 tokens take 32 ms; 35 ms of the objective are planned.
TEST(AdaptivePlacementTest, TheObjectiveOfGapsIsKept) {
  AdaptiveCluster cluster(Adaptive(40'000));
  cluster.Tell("prefill-0", 5'000, 0);
  cluster.TellStreams(1, 4'000);
  EXPECT_TRUE(cluster.IsSplit());
  cluster.TellStreams(1, 2'000);
  EXPECT_FALSE(cluster.IsSplit());
}

// The decode worker has computed no prompt yet. At 500 tokens a second it would never get one.
TEST(AdaptivePlacementTest, AWorkerThatHasMeasuredNothingIsAsFastAsTheOtherRole) {
  AdaptiveCluster cluster;
  cluster.Tell("prefill-0", 0, 5'000);
  EXPECT_TRUE(cluster.IsSplit());
  EXPECT_FALSE(cluster.IsSplit()) << "8 ms, not 19";
  AdaptiveCluster other;
  other.Tell("decode-0", 0, 5'000);
  EXPECT_TRUE(other.IsSplit()) << "nor is a prefill worker slow before it has computed a prompt";
}

TEST(AdaptivePlacementTest, AFasterDecodeWorkerTakesPrompts) {
  AdaptiveCluster cluster;
  cluster.Tell("prefill-0", 0, 1'000);
  cluster.Tell("decode-0", 0, 3'000);
  EXPECT_FALSE(cluster.IsSplit());
  EXPECT_EQ(cluster.NumRoutes(RouteReason::kFasterDecode), 1u);
}

TEST(AdaptivePlacementTest, OtherModesCompareNothing) {
  AdaptiveCluster cluster(RouterCoreConfig{});
  cluster.Tell("prefill-0", 5'000, 1'000);
  cluster.Tell("decode-0", 0, 3'000);
  EXPECT_TRUE(cluster.IsSplit());
}

TEST(AdaptivePlacementTest, TheReasonIsRemembered) {
  AdaptiveCluster cluster;
  cluster.IsSplit();
  ++cluster.now_us;
  cluster.IsSplit();
  const auto traces = cluster.core.Traces(cluster.now_us);
  ASSERT_EQ(traces.size(), 2u);
  EXPECT_EQ(traces[0]->notes.RouteText(), "pair");
  EXPECT_EQ(traces[1]->notes.RouteText(), "prefill_queue");
}

// Two reasons are of requests that are not placed.
TEST(AdaptivePlacementTest, EveryReasonOfAPlacementHasItsCounter) {
  for (size_t i = 0; i < kNumRouteReasons; ++i) {
    const auto reason = static_cast<RouteReason>(i);
    const bool is_placed =
        reason != RouteReason::kNoDecodeWorker && reason != RouteReason::kExceedsEveryPool;
    const auto& labels = obs::kRouteReasonLabels;
    const bool is_counted = std::ranges::find(labels, RouteReasonName(reason)) != labels.end();
    EXPECT_EQ(is_counted, is_placed) << RouteReasonName(reason);
  }
}

}  // namespace
}  // namespace baton::router
