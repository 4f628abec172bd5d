// Tests which worker gets a request, who joins the cluster, and who waits.
#include <cmath>
#include <string>

#include "gtest/gtest.h"

#include "tests/router/fake_cluster.h"

namespace baton::router {

using scheduler::FinishReason;

namespace {

constexpr int64_t kSecond = 1'000'000;

TEST(PlacementTest, NoWorkersIsAProperRefusal) {
  FakeCluster cluster;
  cluster.Submit(cluster.Request("p"));
  ASSERT_TRUE(cluster.sink->error.has_value());
  EXPECT_EQ(cluster.sink->error->code, ErrorCode::kNoWorkers);
  EXPECT_GT(cluster.sink->error->retry_after_s, 0u);
  EXPECT_FALSE(cluster.core.Ready(cluster.now_us));
}

TEST(PlacementTest, PrefillWorkersAloneServeNothing) {
  FakeCluster cluster;
  cluster.Join(FakeCluster::Describe("prefill-0", WorkerRole::kPrefill));
  EXPECT_TRUE(cluster.core.Models().empty());
  EXPECT_FALSE(cluster.core.Ready(cluster.now_us));
}

TEST(PlacementTest, ReadinessWaitsForAFirstPairButNotForEver) {
  FakeCluster cluster;
  cluster.Join(FakeCluster::Describe("decode-0", WorkerRole::kDecode));
  EXPECT_FALSE(cluster.core.Ready(cluster.now_us)) << "the prefill worker is still loading";
  const RequestUid uid = cluster.Submit(cluster.Request("p"));
  EXPECT_TRUE(cluster.Log("decode-0").Of(Order::Kind::kDecode).empty());
  cluster.Advance(6 * kSecond, {"decode-0"});
  EXPECT_TRUE(cluster.core.Ready(cluster.now_us)) << "without any: the decode worker alone";
  const auto orders = cluster.Log("decode-0").Of(Order::Kind::kDecode);
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_EQ(orders[0].peer, "");
  EXPECT_EQ(orders[0].uid, uid);
}

TEST(PlacementTest, APairWaitsForItsDataConnection) {
  FakeCluster cluster;
  cluster.Join(FakeCluster::Describe("decode-0", WorkerRole::kDecode));
  cluster.Join(FakeCluster::Describe("prefill-0", WorkerRole::kPrefill));
  EXPECT_EQ(cluster.Log("prefill-0").peers, std::vector<std::string>{"decode-0"});
  EXPECT_FALSE(cluster.core.Ready(cluster.now_us));
  cluster.Submit(cluster.Request("p"));
  EXPECT_TRUE(cluster.Log("decode-0").Of(Order::Kind::kDecode).empty());
  cluster.Report("prefill-0", {"decode-0"});
  EXPECT_TRUE(cluster.core.Ready(cluster.now_us));
  EXPECT_EQ(cluster.Log("prefill-0").Of(Order::Kind::kPrefill).size(), 1u);
}

TEST(PlacementTest, APairWaitsForItsFirstSession) {
  FakeCluster cluster;
  cluster.Join(FakeCluster::Describe("decode-0", WorkerRole::kDecode));
  const LeaseId lease(cluster.next_lease++);
  WorkerDescription prefill = FakeCluster::Describe("prefill-0", WorkerRole::kPrefill);
  cluster.lives["prefill-0"] = prefill.name.incarnation;
  cluster.leases["prefill-0"] = lease;
  cluster.blocks["prefill-0"] = prefill.num_blocks;
  const auto log = std::make_shared<WorkerLog>();
  cluster.connector.logs["prefill-0"] = log;
  cluster.core.OnWorkerHello(lease, prefill, std::make_unique<FakeLease>(log), cluster.now_us);
  ASSERT_TRUE(log->accepted);
  EXPECT_FALSE(cluster.core.Ready(cluster.now_us)) << "registered, but its session is not up";
  cluster.Submit(cluster.Request("p"));
  EXPECT_TRUE(cluster.Log("decode-0").Of(Order::Kind::kDecode).empty());
  cluster.core.OnSessionUp(cluster.Session("prefill-0"), cluster.now_us);
  cluster.Report("prefill-0");
  EXPECT_FALSE(cluster.core.Ready(cluster.now_us)) << "its data connection is not up";
  cluster.Report("prefill-0", {"decode-0"});
  EXPECT_TRUE(cluster.core.Ready(cluster.now_us));
  EXPECT_EQ(log->Of(Order::Kind::kPrefill).size(), 1u);
}

TEST(PlacementTest, AWorkerThatCannotBeCalledIsNoWantOfRoom) {
  FakeCluster cluster({.max_queued = 1});
  cluster.Join(FakeCluster::Describe("decode-0", WorkerRole::kDecode));
  cluster.core.OnSessionDown(cluster.Session("decode-0"), "refused", cluster.now_us);
  cluster.Submit(cluster.Request("p"));
  const auto waiting = cluster.sink;
  EXPECT_FALSE(waiting->ended()) << "its next session may come in time";
  cluster.Submit(cluster.Request("p"));
  ASSERT_TRUE(cluster.sink->error.has_value());
  EXPECT_EQ(cluster.sink->error->code, ErrorCode::kNoWorkers) << "not the 429 of a full queue";
  cluster.Advance(11 * kSecond, {"decode-0"});
  ASSERT_TRUE(waiting->error.has_value());
  EXPECT_EQ(waiting->error->code, ErrorCode::kNoWorkers) << "nor that of the queue wait";
}

TEST(PlacementTest, AWorkerThatLeavesMakesNoOtherOneCallable) {
  FakeCluster cluster;
  cluster.Join(FakeCluster::Describe("decode-0", WorkerRole::kDecode));
  cluster.Join(FakeCluster::Describe("decode-1", WorkerRole::kDecode));
  cluster.core.OnSessionDown(cluster.Session("decode-0"), "refused", cluster.now_us);
  cluster.Report("decode-1", {}, std::nullopt, /*draining=*/true);
  cluster.Submit(cluster.Request("p"));
  for (int tick = 0; tick < 110; ++tick) {
    cluster.Report("decode-1", {}, std::nullopt, /*draining=*/true);
    cluster.Advance(kSecond / 10, {"decode-0"});
  }
  ASSERT_TRUE(cluster.sink->error.has_value());
  EXPECT_EQ(cluster.sink->error->code, ErrorCode::kNoWorkers);
}

TEST(PlacementTest, APrefillWorkerWithoutASessionHoldsNobodyUpForLong) {
  FakeCluster cluster;
  cluster.Join(FakeCluster::Describe("decode-0", WorkerRole::kDecode));
  cluster.Join(FakeCluster::Describe("prefill-0", WorkerRole::kPrefill), /*ready=*/false);
  cluster.Submit(cluster.Request("p"));
  EXPECT_TRUE(cluster.Log("decode-0").Of(Order::Kind::kDecode).empty());
  cluster.Advance(4 * kSecond, {"decode-0"});
  const auto orders = cluster.Log("decode-0").Of(Order::Kind::kDecode);
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_EQ(orders[0].peer, "");
}

TEST(PlacementTest, WithoutPrefillWorkersThePromptGoesLocal) {
  FakeCluster cluster;
  cluster.JoinPair();
  cluster.core.OnLeaseClosed(cluster.leases["prefill-0"]);
  EXPECT_TRUE(cluster.core.Ready(cluster.now_us)) << "a lost prefill worker costs speed only";
  cluster.Submit(cluster.Request("p"));
  const auto orders = cluster.Log("decode-0").Of(Order::Kind::kDecode);
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_EQ(orders[0].peer, "");
}

TEST(PlacementTest, LinkOfAFormerLifeDoesNotCount) {
  FakeCluster cluster;
  cluster.JoinPair();
  const Incarnation former = cluster.lives["decode-0"];
  cluster.Advance(1'100'000, {"prefill-0"});  // silent for so long
  cluster.Join(FakeCluster::Describe("decode-0", WorkerRole::kDecode));
  const Incarnation next = cluster.lives["decode-0"];
  cluster.Submit(cluster.Request("p"));
  EXPECT_TRUE(cluster.Log("prefill-0").Of(Order::Kind::kPrefill).empty())
      << "the link that was reported led to the worker's former life";
  // The prefill worker has not noticed yet, or its report was under way.
  cluster.lives["decode-0"] = former;
  cluster.Report("prefill-0", {"decode-0"});
  EXPECT_TRUE(cluster.Log("prefill-0").Of(Order::Kind::kPrefill).empty());
  cluster.lives["decode-0"] = next;
  cluster.Report("prefill-0", {"decode-0"});
  EXPECT_EQ(cluster.Log("prefill-0").Of(Order::Kind::kPrefill).size(), 1u);
}

TEST(PlacementTest, OtherWeightsLayoutOrTokenizerAreRefusedByName) {
  struct Case {
    const char* field;
    void (*change)(WorkerDescription*);
  };
  const Case cases[] = {
      {"layout_id", [](WorkerDescription* w) { w->fingerprint.layout_id = 9; }},
      {"weights_id", [](WorkerDescription* w) { w->fingerprint.weights_id = 9; }},
      {"tokenizer_id", [](WorkerDescription* w) { w->fingerprint.tokenizer_id = 9; }},
      {"wire version",
       [](WorkerDescription* w) { w->fingerprint.wire_min = w->fingerprint.wire_max = 2; }},
  };
  for (const Case& c : cases) {
    FakeCluster cluster;
    cluster.Join(FakeCluster::Describe("decode-0", WorkerRole::kDecode));
    WorkerDescription other = FakeCluster::Describe("prefill-0", WorkerRole::kPrefill);
    c.change(&other);
    cluster.Join(other, /*ready=*/false);
    EXPECT_FALSE(cluster.Log("prefill-0").accepted);
    EXPECT_NE(cluster.Log("prefill-0").refusal.find(c.field), std::string::npos)
        << cluster.Log("prefill-0").refusal;
    EXPECT_NE(cluster.Log("prefill-0").refusal.find("decode-0"), std::string::npos);
    EXPECT_EQ(cluster.core.registry().workers().size(), 1u);
  }
}

TEST(PlacementTest, RefusalTellsLayoutsOfEqualDescriptionApart) {
  FakeCluster cluster;
  cluster.Join(FakeCluster::Describe("decode-0", WorkerRole::kDecode));
  WorkerDescription other = FakeCluster::Describe("prefill-0", WorkerRole::kPrefill);
  other.fingerprint.layout_id = 0xa9;
  cluster.Join(other, /*ready=*/false);
  EXPECT_EQ(cluster.Log("prefill-0").refusal,
            "layout_id differs: prefill-0 has 00000000000000a9 (bf16 block=16), "
            "decode-0 has 0000000000000001 (bf16 block=16); "
            "give both one --model, --kv-dtype and --device");
}

TEST(PlacementTest, RefusedWeightsMayComeOnceTheOthersAreGone) {
  FakeCluster cluster;
  cluster.Join(FakeCluster::Describe("decode-0", WorkerRole::kDecode));
  WorkerDescription next = FakeCluster::Describe("decode-0", WorkerRole::kDecode);
  next.fingerprint.weights_id = 9;
  cluster.now_us += 1'100'000;  // silent for so long
  cluster.Join(next);
  EXPECT_TRUE(cluster.Log("decode-0").accepted) << "its own former life binds nobody";
  EXPECT_EQ(cluster.core.registry().workers().size(), 1u);
}

TEST(PlacementTest, OtherNumericsServeButDoNotPair) {
  FakeCluster cluster;
  cluster.Join(FakeCluster::Describe("decode-0", WorkerRole::kDecode));
  WorkerDescription other = FakeCluster::Describe("prefill-0", WorkerRole::kPrefill);
  other.fingerprint.numerics_id = 9;
  cluster.Join(other);
  EXPECT_TRUE(cluster.Log("prefill-0").accepted);
  EXPECT_TRUE(cluster.Log("prefill-0").peers.empty());
  cluster.Submit(cluster.Request("p"));
  const auto orders = cluster.Log("decode-0").Of(Order::Kind::kDecode);
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_EQ(orders[0].peer, "");
}

// A stream goes on where its bits are the same, also where it must be waited for; elsewhere only
// when no such worker is left or gets room, and the answer says so.
TEST(PlacementTest, AStreamIsResumedByItsOwnNumericsOrSaysSo) {
  enum class Twin { kNone, kFull, kGetsRoom };
  for (const Twin twin : {Twin::kNone, Twin::kFull, Twin::kGetsRoom}) {
    SCOPED_TRACE(static_cast<int>(twin));
    const bool twin_is_left = twin != Twin::kNone;
    FakeCluster cluster({.mode = ServeMode::kAggregated});
    cluster.Join(FakeCluster::Describe("decode-0", WorkerRole::kDecode));
    const RequestUid uid = cluster.Submit(cluster.Request("prompt"));
    cluster.Text("decode-0", uid, 0, "ab");
    if (twin_is_left) {
      cluster.Join(FakeCluster::Describe("decode-1", WorkerRole::kDecode));
      cluster.Report("decode-1", {}, 0);  // no room yet
    }
    WorkerDescription other = FakeCluster::Describe("decode-2", WorkerRole::kDecode);
    other.fingerprint.numerics_id = 9;
    cluster.Join(std::move(other));
    const auto advance = [&](int64_t us) {
      for (const int64_t end_us = cluster.now_us + us; cluster.now_us < end_us;) {
        if (twin_is_left) cluster.Report("decode-1", {}, 0);
        cluster.Advance(100'000, {"decode-2"});
      }
    };
    for (int i = 0; i < 20; ++i) {
      cluster.Report("decode-0", {}, std::nullopt, /*draining=*/true);
      advance(100'000);
    }
    EXPECT_TRUE(cluster.Log("decode-2").Of(Order::Kind::kDecode).empty()) << "a planned move waits";
    cluster.core.OnLeaseClosed(cluster.leases["decode-0"]);
    advance(500'000);
    if (twin_is_left) {
      EXPECT_TRUE(cluster.Log("decode-2").Of(Order::Kind::kDecode).empty());
      EXPECT_TRUE(cluster.Log("decode-1").Of(Order::Kind::kDecode).empty());
      const RequestUid fresh = cluster.Submit(cluster.Request("fresh"));
      EXPECT_EQ(cluster.Log("decode-2").Of(Order::Kind::kDecode).size(), 1u) << "it is not blocked";
      cluster.core.Cancel(fresh);
    }
    if (twin == Twin::kFull) advance(RouterCoreConfig().resume_wait_us / 2);
    if (twin == Twin::kGetsRoom) {
      cluster.Report("decode-1");
      cluster.core.Tick(cluster.now_us);
    }
    const std::string next = twin == Twin::kGetsRoom ? "decode-1" : "decode-2";
    auto orders = cluster.Log(next).Of(Order::Kind::kDecode);
    std::erase_if(orders, [&](const Order& order) { return order.uid != uid; });
    ASSERT_EQ(orders.size(), 1u);
    cluster.text_attempt = orders[0].attempt;
    cluster.Text(next, uid, 2, "cd", FinishReason::kLength);
    const RecordingSink& sink = *cluster.sinks.at(uid);
    ASSERT_TRUE(sink.result.has_value());
    EXPECT_EQ(sink.Text(), "abcd");
    EXPECT_EQ(sink.result->timings.exact, twin == Twin::kGetsRoom);
  }
}

TEST(PlacementTest, WithoutACommonTransportTheyServeButDoNotPair) {
  const auto describe = [](const char* id, WorkerRole role, std::vector<LinkKind> kinds) {
    WorkerDescription worker = FakeCluster::Describe(id, role);
    worker.transports = std::move(kinds);
    return worker;
  };
  FakeCluster cluster;
  cluster.Join(describe("decode-0", WorkerRole::kDecode, {LinkKind::kShm, LinkKind::kTcp}));
  cluster.Join(describe("decode-1", WorkerRole::kDecode, {LinkKind::kNccl}));
  cluster.Join(describe("prefill-0", WorkerRole::kPrefill, {LinkKind::kNccl}));
  cluster.Join(describe("prefill-1", WorkerRole::kPrefill, {LinkKind::kTcp}));
  cluster.Join(describe("decode-2", WorkerRole::kDecode, {LinkKind::kCudaIpc}));
  cluster.Join(describe("prefill-3", WorkerRole::kPrefill, {LinkKind::kCudaIpc}));
  // Only kinds that this router does not know.
  cluster.Join(describe("prefill-2", WorkerRole::kPrefill, {}));
  for (const char* id : {"prefill-0", "prefill-1", "prefill-2"}) {
    EXPECT_TRUE(cluster.Log(id).accepted) << id;
  }
  EXPECT_EQ(cluster.Log("prefill-0").peers, std::vector<std::string>{"decode-1"});
  EXPECT_EQ(cluster.Log("prefill-1").peers, std::vector<std::string>{"decode-0"});
  EXPECT_TRUE(cluster.Log("prefill-2").peers.empty());
  EXPECT_EQ(cluster.Log("prefill-3").peers, std::vector<std::string>{"decode-2"});
}

TEST(PlacementTest, InexactPairsSaySo) {
  FakeCluster cluster;
  WorkerDescription decode = FakeCluster::Describe("decode-0", WorkerRole::kDecode);
  decode.fingerprint.allow_inexact = true;
  WorkerDescription prefill = FakeCluster::Describe("prefill-0", WorkerRole::kPrefill);
  prefill.fingerprint.allow_inexact = true;
  prefill.fingerprint.numerics_id = 9;
  cluster.Join(decode);
  cluster.Join(prefill);
  cluster.Report("prefill-0", {"decode-0"});
  const RequestUid uid = cluster.Submit(cluster.Request("p"));
  cluster.Text("decode-0", uid, 0, "x", FinishReason::kLength);
  ASSERT_TRUE(cluster.sink->result.has_value());
  EXPECT_TRUE(cluster.sink->result->timings.disaggregated);
  EXPECT_FALSE(cluster.sink->result->timings.exact);
}

TEST(PlacementTest, NextLifeOfAWorkerVoidsTheFormer) {
  FakeCluster cluster;
  cluster.JoinPair();
  const RequestUid uid = cluster.Submit(cluster.Request("p"));
  const SessionRef old = cluster.Session("decode-0");
  cluster.now_us += 1'100'000;  // silent for so long
  cluster.Join(FakeCluster::Describe("decode-0", WorkerRole::kDecode));
  EXPECT_FALSE(cluster.sink->ended()) << "it waits for its next placement";
  cluster.core.OnSessionTokens(old, {FakeCluster::Token(uid, 0, 'x')}, cluster.now_us);
  EXPECT_TRUE(cluster.sink->tokens.empty());
  EXPECT_EQ(cluster.core.registry().workers().size(), 2u);
}

// Two would drop each other for ever, and every request with them.
TEST(PlacementTest, AnotherProcessOfALivingWorkersNameIsRefused) {
  FakeCluster cluster;
  cluster.JoinPair();
  cluster.Submit(cluster.Request("p"));
  const Incarnation first = cluster.lives["decode-0"];
  const LeaseId lease = cluster.leases["decode-0"];
  cluster.Join(FakeCluster::Describe("decode-0", WorkerRole::kDecode));
  const std::string& refusal = cluster.Log("decode-0").refusal;
  EXPECT_NE(refusal.find("--worker-id of its own"), std::string::npos) << refusal;
  ASSERT_NE(cluster.core.registry().Find(lease), nullptr);
  EXPECT_EQ(cluster.core.registry().Find(lease)->description.name.incarnation, first);
  EXPECT_FALSE(cluster.sink->ended());
  EXPECT_EQ(cluster.core.RequestViews(cluster.now_us)[0].attempt, 1u);
  // Its own next connection is no other process.
  cluster.leases["decode-0"] = lease;
  cluster.lives["decode-0"] = first;
  WorkerDescription again = FakeCluster::Describe("decode-0", WorkerRole::kDecode);
  again.name.incarnation = first;
  cluster.Join(again);
  EXPECT_TRUE(cluster.Log("decode-0").accepted);
}

TEST(PlacementTest, DrainingWorkerGetsNothingNew) {
  FakeCluster cluster;
  cluster.JoinPair();
  cluster.Join(FakeCluster::Describe("decode-1", WorkerRole::kDecode));
  cluster.Report("prefill-0", {"decode-0", "decode-1"});
  WorkerLoadReport load;
  load.ready = true;
  load.draining = true;
  load.num_blocks = 64;
  load.blocks[0] = 64;
  cluster.core.OnWorkerLoad(cluster.leases["decode-0"], load, cluster.now_us);
  for (int i = 0; i < 4; ++i) cluster.Submit(cluster.Request("p"));
  EXPECT_TRUE(cluster.Log("decode-0").Of(Order::Kind::kDecode).empty());
  EXPECT_EQ(cluster.Log("decode-1").Of(Order::Kind::kDecode).size(), 4u);
}

TEST(PlacementTest, LoadIsSpreadBeforeWorkersReport) {
  FakeCluster cluster;
  cluster.JoinPair();
  cluster.Join(FakeCluster::Describe("decode-1", WorkerRole::kDecode));
  cluster.Join(FakeCluster::Describe("prefill-1", WorkerRole::kPrefill));
  cluster.Report("prefill-0", {"decode-0", "decode-1"});
  cluster.Report("prefill-1", {"decode-0", "decode-1"});
  for (int i = 0; i < 8; ++i) cluster.Submit(cluster.Request(std::string(100, 'p')));
  for (const char* id : {"prefill-0", "prefill-1"}) {
    EXPECT_EQ(cluster.Log(id).Of(Order::Kind::kPrefill).size(), 4u) << id;
  }
  for (const char* id : {"decode-0", "decode-1"}) {
    EXPECT_EQ(cluster.Log(id).Of(Order::Kind::kDecode).size(), 4u) << id;
  }
}

TEST(PlacementTest, FullPoolKeepsRequestsInOrder) {
  FakeCluster cluster;
  cluster.JoinPair();
  // 64 blocks of 16 tokens; 320 tokens take 20 + 1.
  std::vector<RequestUid> uids;
  for (int i = 0; i < 5; ++i) {
    uids.push_back(cluster.Submit(cluster.Request(std::string(320, 'p'))));
  }
  EXPECT_EQ(cluster.Log("decode-0").Of(Order::Kind::kDecode).size(), 3u);
  EXPECT_EQ(cluster.metrics.requests_waiting->value(), 2.0);
  // A small request could fit, but would starve the large ones.
  cluster.Submit(cluster.Request("small"));
  EXPECT_EQ(cluster.Log("decode-0").Of(Order::Kind::kDecode).size(), 3u);
  cluster.Text("decode-0", uids[1], 0, "x", FinishReason::kLength);
  cluster.core.Tick(cluster.now_us += 20'000);
  auto orders = cluster.Log("decode-0").Of(Order::Kind::kDecode);
  ASSERT_EQ(orders.size(), 4u);
  EXPECT_EQ(orders[3].uid, uids[3]);
}

TEST(PlacementTest, WorkersOwnReportLimitsToo) {
  FakeCluster cluster;
  cluster.JoinPair();
  cluster.Report("decode-0", {}, 3);  // another router filled it
  cluster.Submit(cluster.Request(std::string(100, 'p')));
  EXPECT_TRUE(cluster.Log("decode-0").Of(Order::Kind::kDecode).empty());
  cluster.Report("decode-0", {}, 20);
  EXPECT_EQ(cluster.Log("decode-0").Of(Order::Kind::kDecode).size(), 1u);
}

TEST(PlacementTest, QueueWaitAndLengthAreBounded) {
  RouterCoreConfig config;
  config.max_queued = 3;
  FakeCluster cluster(config);
  cluster.JoinPair();
  cluster.Report("decode-0", {}, 0);
  for (int i = 0; i < 3; ++i) cluster.Submit(cluster.Request("p"));
  const auto waiting = cluster.sink;
  cluster.Submit(cluster.Request("p"));
  ASSERT_TRUE(cluster.sink->error.has_value());
  EXPECT_EQ(cluster.sink->error->code, ErrorCode::kQueueFull);
  for (int i = 0; i < 105; ++i) {
    cluster.now_us += 100'000;
    cluster.Report("decode-0", {}, 0);
    cluster.Report("prefill-0", {"decode-0"});
    cluster.core.Tick(cluster.now_us);
  }
  ASSERT_TRUE(waiting->error.has_value());
  EXPECT_EQ(waiting->error->code, ErrorCode::kQueueTimeout);
  EXPECT_EQ(cluster.core.num_live(), 0u);
}

TEST(PlacementTest, WorkersThatAllDrainServeNobodyNew) {
  FakeCluster cluster;
  cluster.JoinPair();
  cluster.Report("decode-0", {}, 0);
  cluster.Submit(cluster.Request("p"));
  const auto waiting = cluster.sink;
  cluster.Report("decode-0", {}, 0, /*draining=*/true);
  cluster.Submit(cluster.Request("p"));
  ASSERT_TRUE(cluster.sink->error.has_value());
  EXPECT_EQ(cluster.sink->error->code, ErrorCode::kNoWorkers);
  EXPECT_FALSE(waiting->ended()) << "another worker may yet come";
  cluster.now_us += 11 * kSecond;
  cluster.Report("decode-0", {}, 0, /*draining=*/true);
  cluster.core.Tick(cluster.now_us);
  ASSERT_TRUE(waiting->error.has_value());
  EXPECT_EQ(waiting->error->code, ErrorCode::kNoWorkers);
}

TEST(PlacementTest, LosingTheLastWorkerEndsTheWaitIn503) {
  FakeCluster cluster;
  cluster.JoinPair();
  cluster.Report("decode-0", {}, 0);
  cluster.Submit(cluster.Request("p"));
  cluster.core.OnLeaseClosed(cluster.leases["decode-0"]);
  cluster.Advance(11 * kSecond, {"prefill-0"});
  ASSERT_TRUE(cluster.sink->error.has_value());
  EXPECT_EQ(cluster.sink->error->code, ErrorCode::kNoWorkers);
}

TEST(PlacementTest, RequestLargerThanEveryPoolIsRefusedForGood) {
  FakeCluster cluster;
  WorkerDescription small = FakeCluster::Describe("decode-0", WorkerRole::kDecode);
  small.num_blocks = 4;
  cluster.Join(small);
  cluster.Join(FakeCluster::Describe("prefill-0", WorkerRole::kPrefill));
  cluster.Report("prefill-0", {"decode-0"});
  cluster.Submit(cluster.Request(std::string(100, 'p')));
  ASSERT_TRUE(cluster.sink->error.has_value());
  EXPECT_EQ(cluster.sink->error->code, ErrorCode::kContextLengthExceeded);
  EXPECT_EQ(cluster.sink->error->num_prompt_tokens, 100u);
  EXPECT_EQ(cluster.sink->error->max_context, 65u) << "4 blocks of 16, and a last token without KV";
}

TEST(PlacementTest, WhatIsTooLargeIsNamedWithTheLargestThatFits) {
  struct Case {
    size_t prompt;
    uint32_t max_tokens;
    uint32_t num_choices;
    ErrorCode code;
    const char* param;
    std::string message;
  };
  const Case cases[] = {
      // 8 blocks of 16
      {113, 1, 1, ErrorCode::kContextLengthExceeded, "prompt",
       "'prompt' is too large: it must be at most 112 tokens, not 113: the largest worker has 8 KV "
       "blocks of 16 tokens."},
      {113, 1, 128, ErrorCode::kContextLengthExceeded, "prompt", ""},
      {100, 30, 1, ErrorCode::kContextLengthExceeded, "max_tokens",
       "'max_tokens' is too large: it must be at most 29 with this prompt of 100 tokens, not 30: "
       "the largest worker has 8 KV blocks of 16 tokens."},
      {40, 16, 6, ErrorCode::kInvalidValue, "n",
       "'n' is out of range: it must be at most 5 with this prompt of 40 tokens: the prompt and 6 "
       "choices need 9 KV blocks, the largest worker has 8 KV blocks of 16 tokens."},
      {112, 1, 1, ErrorCode::kInternal, "", ""},
      {100, 29, 1, ErrorCode::kInternal, "", ""},
      {40, 16, 5, ErrorCode::kInternal, "", ""},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.message);
    FakeCluster cluster;
    WorkerDescription decode = FakeCluster::Describe("decode-0", WorkerRole::kDecode);
    decode.num_blocks = 8;
    cluster.Join(decode);
    cluster.Join(FakeCluster::Describe("prefill-0", WorkerRole::kPrefill));
    cluster.Report("prefill-0", {"decode-0"});
    GenerateRequest request = cluster.Request(std::string(c.prompt, 'p'), c.max_tokens);
    request.num_choices = c.num_choices;
    cluster.Submit(std::move(request));
    ASSERT_EQ(cluster.sink->error.has_value(), *c.param != '\0');
    if (!cluster.sink->error.has_value()) continue;
    EXPECT_EQ(cluster.sink->error->code, c.code);
    EXPECT_EQ(cluster.sink->error->param, c.param);
    if (c.message.empty()) continue;
    EXPECT_EQ(cluster.sink->error->Message(), c.message);
  }
}

// 64 blocks of 16 tokens, of which each sequence has so many for its state.
void JoinPairWithStates(FakeCluster& cluster, uint32_t state_blocks = 10) {
  WorkerDescription decode = FakeCluster::Describe("decode-0", WorkerRole::kDecode);
  WorkerDescription prefill = FakeCluster::Describe("prefill-0", WorkerRole::kPrefill);
  decode.state_blocks = prefill.state_blocks = state_blocks;
  cluster.Join(decode);
  cluster.Join(prefill);
  cluster.Report("prefill-0", {"decode-0"});
}

TEST(PlacementTest, TheStateOfEachSequenceTakesItsBlocks) {
  FakeCluster cluster;
  JoinPairWithStates(cluster);
  // A prompt of two blocks takes 2 + 1 + 10 at the decode worker and 2 + 10 at the prefill worker.
  for (int i = 0; i < 6; ++i) cluster.Submit(cluster.Request(std::string(32, 'p')));
  EXPECT_EQ(cluster.Log("decode-0").Of(Order::Kind::kDecode).size(), 4u);
  EXPECT_EQ(cluster.PlacedBlocks("decode-0"), 4 * 13u);
  EXPECT_EQ(cluster.PlacedBlocks("prefill-0"), 4 * 12u);
  EXPECT_EQ(cluster.metrics.requests_waiting->value(), 2.0);
}

TEST(PlacementTest, AStreamWithAWindowTakesItsBlocksAlone) {
  FakeCluster cluster;
  WorkerDescription decode = FakeCluster::Describe("decode-0", WorkerRole::kDecode);
  decode.window_blocks = 3;
  cluster.Join(decode);
  cluster.Join(FakeCluster::Describe("prefill-0", WorkerRole::kPrefill));
  cluster.Report("prefill-0", {"decode-0"});
  // A prompt of 8 blocks takes 3 and one to grow into at the decode worker, and so does one with a
  // ninth block that is part full.
  for (const size_t num_tokens : {128u, 130u}) {
    cluster.Submit(cluster.Request(std::string(num_tokens, 'p')));
  }
  EXPECT_EQ(cluster.Log("decode-0").Of(Order::Kind::kDecode).size(), 2u);
  EXPECT_EQ(cluster.PlacedBlocks("decode-0"), 2 * 4u);
  EXPECT_EQ(cluster.PlacedBlocks("prefill-0"), 8u + 9u);
}

TEST(PlacementTest, EachChoiceHasAStateOfItsOwn) {
  FakeCluster cluster;
  JoinPairWithStates(cluster);
  GenerateRequest request = cluster.Request(std::string(32, 'p'));
  request.num_choices = 4;
  cluster.Submit(std::move(request));
  EXPECT_EQ(cluster.PlacedBlocks("decode-0"), 2 + 4 * 11u);
  EXPECT_EQ(cluster.PlacedBlocks("prefill-0"), 12u);
  cluster.Submit(cluster.Request(std::string(32, 'p')));
  EXPECT_EQ(cluster.Log("decode-0").Of(Order::Kind::kDecode).size(), 2u) << "13 of 18 are free";
}

TEST(PlacementTest, WhatIsTooLargeBesideAStateIsNamed) {
  const auto message_of = [](size_t prompt, uint32_t max_tokens, uint32_t num_choices) {
    FakeCluster cluster;
    JoinPairWithStates(cluster, 40);
    GenerateRequest request = cluster.Request(std::string(prompt, 'p'), max_tokens);
    request.num_choices = num_choices;
    cluster.Submit(std::move(request));
    return cluster.sink->error.has_value() ? cluster.sink->error->Message() : "";
  };
  EXPECT_EQ(message_of(23 * 16, 1, 1), "");
  EXPECT_EQ(message_of(23 * 16 + 1, 1, 1),
            "'prompt' is too large: it must be at most 368 tokens, not 369: the largest worker has "
            "64 KV blocks of 16 tokens, a state takes 40.");
  EXPECT_EQ(message_of(40, 16, 1), "");
  EXPECT_EQ(message_of(40, 16, 2),
            "'n' is out of range: it must be at most 1 with this prompt of 40 tokens: the prompt "
            "and 2 choices need 85 KV blocks, the largest worker has 64 KV blocks of 16 tokens, a "
            "state takes 40.");
}

TEST(PlacementTest, MoreChoicesThanTheWorkerRunsAtOnceStillGetIn) {
  FakeCluster cluster;
  cluster.JoinPair();
  GenerateRequest request = cluster.Request("p");
  request.num_choices = 20;  // max_running is 8
  cluster.Submit(std::move(request));
  EXPECT_EQ(cluster.Log("decode-0").Of(Order::Kind::kDecode).size(), 1u);
  cluster.Submit(cluster.Request("p"));
  EXPECT_EQ(cluster.Log("decode-0").Of(Order::Kind::kDecode).size(), 1u) << "but alone";
}

TEST(PlacementTest, ModelsAreThoseOfLiveDecodeWorkers) {
  FakeCluster cluster;
  cluster.JoinPair();
  EXPECT_TRUE(cluster.core.TakeModelsChanged());
  ASSERT_EQ(cluster.core.Models().size(), 1u);
  EXPECT_EQ(cluster.core.Models()[0]->id, "toy");
  EXPECT_EQ(cluster.core.Models()[0]->max_context, kTestContext);
  cluster.core.OnLeaseClosed(cluster.leases["decode-0"]);
  EXPECT_TRUE(cluster.core.Models().empty());
}

TEST(PlacementTest, TopologyAndRequestsShowWhatIs) {
  FakeCluster cluster;
  cluster.JoinPair();
  cluster.Report("decode-0", {}, 60);
  const RequestUid uid = cluster.Submit(cluster.Request("p"));
  const Topology topology = cluster.core.TopologyView(cluster.now_us);
  ASSERT_EQ(topology.processes.size(), 2u);
  EXPECT_EQ(topology.model, "toy");
  EXPECT_EQ(topology.processes[0].worker_id, "decode-0");
  EXPECT_TRUE(topology.processes[0].ready);
  EXPECT_EQ(topology.processes[0].kv_blocks[0], (std::pair<std::string, uint32_t>("free", 60)));
  ASSERT_EQ(topology.processes[1].links.size(), 1u);
  EXPECT_EQ(topology.processes[1].links[0].to, "decode-0");
  const auto views = cluster.core.RequestViews(cluster.now_us + 5'000);
  ASSERT_EQ(views.size(), 1u);
  EXPECT_EQ(views[0].uid, uid);
  EXPECT_EQ(views[0].state, "PLACING");
  EXPECT_EQ(views[0].age_ms, 5);
  EXPECT_EQ(views[0].decode_worker, "decode-0");
}

TEST(PlacementTest, TopologyShowsHowFastALinkIs) {
  FakeCluster cluster;
  cluster.JoinPair();
  const auto speed = [&] {
    return cluster.core.TopologyView(cluster.now_us).processes[1].links[0].bytes_per_s;
  };
  EXPECT_EQ(speed(), 0u) << "nothing has crossed";
  const auto cross = [&](float seconds) {
    const RequestUid uid = cluster.Submit(cluster.Request("p"));
    WorkerRequestStatus status;
    status.uid = uid;
    status.attempt = 1;
    status.state = WorkerRequestState::kVerified;
    status.kv_bytes = 4'000'000;
    status.transport = LinkKind::kShm;
    status.transfer_seconds = seconds;
    cluster.core.OnSessionStatus(cluster.Session("decode-0"), status, cluster.now_us);
    cluster.core.Cancel(uid);
  };
  cross(0.001f);
  EXPECT_NEAR(static_cast<double>(speed()), 4e9, 1e3);
  cross(0.002f);
  EXPECT_NEAR(static_cast<double>(speed()), 3.8e9, 1e3) << "a tenth of the newest";
  cross(0.0f);
  EXPECT_NEAR(static_cast<double>(speed()), 3.82e9, 1e3) << "no time counts as a millisecond";
  cross(std::nanf(""));
  EXPECT_NEAR(static_cast<double>(speed()), 3.82e9, 1e3);
  // Another life may be another host.
  cluster.core.OnLeaseClosed(cluster.leases["decode-0"]);
  cluster.Join(FakeCluster::Describe("decode-0", WorkerRole::kDecode));
  cluster.Report("prefill-0", {"decode-0"});
  const Topology topology = cluster.core.TopologyView(cluster.now_us);
  ASSERT_EQ(topology.processes[0].links.size(), 1u) << "workers are in the order of their leases";
  EXPECT_EQ(topology.processes[0].links[0].bytes_per_s, 0u);
}

// Computing sets the pace of a hand-off that ends with the prompt.
TEST(PlacementTest, TheLimitOfALinkIsLearntWhereItIsTheLimit) {
  FakeCluster cluster;
  cluster.JoinPair();
  const auto speed = [&] {
    return cluster.core.TopologyView(cluster.now_us).processes[1].links[0].bytes_per_s;
  };
  const auto cross = [&](float seconds, bool behind_prompt) {
    cluster.Report("decode-0");
    cluster.Report("prefill-0", {"decode-0"});
    const RequestUid uid = cluster.Submit(cluster.Request("p"));
    WorkerRequestStatus status;
    status.uid = uid;
    status.attempt = 1;
    if (behind_prompt) {
      status.state = WorkerRequestState::kPrefillDone;
      cluster.core.OnSessionStatus(cluster.Session("prefill-0"), status, cluster.now_us);
    }
    cluster.now_us += static_cast<int64_t>(seconds * 1e6f);
    status.state = WorkerRequestState::kVerified;
    status.kv_bytes = 4'000'000;
    status.transfer_seconds = seconds;
    cluster.core.OnSessionStatus(cluster.Session("decode-0"), status, cluster.now_us);
    cluster.core.Cancel(uid);
  };
  cross(0.5f, false);
  EXPECT_EQ(speed(), 8'000'000u) << "the average, as long as nothing else is known";
  cross(1, true);
  EXPECT_EQ(speed(), 4'000'000u);
  cross(2, false);
  EXPECT_EQ(speed(), 4'000'000u) << "a slow prompt is not a slow link";
  cross(0.1f, false);
  EXPECT_GT(speed(), 4'000'000u) << "but what has crossed has crossed";
}

TEST(PlacementTest, AWorkerThatWasAskedToLeaveGetsNothingNewAndFinishesWhatItHas) {
  FakeCluster cluster;
  cluster.JoinPair();
  cluster.Join(FakeCluster::Describe("decode-1", WorkerRole::kDecode));
  cluster.Report("prefill-0", {"decode-0", "decode-1"});
  const StatusOr<Incarnation> left = cluster.core.DrainWorker("decode-0", 5000);
  ASSERT_TRUE(left.ok()) << left.status();
  EXPECT_EQ(*left, cluster.lives["decode-0"]);
  EXPECT_EQ(cluster.Log("decode-0").drains_ms, std::vector<uint32_t>{5000});
  // Its heartbeats say nothing of it before the order has arrived.
  cluster.Report("decode-0");
  for (int i = 0; i < 8; ++i) cluster.Submit(cluster.Request("p"));
  EXPECT_TRUE(cluster.Log("decode-0").Of(Order::Kind::kDecode).empty());
  EXPECT_EQ(cluster.Log("decode-1").Of(Order::Kind::kDecode).size(), 8u);
  EXPECT_TRUE(cluster.core.DrainWorker("decode-0", 0).ok()) << "asking twice does no harm";
}

// A wait for connections of a leaver counts from the order; its last heartbeat may be long ago.
TEST(PlacementTest, AWorkerLeavesFromTheOrderOnAndNotFromItsLastHeartbeat) {
  FakeCluster cluster;
  cluster.JoinPair();
  const RegisteredWorker& leaver = *cluster.core.registry().Find(cluster.leases["decode-0"]);
  const int64_t heard_us = leaver.heard_us;
  cluster.core.Tick(cluster.now_us += 900'000);
  ASSERT_TRUE(cluster.core.DrainWorker("decode-0", 0).ok());
  EXPECT_EQ(leaver.draining_since_us, cluster.now_us);
  EXPECT_EQ(leaver.heard_us, heard_us) << "an order is no sign of life";
}

TEST(PlacementTest, AnUnknownWorkerCannotLeave) {
  FakeCluster cluster;
  cluster.JoinPair();
  cluster.Join(FakeCluster::Describe("decode-2", WorkerRole::kDecode));
  cluster.Join(FakeCluster::Describe("decode-1", WorkerRole::kDecode));
  const StatusOr<Incarnation> left = cluster.core.DrainWorker("decode-7", 0);
  EXPECT_EQ(left.status().code(), StatusCode::kNotFound);
  const std::string message(left.status().message());
  EXPECT_NE(message.find("decode-0, decode-1, decode-2, prefill-0"), std::string::npos)
      << "sorted by name: " << message;
}

TEST(PlacementTest, ANextLifeOfALeaverIsServedAgain) {
  FakeCluster cluster;
  cluster.JoinPair();
  ASSERT_TRUE(cluster.core.DrainWorker("decode-0", 0).ok());
  EXPECT_FALSE(cluster.core.Ready(cluster.now_us));
  cluster.core.OnLeaseClosed(cluster.leases["decode-0"]);
  cluster.Join(FakeCluster::Describe("decode-0", WorkerRole::kDecode));
  cluster.Report("prefill-0", {"decode-0"});
  EXPECT_TRUE(cluster.core.Ready(cluster.now_us));
}

}  // namespace
}  // namespace baton::router
