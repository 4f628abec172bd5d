// Whatever goes wrong, in whatever state: one proper end for the client, both workers told, nothing
// left behind.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/router/fake_cluster.h"
#include "tests/router/request_phase.h"

namespace baton::router {

using scheduler::FinishReason;

namespace {

using ::testing::HasSubstr;

constexpr int64_t kSecond = 1'000'000;

// The router keeps nothing of the request and has told every worker that may.
void ExpectClean(FakeCluster& cluster, Phase phase) {
  EXPECT_EQ(cluster.core.num_live(), 0u);
  for (const char* id : {"prefill-0", "decode-0"}) {
    const RegisteredWorker* worker = cluster.core.registry().Find(cluster.leases[id]);
    if (worker == nullptr) continue;
    EXPECT_EQ(worker->placed.num_blocks, 0u) << id;
    EXPECT_EQ(worker->placed.num_tokens, 0u) << id;
    EXPECT_EQ(worker->placed.num_sequences, 0u) << id;
    EXPECT_EQ(worker->num_requests, 0u) << id;
  }
  EXPECT_EQ(cluster.metrics.requests_running->value(), 0.0) << PhaseName(phase);
  EXPECT_EQ(cluster.metrics.requests_waiting->value(), 0.0) << PhaseName(phase);
}

TEST(RequestFaultTest, AbortInEachState) {
  for (const Phase phase : kAllPhases) {
    SCOPED_TRACE(PhaseName(phase));
    FakeCluster cluster;
    cluster.JoinPair();
    const RequestUid uid = PlayTo(cluster, phase);
    cluster.core.Cancel(uid);
    ASSERT_TRUE(cluster.sink->error.has_value());
    EXPECT_EQ(cluster.sink->error->code, ErrorCode::kCancelled);
    const bool placed = phase >= Phase::kPlaced;
    // Once the KV has crossed, the prefill worker holds nothing of the request.
    const bool prefill_holds = placed && phase < Phase::kVerified;
    EXPECT_EQ(cluster.Log("decode-0").Of(Order::Kind::kCancel).size(), placed ? 1u : 0u);
    EXPECT_EQ(cluster.Log("prefill-0").Of(Order::Kind::kCancel).size(), prefill_holds ? 1u : 0u);
    ExpectClean(cluster, phase);
    // Twice, and after the end: no effect.
    cluster.core.Cancel(uid);
    cluster.State("decode-0", uid, WorkerRequestState::kCancelled);
    cluster.Text("decode-0", uid, 3, "late");
    EXPECT_EQ(cluster.Log("decode-0").Of(Order::Kind::kCancel).size(), placed ? 1u : 0u);
    EXPECT_EQ(cluster.metrics.stale_events_total->value(), 0u);
  }
}

// A client that keeps its deadline itself is heard as it passes, perhaps a moment before.
TEST(RequestFaultTest, AnAbortAtTheDeadlineIsTheDeadline) {
  const auto code_after = [](int64_t timeout_us, int64_t left_us, CancelCause cause) {
    FakeCluster cluster;
    cluster.JoinPair();
    GenerateRequest request = cluster.Request("prompt");
    request.timeout_us = timeout_us;
    const RequestUid uid = cluster.Submit(std::move(request));
    cluster.core.Cancel(uid, cause, cluster.now_us + timeout_us - left_us);
    ExpectClean(cluster);
    return cluster.sink->error->code;
  };
  constexpr auto kLeft = CancelCause::kClientLeft;
  EXPECT_EQ(code_after(5'000'000, 50'000, kLeft), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(code_after(5'000'000, 150'000, kLeft), ErrorCode::kCancelled);
  EXPECT_EQ(code_after(100'000, 50'000, kLeft), ErrorCode::kCancelled);
  EXPECT_EQ(code_after(100'000, 20'000, kLeft), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(code_after(5'000'000, 0, CancelCause::kSlowClient), ErrorCode::kSlowClient);
}

TEST(RequestFaultTest, AbortAfterTheGoodEndDoesNothing) {
  FakeCluster cluster;
  cluster.JoinPair();
  const RequestUid uid = PlayTo(cluster, Phase::kDecoding);
  cluster.Text("decode-0", uid, 3, "d", FinishReason::kStop);
  ASSERT_TRUE(cluster.sink->result.has_value());
  cluster.core.Cancel(uid);
  EXPECT_FALSE(cluster.sink->error.has_value());
}

TEST(RequestFaultTest, SessionLossIsALostWorkerAndTheSessionComesBack) {
  FakeCluster cluster;
  cluster.JoinPair();
  PlayTo(cluster, Phase::kDecoding);
  const SessionRef old = cluster.Session("decode-0");
  cluster.core.OnSessionDown(old, "reset", cluster.now_us);
  EXPECT_FALSE(cluster.sink->ended());
  cluster.Advance(300'000, {"decode-0", "prefill-0"});
  EXPECT_EQ(cluster.Log("decode-0").num_sessions_opened, 2);
  // Events of the old session are void.
  cluster.core.OnSessionUp(old, cluster.now_us);
  EXPECT_FALSE(cluster.core.Ready(cluster.now_us));
  cluster.core.OnSessionUp(cluster.Session("decode-0"), cluster.now_us);
  EXPECT_TRUE(cluster.core.Ready(cluster.now_us));
  const auto orders = cluster.Log("decode-0").Of(Order::Kind::kDecode);
  ASSERT_EQ(orders.size(), 2u) << "the request goes on in the new session";
  EXPECT_EQ(orders[1].attempt, 2u);
  EXPECT_EQ(orders[1].replayed, BytesOf("abc"));
}

// A worker may register with an address that cannot be reached, and is asked again for ever.
TEST(RequestFaultTest, ASessionThatDoesNotComeUpIsSaidEverMoreSeldom) {
  FakeCluster cluster;
  cluster.JoinPair();
  testing::internal::CaptureStderr();
  cluster.core.OnSessionDown(cluster.Session("decode-0"), "reset", cluster.now_us);
  for (int i = 0; i < 100; ++i) {
    cluster.Advance(300'000, {"decode-0", "prefill-0"});
    cluster.core.OnSessionDown(cluster.Session("decode-0"), "refused", cluster.now_us);
  }
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("the session with worker decode-0 ended: reset"));
  size_t num_said = 0;
  for (size_t at = log.find("refused"); at != std::string::npos; at = log.find("refused", at + 1)) {
    ++num_said;
  }
  EXPECT_EQ(num_said, 7u) << "after 1, 2, 4, ... 64 tries\n" << log;
  EXPECT_THAT(log, HasSubstr("after 64 tries: refused"));
}

TEST(RequestFaultTest, SilentWorkerIsDeadAfterTwoSeconds) {
  FakeCluster cluster;
  cluster.JoinPair();
  PlayTo(cluster, Phase::kDecoding);
  cluster.Advance(1'900'000, {"prefill-0"});
  EXPECT_FALSE(cluster.sink->ended());
  EXPECT_NE(cluster.core.registry().Find(cluster.leases["decode-0"]), nullptr);
  cluster.Advance(200'000, {"prefill-0"});
  EXPECT_EQ(cluster.core.registry().Find(cluster.leases["decode-0"]), nullptr);
  EXPECT_FALSE(cluster.sink->ended()) << "it waits for another";
}

// Nobody was silent while the router itself was stopped, for which its requests must not pay.
TEST(RequestFaultTest, NoSilenceCountsOfATimeInWhichTheRouterStoodStill) {
  constexpr int64_t kStillUs = 40'000'000;  // longer than all limits on silence
  for (const Phase phase : kAllPhases) {
    if (phase == Phase::kQueued) continue;
    SCOPED_TRACE(PhaseName(phase));
    FakeCluster cluster;
    cluster.JoinPair();
    PlayTo(cluster, phase);
    cluster.now_us += kStillUs;
    cluster.core.ForgiveSilence(kStillUs);
    EXPECT_TRUE(cluster.core.Ready(cluster.now_us));
    cluster.Advance(900'000, {});
    EXPECT_FALSE(cluster.sink->ended());
    EXPECT_EQ(cluster.Log("decode-0").Of(Order::Kind::kDecode).size(), 1u) << "placed again";
    EXPECT_EQ(cluster.Log("prefill-0").Of(Order::Kind::kCancel).size(), 0u);
    cluster.Advance(1'200'000, {"prefill-0"});
    EXPECT_EQ(cluster.core.registry().Find(cluster.leases["decode-0"]), nullptr)
        << "silence after it counts";
  }
}

TEST(RequestFaultTest, SuspectWorkerGetsNoNewRequest) {
  FakeCluster cluster;
  cluster.JoinPair();
  cluster.Advance(1'200'000, {"prefill-0"});
  cluster.Submit(cluster.Request("p"));
  EXPECT_TRUE(cluster.Log("decode-0").Of(Order::Kind::kDecode).empty());
  cluster.Report("decode-0");
  EXPECT_EQ(cluster.Log("decode-0").Of(Order::Kind::kDecode).size(), 1u);
}

TEST(RequestFaultTest, RefusalForLoadIsRetriedUntilTheQueueWaitEnds) {
  FakeCluster cluster;
  cluster.JoinPair();
  const RequestUid uid = PlayTo(cluster, Phase::kPrefilling);
  cluster.Text("prefill-0", uid, 0, "a");
  EXPECT_EQ(cluster.sink->tokens.size(), 1u);
  // That one had been accepted; the next is refused while its prompt is being computed.
  const RequestUid second = cluster.Submit(cluster.Request("second"));
  cluster.Text("prefill-0", second, 0, "a");
  cluster.State("decode-0", second, WorkerRequestState::kRejected, StatusCode::kResourceExhausted);
  EXPECT_FALSE(cluster.sink->ended());
  EXPECT_TRUE(cluster.Log("prefill-0").Of(Order::Kind::kCancel).empty()) << "its prompt is kept";
  EXPECT_EQ(cluster.Log("decode-0").Of(Order::Kind::kDecode).size(), 2u) << "not at once";
  cluster.Advance(200'000, {"decode-0", "prefill-0"});
  auto orders = cluster.Log("decode-0").Of(Order::Kind::kDecode);
  ASSERT_EQ(orders.size(), 3u);
  EXPECT_EQ(orders[2].uid, second);
  EXPECT_EQ(orders[2].attempt, 2u);
  // Late news of the first placement is void.
  cluster.Text("prefill-0", second, 0, "z");
  EXPECT_EQ(cluster.metrics.stale_events_total->value(), 1u);
  EXPECT_TRUE(orders[2].replayed.empty()) << "the prompt's end gives the first token again";
  cluster.State("decode-0", second, WorkerRequestState::kReserved, StatusCode::kOk, 2);
  cluster.text_attempt = 2;
  cluster.Text("prefill-0", second, 0, "ab", FinishReason::kLength);
  ASSERT_TRUE(cluster.sink->result.has_value());
  EXPECT_EQ(cluster.sink->Text(), "ab");
  EXPECT_EQ(cluster.sink->result->timings.resumes, 0u) << "a refusal is no fault";
}

TEST(RequestFaultTest, RefusalsWithoutEndBecome429AndAreFew) {
  FakeCluster cluster;
  cluster.JoinPair();
  const RequestUid uid = cluster.Submit(cluster.Request("p"));
  size_t refused = 0;
  while (!cluster.sink->ended() && cluster.now_us < 20 * kSecond) {
    const auto orders = cluster.Log("decode-0").Of(Order::Kind::kDecode);
    if (orders.size() > refused) {
      refused = orders.size();
      cluster.State("decode-0", uid, WorkerRequestState::kRejected, StatusCode::kResourceExhausted,
                    orders.back().attempt);
    }
    cluster.Advance(100'000, {"decode-0", "prefill-0"});
  }
  ASSERT_TRUE(cluster.sink->error.has_value());
  EXPECT_EQ(cluster.sink->error->code, ErrorCode::kQueueTimeout);
  EXPECT_EQ(HttpStatusOf(cluster.sink->error->code), 429);
  EXPECT_GT(cluster.sink->error->retry_after_s, 0u);
  EXPECT_GE(refused, 5u);
  EXPECT_LE(refused, 40u) << "refusals back off";
  EXPECT_NEAR(static_cast<double>(cluster.now_us), 11.0 * kSecond, 0.2 * kSecond);
}

// Two decode workers that compute their prompts; decode-0 looks emptier.
struct TwoDecoders {
  TwoDecoders() : cluster(Config()) {
    cluster.Join(FakeCluster::Describe("decode-0", WorkerRole::kDecode));
    cluster.Join(FakeCluster::Describe("decode-1", WorkerRole::kDecode));
    Report();
  }
  static RouterCoreConfig Config() {
    RouterCoreConfig config;
    config.mode = ServeMode::kAggregated;
    return config;
  }
  void Report() {
    cluster.Report("decode-0");
    cluster.Report("decode-1", {}, 32);
  }
  size_t NumPlaced(const std::string& id) {
    return cluster.Log(id).Of(Order::Kind::kDecode).size();
  }
  FakeCluster cluster;
};

TEST(RequestFaultTest, AWorkerThatRefusesHoldsUpNobodyBesideAnIdleOne) {
  TwoDecoders two;
  FakeCluster& cluster = two.cluster;
  const RequestUid first = cluster.Submit(cluster.Request("first"));
  ASSERT_EQ(two.NumPlaced("decode-0"), 1u);
  cluster.State("decode-0", first, WorkerRequestState::kRejected, StatusCode::kResourceExhausted);
  EXPECT_EQ(two.NumPlaced("decode-1"), 1u) << "there is room for it there";
  for (int i = 0; i < 3; ++i) cluster.Submit(cluster.Request("later"));
  EXPECT_EQ(two.NumPlaced("decode-1"), 4u) << "nor do those behind it wait";
  EXPECT_EQ(two.NumPlaced("decode-0"), 1u) << "it has said that it is full";
  cluster.now_us += 30'000;
  two.Report();
  cluster.Submit(cluster.Request("later"));
  EXPECT_EQ(two.NumPlaced("decode-0"), 2u) << "for a moment only";
}

TEST(RequestFaultTest, AWorkerThatGoesOnRefusingIsTriedLessAndLess) {
  TwoDecoders two;
  FakeCluster& cluster = two.cluster;
  size_t num_refused = 0;
  for (int tick = 0; tick < 200; ++tick) {  // 4 s
    const RequestUid uid = cluster.Submit(cluster.Request("p", 1));
    for (const Order& order : cluster.Log("decode-0").Of(Order::Kind::kDecode)) {
      if (order.uid != uid) continue;
      cluster.State("decode-0", uid, WorkerRequestState::kRejected, StatusCode::kResourceExhausted);
      cluster.text_attempt = 2;
      ++num_refused;
    }
    cluster.Text("decode-1", uid, 0, "x", FinishReason::kLength);
    ASSERT_TRUE(cluster.sink->result.has_value()) << "after " << tick;
    cluster.text_attempt = 1;
    cluster.now_us += 20'000;
    two.Report();
    cluster.core.Tick(cluster.now_us);
  }
  EXPECT_LE(num_refused, 15u);
}

// Else a large one would be starved by small ones.
TEST(RequestFaultTest, ARefusalByTheOnlyWorkerKeepsTheOrder) {
  FakeCluster cluster(TwoDecoders::Config());
  cluster.Join(FakeCluster::Describe("decode-0", WorkerRole::kDecode));
  const RequestUid large = cluster.Submit(cluster.Request(std::string(320, 'p')));
  cluster.State("decode-0", large, WorkerRequestState::kRejected, StatusCode::kResourceExhausted);
  EXPECT_TRUE(cluster.core.Ready(cluster.now_us)) << "it is full, not gone";
  const RequestUid small = cluster.Submit(cluster.Request("small"));
  EXPECT_EQ(cluster.Log("decode-0").Of(Order::Kind::kDecode).size(), 1u);
  cluster.Advance(100'000, {"decode-0"});
  const auto orders = cluster.Log("decode-0").Of(Order::Kind::kDecode);
  ASSERT_EQ(orders.size(), 3u);
  EXPECT_EQ(orders[1].uid, large);
  EXPECT_EQ(orders[2].uid, small);
}

TEST(RequestFaultTest, PermanentRefusalIsNeverRetried) {
  for (const StatusCode code : {StatusCode::kInvalidArgument, StatusCode::kFailedPrecondition,
                                StatusCode::kInternal, StatusCode::kOutOfRange}) {
    FakeCluster cluster;
    cluster.JoinPair();
    const RequestUid uid = PlayTo(cluster, Phase::kPlaced);
    cluster.State("decode-0", uid, WorkerRequestState::kRejected, code);
    ASSERT_TRUE(cluster.sink->error.has_value());
    const ErrorCode expected = code == StatusCode::kOutOfRange ? ErrorCode::kContextLengthExceeded
                                                               : ErrorCode::kWorkerFailed;
    EXPECT_EQ(cluster.sink->error->code, expected);
    cluster.Advance(kSecond, {"decode-0", "prefill-0"});
    EXPECT_EQ(cluster.Log("decode-0").Of(Order::Kind::kDecode).size(), 1u);
    ExpectClean(cluster, Phase::kPlaced);
  }
}

TEST(RequestFaultTest, DeadlineInEachState) {
  for (const Phase phase : kAllPhases) {
    SCOPED_TRACE(PhaseName(phase));
    RouterCoreConfig config;
    config.queue_wait_us = 1000 * kSecond;
    config.reserve_timeout_us = 1000 * kSecond;
    config.worker_stall_us = 1000 * kSecond;
    FakeCluster cluster(config);
    cluster.JoinPair();
    PlayTo(cluster, phase);
    const int64_t deadline_us = cluster.now_us + 600 * kSecond;
    const std::optional<uint32_t> free =
        phase == Phase::kQueued ? std::optional<uint32_t>(0) : std::nullopt;
    while (cluster.now_us < deadline_us) {
      ASSERT_FALSE(cluster.sink->ended()) << "after " << cluster.now_us << " us";
      cluster.now_us = std::min(deadline_us, cluster.now_us + 900'000);
      cluster.Report("decode-0", {}, free);
      cluster.Report("prefill-0", {"decode-0"});
      cluster.core.Tick(cluster.now_us);
    }
    ASSERT_TRUE(cluster.sink->error.has_value());
    EXPECT_EQ(cluster.sink->error->code, ErrorCode::kDeadlineExceeded);
    EXPECT_EQ(HttpStatusOf(cluster.sink->error->code), 504);
    ExpectClean(cluster, phase);
  }
}

TEST(RequestFaultTest, LongPromptIsNoHang) {
  FakeCluster cluster;
  cluster.JoinPair();
  PlayTo(cluster, Phase::kPrefilling);
  for (uint32_t free = 60; free > 30; --free) {
    cluster.now_us += kSecond;
    cluster.Report("decode-0");
    cluster.Report("prefill-0", {"decode-0"}, free);  // its pool moves, so its engine does
    cluster.core.Tick(cluster.now_us);
  }
  EXPECT_FALSE(cluster.sink->ended());
}

TEST(RequestFaultTest, LeasesAreRenewedWhileRequestsLive) {
  FakeCluster cluster;
  cluster.JoinPair();
  const RequestUid uid = PlayTo(cluster, Phase::kVerified);
  const size_t before = cluster.Log("decode-0").Of(Order::Kind::kRenew).size();
  for (int i = 0; i < 40; ++i) {
    cluster.Text("decode-0", uid, i == 0 ? 0 : 1, i == 0 ? "a" : "b");
    cluster.Advance(200'000, {"decode-0", "prefill-0"});
  }
  EXPECT_GE(cluster.Log("decode-0").Of(Order::Kind::kRenew).size(), before + 3);
}

TEST(RequestFaultTest, SlowClientPausesItselfOnly) {
  RouterCoreConfig config;
  config.worker_stall_us = 1000 * kSecond;
  FakeCluster cluster(config);
  cluster.JoinPair();
  const RequestUid slow = PlayTo(cluster, Phase::kDecoding, 400);
  const auto slow_sink = cluster.sink;
  slow_sink->buffered = kPauseBytes + 1;
  cluster.Text("decode-0", slow, 3, "defg");
  EXPECT_EQ(slow_sink->Text(), "abc") << "paused";
  const RequestUid other = cluster.Submit(cluster.Request("q"));
  cluster.Text("decode-0", other, 0, "xyz", FinishReason::kLength);
  EXPECT_TRUE(cluster.sink->result.has_value()) << "others go on";
  // It reads a little every 20 s: progress, so it stays.
  for (int i = 0; i < 5; ++i) {
    slow_sink->buffered -= 10'000;
    cluster.Text("decode-0", slow, 7 + i, "h");
    cluster.Advance(8 * kSecond, {"decode-0", "prefill-0"});
    ASSERT_FALSE(slow_sink->ended());
  }
  slow_sink->buffered = 0;
  cluster.Advance(100'000, {"decode-0", "prefill-0"});
  EXPECT_EQ(slow_sink->Text(), "abcdefghhhhh") << "nothing was lost";
}

TEST(RequestFaultTest, ClientThatReadsNothingIsCancelledAfter30Seconds) {
  RouterCoreConfig config;
  config.worker_stall_us = 1000 * kSecond;
  FakeCluster cluster(config);
  cluster.JoinPair();
  const RequestUid uid = PlayTo(cluster, Phase::kDecoding);
  cluster.sink->buffered = kPauseBytes + 1;
  cluster.Text("decode-0", uid, 3, "d");
  cluster.Advance(29 * kSecond, {"decode-0", "prefill-0"});
  EXPECT_FALSE(cluster.sink->ended());
  cluster.Advance(2 * kSecond, {"decode-0", "prefill-0"});
  ASSERT_TRUE(cluster.sink->error.has_value());
  EXPECT_EQ(cluster.sink->error->code, ErrorCode::kSlowClient);
  EXPECT_EQ(cluster.Log("decode-0").Of(Order::Kind::kCancel).size(), 1u);
}

TEST(RequestFaultTest, SlowClientSurvivesTheDeathOfItsFinishedWorker) {
  FakeCluster cluster;
  cluster.JoinPair();
  const RequestUid uid = PlayTo(cluster, Phase::kDecoding);
  cluster.sink->buffered = kPauseBytes + 1;
  cluster.Text("decode-0", uid, 3, "de", FinishReason::kLength);
  EXPECT_FALSE(cluster.sink->ended());
  cluster.core.OnLeaseClosed(cluster.leases["decode-0"]);
  EXPECT_FALSE(cluster.sink->ended()) << "every token is here already";
  cluster.sink->buffered = 0;
  cluster.core.Tick(cluster.now_us += 20'000);
  ASSERT_TRUE(cluster.sink->result.has_value());
  EXPECT_EQ(cluster.sink->Text(), "abcde");
  EXPECT_EQ(cluster.sink->result->timings.decode_worker, "decode-0");
}

TEST(RequestFaultTest, ShutdownEndsEverything) {
  for (const Phase phase : kAllPhases) {
    SCOPED_TRACE(PhaseName(phase));
    FakeCluster cluster;
    cluster.JoinPair();
    PlayTo(cluster, phase);
    cluster.core.Shutdown();
    ASSERT_TRUE(cluster.sink->error.has_value());
    EXPECT_EQ(cluster.sink->error->code, ErrorCode::kDraining);
    EXPECT_TRUE(cluster.Log("decode-0").lease_closed);
    EXPECT_EQ(cluster.Log("decode-0").num_sessions_closed, 1);
    EXPECT_EQ(cluster.core.num_live(), 0u);
  }
}

// A client that still reaches a router that leaves is served, until the router stops.
TEST(RequestFaultTest, ARouterThatLeavesServesUntilItStops) {
  FakeCluster cluster;
  cluster.JoinPair();
  const RequestUid uid = PlayTo(cluster, Phase::kDecoding);
  const auto running = cluster.sink;
  cluster.core.BeginLeave();
  EXPECT_FALSE(cluster.core.Ready(cluster.now_us));
  cluster.Text("decode-0", uid, 3, "d", FinishReason::kLength);
  EXPECT_TRUE(running->result.has_value());
  const RequestUid late = PlayTo(cluster, Phase::kDecoding);
  cluster.Text("decode-0", late, 3, "d", FinishReason::kLength);
  EXPECT_TRUE(cluster.sink->result.has_value());
  cluster.core.Shutdown();
  cluster.Submit(cluster.Request("later"));
  ASSERT_TRUE(cluster.sink->error.has_value());
  EXPECT_EQ(cluster.sink->error->code, ErrorCode::kDraining);
}

// A deadline that ends while a worker has the request is the client's, not the worker's fault.
TEST(RequestFaultTest, WorkerThatFindsTheDeadlinePassedIsNotAtFault) {
  for (const WorkerRequestState state :
       {WorkerRequestState::kRejected, WorkerRequestState::kFailed}) {
    FakeCluster cluster;
    cluster.JoinPair();
    GenerateRequest request = cluster.Request("p");
    request.timeout_us = kSecond;
    const RequestUid uid = cluster.Submit(std::move(request));
    cluster.Advance(950'000, {"decode-0", "prefill-0"});
    cluster.State("decode-0", uid, state, StatusCode::kDeadlineExceeded);
    ASSERT_TRUE(cluster.sink->error.has_value());
    EXPECT_EQ(cluster.sink->error->code, ErrorCode::kDeadlineExceeded);
  }
}

TEST(RequestFaultTest, ShortestDeadlineIsStillAnOrderThatAWorkerTakes) {
  FakeCluster cluster;
  cluster.JoinPair();
  GenerateRequest request = cluster.Request("p");
  request.timeout_us = 1'000;
  cluster.now_us += 300;  // tokenising took its time
  cluster.Submit(std::move(request));
  const auto orders = cluster.Log("decode-0").Of(Order::Kind::kDecode);
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_EQ(orders[0].deadline_ms, 1u);
}

TEST(RequestFaultTest, RequestThatCameTooLateIsNotPlaced) {
  FakeCluster cluster;
  cluster.JoinPair();
  GenerateRequest request = cluster.Request("p");
  request.timeout_us = 1'000;
  cluster.now_us += 1'000;
  cluster.Submit(std::move(request));
  EXPECT_TRUE(cluster.Log("decode-0").Of(Order::Kind::kDecode).empty());
  ASSERT_TRUE(cluster.sink->error.has_value());
  EXPECT_EQ(cluster.sink->error->code, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(cluster.core.num_live(), 0u);
}

}  // namespace
}  // namespace baton::router
