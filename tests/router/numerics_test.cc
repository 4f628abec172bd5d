// Streams in a cluster whose workers are of two numerics, as in a rolling update: what a client has
// seen goes on with the same bits, or says that it did not; and nobody else waits for that.
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/router/fake_cluster.h"

namespace baton::router {

using scheduler::FinishReason;

namespace {

constexpr ServeMode kAlone = ServeMode::kAggregated;

// A decode worker of the numerics that every other one of these tests has, or of other ones.
WorkerDescription Own(const std::string& id) {
  return FakeCluster::Describe(id, WorkerRole::kDecode);
}
WorkerDescription Other(const std::string& id) {
  WorkerDescription worker = Own(id);
  worker.fingerprint.numerics_id = 9;
  return worker;
}

// One whose bits depend on how a prompt is cut into steps.
WorkerDescription Fast(const std::string& id) {
  WorkerDescription worker = Other(id);
  worker.fingerprint.varies_with_batch = true;
  return worker;
}

std::vector<Order> OrdersOf(FakeCluster& cluster, const std::string& id, RequestUid uid) {
  std::vector<Order> orders = cluster.Log(id).Of(Order::Kind::kDecode);
  std::erase_if(orders, [&](const Order& order) { return order.uid != uid; });
  return orders;
}

void Lose(FakeCluster& cluster, const std::string& id) {
  cluster.core.OnLeaseClosed(cluster.leases.at(id));
}

TEST(NumericsTest, TheOneNewTokenIsReplayedToOtherNumerics) {
  FakeCluster cluster({.mode = kAlone});
  cluster.Join(Own("own"));
  const RequestUid uid = cluster.Submit(cluster.Request("prompt"));
  cluster.Text("own", uid, 0, "a");
  cluster.Join(Other("other"));
  Lose(cluster, "own");
  cluster.Advance(200'000, {"other"});
  const auto orders = OrdersOf(cluster, "other", uid);
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_EQ(orders[0].replayed, BytesOf("a")) << "it could choose another one";
  cluster.text_attempt = orders[0].attempt;
  cluster.Text("other", uid, 1, "b", FinishReason::kLength);
  ASSERT_TRUE(cluster.sink->result.has_value());
  EXPECT_EQ(cluster.sink->Text(), "ab");
  EXPECT_FALSE(cluster.sink->result->timings.exact);
  EXPECT_EQ(cluster.metrics.inexact_answers_total->value(), 1u);
  EXPECT_EQ(cluster.metrics.kv_chain_mismatch_total->value(), 0u);
}

TEST(NumericsTest, AnswersOfFastWorkersAreNotExact) {
  FakeCluster cluster({.mode = kAlone});
  cluster.Join(Fast("fast"));
  const RequestUid uid = cluster.Submit(cluster.Request("prompt"));
  cluster.Text("fast", uid, 0, "ab", FinishReason::kLength);
  ASSERT_TRUE(cluster.sink->result.has_value());
  EXPECT_FALSE(cluster.sink->result->timings.exact);
  EXPECT_EQ(cluster.metrics.inexact_answers_total->value(), 0u) << "all of it is of one numerics";
}

// Equal workers would compute the tokens again with the same bits; fast workers need not.
TEST(NumericsTest, AFastStreamGoesOnFromAllThatWasSeen) {
  for (const bool is_fast : {true, false}) {
    FakeCluster cluster({.mode = kAlone});
    cluster.Join(is_fast ? Fast("lost") : Other("lost"));
    const RequestUid uid = cluster.Submit(cluster.Request("prompt"));
    cluster.Text("lost", uid, 0, "a");
    cluster.Join(is_fast ? Fast("next") : Other("next"));
    Lose(cluster, "lost");
    cluster.Advance(200'000, {"next"});
    const auto orders = OrdersOf(cluster, "next", uid);
    ASSERT_EQ(orders.size(), 1u);
    EXPECT_EQ(orders[0].replayed, BytesOf(is_fast ? "a" : ""));
    cluster.text_attempt = orders[0].attempt;
    cluster.Text("next", uid, is_fast ? 1 : 0, is_fast ? "b" : "ab", FinishReason::kLength);
    ASSERT_TRUE(cluster.sink->result.has_value());
    EXPECT_EQ(cluster.sink->Text(), "ab");
    EXPECT_EQ(cluster.sink->result->timings.exact, !is_fast);
    EXPECT_EQ(cluster.metrics.kv_chain_mismatch_total->value(), 0u);
  }
}

// The KV of the prompt was another's: the same pair, or one process alone, may choose otherwise.
TEST(NumericsTest, AStreamOfAnInexactPairGoesOnFromAllThatWasSeen) {
  for (const uint32_t num_choices : {1, 2}) {
    FakeCluster cluster;
    WorkerDescription decode = Own("lost");
    WorkerDescription prefill = FakeCluster::Describe("prefill-0", WorkerRole::kPrefill);
    prefill.fingerprint.numerics_id = 9;
    prefill.fingerprint.allow_inexact = decode.fingerprint.allow_inexact = true;
    cluster.Join(decode);
    cluster.Join(prefill);
    cluster.Report("prefill-0", {"lost"});
    GenerateRequest request = cluster.Request("prompt");
    request.num_choices = num_choices;
    const RequestUid uid = cluster.Submit(std::move(request));
    EXPECT_TRUE(cluster.Log("prefill-0").Of(Order::Kind::kPrefill).at(0).is_cacheable)
        << "its own bits";
    EXPECT_FALSE(OrdersOf(cluster, "lost", uid).at(0).is_cacheable)
        << "whoever found them there would be told that they are exact";
    cluster.Text("lost", uid, 0, "a");
    cluster.Join(Own("next"));
    Lose(cluster, "prefill-0");
    Lose(cluster, "lost");
    cluster.Advance(4'000'000, {"next"});
    const auto orders = OrdersOf(cluster, "next", uid);
    if (num_choices > 1) {
      EXPECT_TRUE(orders.empty());
      ASSERT_TRUE(cluster.sink->error.has_value());
      EXPECT_EQ(cluster.sink->error->code, ErrorCode::kWorkerLost);
      continue;
    }
    ASSERT_EQ(orders.size(), 1u);
    EXPECT_EQ(orders[0].replayed, BytesOf("a"));
    cluster.text_attempt = orders[0].attempt;
    cluster.Text("next", uid, 1, "b", FinishReason::kLength);
    ASSERT_TRUE(cluster.sink->result.has_value());
    EXPECT_EQ(cluster.sink->Text(), "ab");
    EXPECT_FALSE(cluster.sink->result->timings.exact);
  }
}

TEST(NumericsTest, AFastStreamLeavesADrainingWorkerWithItsKvOnly) {
  for (const bool is_fast : {true, false}) {
    FakeCluster cluster({.mode = kAlone});
    cluster.Join(is_fast ? Fast("drains") : Other("drains"));
    const RequestUid uid = cluster.Submit(cluster.Request("prompt"));
    cluster.Text("drains", uid, 0, "ab");
    cluster.Join(is_fast ? Fast("next") : Other("next"));
    for (int i = 0; i < 15; ++i) {
      cluster.Report("drains", {}, std::nullopt, /*draining=*/true);
      cluster.Advance(100'000, {"next"});
    }
    EXPECT_EQ(OrdersOf(cluster, "next", uid).size(), is_fast ? 0u : 1u);
    cluster.Text("drains", uid, 2, "c", FinishReason::kLength);
    ASSERT_TRUE(cluster.sink->result.has_value());
    EXPECT_EQ(cluster.sink->Text(), "abc");
  }
}

TEST(NumericsTest, SeveralChoicesOfAFastWorkerAreNotComputedAgain) {
  FakeCluster cluster({.mode = kAlone});
  cluster.Join(Fast("lost"));
  GenerateRequest request = cluster.Request("prompt");
  request.num_choices = 2;
  const RequestUid uid = cluster.Submit(std::move(request));
  cluster.Text("lost", uid, 0, "a");
  cluster.Join(Fast("next"));
  Lose(cluster, "lost");
  cluster.Advance(200'000, {"next"});
  EXPECT_TRUE(OrdersOf(cluster, "next", uid).empty());
  ASSERT_TRUE(cluster.sink->error.has_value());
  EXPECT_EQ(cluster.sink->error->code, ErrorCode::kWorkerLost);
  EXPECT_EQ(cluster.metrics.kv_chain_mismatch_total->value(), 0u);
}

TEST(NumericsTest, TokensThatNobodyHasSeenBindNothing) {
  FakeCluster cluster;
  cluster.JoinPair();
  const RequestUid uid = cluster.Submit(cluster.Request("prompt"));
  cluster.Text("prefill-0", uid, 0, "a");  // decode-0 has not accepted
  cluster.Join(Other("other"));
  Lose(cluster, "decode-0");
  cluster.Advance(4'000'000, {"other", "prefill-0"});
  const auto orders = OrdersOf(cluster, "other", uid);
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_TRUE(orders[0].replayed.empty());
  cluster.text_attempt = orders[0].attempt;
  cluster.Text("other", uid, 0, "zy", FinishReason::kLength);
  ASSERT_TRUE(cluster.sink->result.has_value());
  EXPECT_EQ(cluster.sink->Text(), "zy");
  EXPECT_TRUE(cluster.sink->result->timings.exact);
}

// Where it comes back to, its token could be another one.
TEST(NumericsTest, WhatAFastWorkerOnTheWayGaveIsReplayed) {
  FakeCluster cluster({.mode = kAlone});
  cluster.Join(Own("own"));
  const RequestUid uid = cluster.Submit(cluster.Request("prompt"));
  cluster.Text("own", uid, 0, "a");
  cluster.Join(Fast("fast"));
  Lose(cluster, "own");
  cluster.Advance(200'000, {"fast"});
  const auto there = OrdersOf(cluster, "fast", uid);
  ASSERT_EQ(there.size(), 1u);
  cluster.text_attempt = there[0].attempt;
  cluster.Text("fast", uid, 1, "b");
  cluster.Join(Own("back"));
  Lose(cluster, "fast");
  cluster.Advance(200'000, {"back"});
  const auto orders = OrdersOf(cluster, "back", uid);
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_EQ(orders[0].replayed, BytesOf("ab"));
  cluster.text_attempt = orders[0].attempt;
  cluster.Text("back", uid, 2, "c", FinishReason::kLength);
  ASSERT_TRUE(cluster.sink->result.has_value());
  EXPECT_EQ(cluster.sink->Text(), "abc");
  EXPECT_FALSE(cluster.sink->result->timings.exact);
}

TEST(NumericsTest, SeveralChoicesNeverLeaveTheirNumerics) {
  FakeCluster cluster({.mode = kAlone});
  cluster.Join(Own("own"));
  GenerateRequest request = cluster.Request("prompt");
  request.num_choices = 2;
  const RequestUid uid = cluster.Submit(std::move(request));
  cluster.Text("own", uid, 0, "a");
  cluster.Join(Other("other"));
  Lose(cluster, "own");
  cluster.Advance(RouterCoreConfig().resume_wait_us - 1'000'000, {"other"});
  EXPECT_TRUE(OrdersOf(cluster, "other", uid).empty());
  EXPECT_FALSE(cluster.sink->error.has_value());
  cluster.Advance(2'000'000, {"other"});
  ASSERT_TRUE(cluster.sink->error.has_value());
  EXPECT_EQ(cluster.sink->error->code, ErrorCode::kWorkerLost);
  EXPECT_EQ(cluster.metrics.kv_chain_mismatch_total->value(), 0u);
}

TEST(NumericsTest, AMoveThatWouldCrossIsGivenUp) {
  FakeCluster cluster({.mode = kAlone});
  cluster.Join(Own("own"));
  const RequestUid uid = cluster.Submit(cluster.Request("prompt"));
  cluster.Join(Other("other"));
  cluster.Report("own", {}, std::nullopt, /*draining=*/true);
  cluster.core.Tick(cluster.now_us += 20'000);
  const auto asked = OrdersOf(cluster, "other", uid);
  ASSERT_EQ(asked.size(), 1u) << "without a token it may go anywhere";
  cluster.Text("own", uid, 0, "a");
  cluster.text_attempt = asked[0].attempt;
  cluster.Text("other", uid, 0, "z");
  EXPECT_EQ(cluster.Log("other").Of(Order::Kind::kCancel).size(), 1u);
  cluster.text_attempt = 1;
  cluster.Text("own", uid, 1, "b", FinishReason::kLength);
  ASSERT_TRUE(cluster.sink->result.has_value());
  EXPECT_EQ(cluster.sink->Text(), "ab");
  EXPECT_TRUE(cluster.sink->result->timings.exact);
}

TEST(NumericsTest, AWorkerOfItsNumericsThatIsSilentIsWaitedFor) {
  FakeCluster cluster({.mode = kAlone});
  cluster.Join(Own("own"));
  const RequestUid uid = cluster.Submit(cluster.Request("prompt"));
  cluster.Text("own", uid, 0, "ab");
  cluster.Join(Own("silent"), /*ready=*/false);
  cluster.Join(Other("other"));
  Lose(cluster, "own");
  cluster.Advance(600'000, {"other"});
  EXPECT_TRUE(OrdersOf(cluster, "other", uid).empty());
  cluster.Report("silent");
  cluster.core.Tick(cluster.now_us += 20'000);
  EXPECT_EQ(OrdersOf(cluster, "silent", uid).size(), 1u);
}

TEST(NumericsTest, HowLongItWaitsIsALimitOfItsOwn) {
  FakeCluster cluster({.mode = kAlone, .own_numerics_wait_us = 5'000'000});
  cluster.Join(Own("own"));
  const RequestUid uid = cluster.Submit(cluster.Request("prompt"));
  cluster.Text("own", uid, 0, "ab");
  cluster.Join(Own("full"));
  cluster.Join(Other("other"));
  Lose(cluster, "own");
  const auto advance = [&](int64_t us) {
    for (const int64_t end_us = cluster.now_us + us; cluster.now_us < end_us;) {
      cluster.Report("full", {}, 0);
      cluster.Advance(100'000, {"other"});
    }
  };
  cluster.Report("full", {}, 0);
  advance(4'800'000);
  EXPECT_TRUE(OrdersOf(cluster, "other", uid).empty());
  EXPECT_EQ(cluster.metrics.requests_waiting_numerics->value(), 1.0);
  advance(400'000);
  EXPECT_EQ(OrdersOf(cluster, "other", uid).size(), 1u);
  EXPECT_EQ(cluster.metrics.requests_waiting_numerics->value(), 0.0);
}

TEST(NumericsTest, AnAnswerThatIsInexactAlreadyWaitsForNobody) {
  FakeCluster cluster({.mode = kAlone});
  cluster.Join(Own("own"));
  const RequestUid uid = cluster.Submit(cluster.Request("prompt"));
  cluster.Text("own", uid, 0, "ab");
  cluster.Join(Other("other"));
  Lose(cluster, "own");
  cluster.Advance(100'000, {"other"});
  const auto orders = OrdersOf(cluster, "other", uid);
  ASSERT_EQ(orders.size(), 1u);
  cluster.text_attempt = orders[0].attempt;
  cluster.Text("other", uid, 2, "c");
  cluster.Join(Own("full"));
  cluster.Join(Other("another"));
  cluster.Report("full", {}, 0);
  Lose(cluster, "other");
  cluster.Report("full", {}, 0);
  cluster.Advance(100'000, {"another"});
  EXPECT_EQ(OrdersOf(cluster, "another", uid).size(), 1u);
}

// Room at a worker that only one numerics can use is left to the stream that waits for it, and to
// no one before it. All other requests go to the rest of the workers. They do not count requests
// that wait aside as a queue before them.
TEST(NumericsTest, WhoWaitsAsideHoldsUpNobodyAndIsPassedByNobody) {
  FakeCluster cluster({.mode = kAlone, .max_queued = 2});
  cluster.Join(Own("own"));
  std::vector<RequestUid> streams;
  for (int i = 0; i < 4; ++i) {
    // 15 of the 64 blocks each, and one to grow into.
    streams.push_back(
        cluster.Submit(cluster.Request(std::string(240, static_cast<char>('a' + i)))));
    cluster.Text("own", streams.back(), 0, "x");
  }
  WorkerDescription twin = Own("twin");
  twin.num_blocks = 17;  // room for one of them
  cluster.Join(std::move(twin));
  cluster.Join(Other("other"));
  cluster.Report("twin", {}, 10);
  Lose(cluster, "own");
  for (int i = 0; i < 3; ++i) {
    cluster.Report("twin", {}, 10);
    cluster.Advance(100'000, {"other"});
  }
  EXPECT_EQ(cluster.metrics.requests_waiting_numerics->value(), 4.0);
  for (int i = 0; i < 5; ++i) {
    const RequestUid fresh = cluster.Submit(cluster.Request("a small one"));
    EXPECT_EQ(OrdersOf(cluster, "other", fresh).size(), 1u) << i;
    EXPECT_FALSE(cluster.sink->error.has_value());
  }
  EXPECT_TRUE(cluster.Log("twin").Of(Order::Kind::kDecode).empty());
  cluster.Report("twin");
  cluster.core.Tick(cluster.now_us += 20'000);
  EXPECT_EQ(OrdersOf(cluster, "twin", streams[0]).size(), 1u) << "first come, first served";
  EXPECT_EQ(cluster.Log("twin").Of(Order::Kind::kDecode).size(), 1u);
  EXPECT_EQ(cluster.metrics.requests_waiting_numerics->value(), 3.0);
}

// The prefill workers of its numerics are left to it, and no others.
TEST(NumericsTest, WhoWaitsAsideForAPrefillWorkerHoldsUpNobodyOfOtherNumerics) {
  FakeCluster cluster;
  const auto prefill = [&](const std::string& id, uint64_t numerics_id) {
    WorkerDescription worker = FakeCluster::Describe(id, WorkerRole::kPrefill);
    worker.fingerprint.numerics_id = numerics_id;
    cluster.Join(std::move(worker));
  };
  cluster.Join(Own("own"));
  cluster.Join(Own("twin"));
  cluster.Join(Other("other"));
  prefill("own-prefill", 4);
  prefill("other-prefill", 9);
  cluster.Report("own-prefill", {"own"});
  const RequestUid uid = cluster.Submit(cluster.Request(std::string(100, 'x')));
  ASSERT_EQ(OrdersOf(cluster, "own", uid).size(), 1u);
  cluster.State("own-prefill", uid, WorkerRequestState::kPrefillDone);
  cluster.State("own", uid, WorkerRequestState::kVerified);
  cluster.Text("own", uid, 0, "ab");
  cluster.Report("other-prefill", {"other"});
  const auto report = [&](std::optional<uint32_t> free_blocks) {
    cluster.Report("own-prefill", {"own", "twin"}, free_blocks);
    cluster.Advance(100'000, {"twin", "other", "other-prefill"});
  };
  cluster.Report("own-prefill", {"own", "twin"}, 0);
  Lose(cluster, "own");
  for (int i = 0; i < 3; ++i) report(0);
  EXPECT_EQ(cluster.metrics.requests_waiting_numerics->value(), 1.0);
  EXPECT_TRUE(OrdersOf(cluster, "twin", uid).empty());
  const RequestUid fresh = cluster.Submit(cluster.Request("a small one"));
  EXPECT_EQ(cluster.Log("other-prefill").Of(Order::Kind::kPrefill).size(), 1u);
  EXPECT_EQ(OrdersOf(cluster, "other", fresh).size(), 1u);
  report(3);
  EXPECT_EQ(cluster.Log("own-prefill").Of(Order::Kind::kPrefill).size(), 1u);
  report(std::nullopt);
  EXPECT_EQ(OrdersOf(cluster, "twin", uid).size(), 1u);
  EXPECT_EQ(cluster.Log("own-prefill").Of(Order::Kind::kPrefill).size(), 2u);
  EXPECT_EQ(cluster.metrics.requests_waiting_numerics->value(), 0.0);
}

// The words that an operator reads when a prefill worker has nothing to do.
TEST(NumericsTest, WhoIsNotPairedIsSaidWithWhatDiffers) {
  WorkerRegistry registry;
  WorkerDescription decode = FakeCluster::Describe("decode-0", WorkerRole::kDecode);
  decode.numerics_text = "weights=a kv=bf16 ranks=4";
  registry.Add(LeaseId(1), decode, nullptr, 0);
  WorkerDescription prefill = FakeCluster::Describe("prefill-0", WorkerRole::kPrefill);
  prefill.numerics_text = "weights=a kv=bf16";
  RegisteredWorker& added = registry.Add(LeaseId(2), prefill, nullptr, 0);
  EXPECT_THAT(registry.NoteUnpaired(added), testing::IsEmpty()) << "of one numerics";
  added.description.fingerprint.numerics_id = 9;
  const std::vector<UnpairedView> unpaired = registry.NoteUnpaired(added);
  ASSERT_EQ(unpaired.size(), 1u);
  EXPECT_EQ(unpaired[0].with, "decode-0");
  EXPECT_EQ(unpaired[0].why,
            "their answers have other bits (- | ranks=4), and not both have --allow-inexact");
  added.description.fingerprint.allow_inexact = true;
  RegisteredWorker& other = *registry.Find(LeaseId(1));
  EXPECT_EQ(registry.NoteUnpaired(other).size(), 1u) << "one of both";
  other.description.fingerprint.allow_inexact = true;
  EXPECT_THAT(registry.NoteUnpaired(other), testing::IsEmpty());
  other.description.transports = {LinkKind::kNccl};
  added.description.transports = {LinkKind::kTcp};
  EXPECT_THAT(registry.NoteUnpaired(other),
              testing::ElementsAre(testing::Field(&UnpairedView::why,
                                                  testing::HasSubstr("no --transport in common"))));
}

}  // namespace
}  // namespace baton::router
