// Workers of one model with unequal --max-context: who may take what, and who waits.
#include <string>

#include "gtest/gtest.h"

#include "tests/router/fake_cluster.h"

namespace baton::router {

using scheduler::FinishReason;

namespace {

constexpr int64_t kSecond = 1'000'000;

WorkerDescription WithContext(const std::string& id, WorkerRole role, uint32_t max_context) {
  WorkerDescription worker = FakeCluster::Describe(id, role);
  worker.max_context = max_context;
  return worker;
}

// Both give the first token of a prompt, and would say otherwise whether it is the last.
TEST(ContextPlacementTest, NoWorkersContextEndsAnAnswerAtItsFirstToken) {
  for (const WorkerRole small : {WorkerRole::kPrefill, WorkerRole::kDecode}) {
    FakeCluster cluster;
    const auto context = [small](WorkerRole role) { return role == small ? 64u : 256u; };
    cluster.Join(WithContext("decode-0", WorkerRole::kDecode, context(WorkerRole::kDecode)));
    cluster.Join(WithContext("prefill-0", WorkerRole::kPrefill, context(WorkerRole::kPrefill)));
    cluster.Report("prefill-0", {"decode-0"});
    cluster.Advance(5 * kSecond, {"decode-0", "prefill-0"});
    const auto num_orders = [&](const std::string& id, Order::Kind kind) {
      return cluster.Log(id).Of(kind).size();
    };
    cluster.Submit(cluster.Request(std::string(63, 'p'), 100));
    EXPECT_EQ(num_orders("prefill-0", Order::Kind::kPrefill), 0u);
    EXPECT_EQ(num_orders("decode-0", Order::Kind::kDecode),
              small == WorkerRole::kPrefill ? 1u : 0u);
    cluster.core.Cancel(RequestUid{1, cluster.next_uid - 1}, CancelCause::kClientLeft, 0);
    cluster.Submit(cluster.Request(std::string(63, 'p'), 1));
    EXPECT_EQ(num_orders("prefill-0", Order::Kind::kPrefill), 1u) << "max_tokens ends it";
    cluster.Submit(cluster.Request(std::string(62, 'p'), 100));
    EXPECT_EQ(num_orders("prefill-0", Order::Kind::kPrefill), 2u);
  }
}

// An answer ends at its worker's context: not earlier than asked while another has room for it.
TEST(ContextPlacementTest, WorkersWhoseContextHoldsTheWholeAnswerComeFirst) {
  FakeCluster cluster;
  cluster.Join(WithContext("decode-0", WorkerRole::kDecode, 64));
  cluster.Join(WithContext("decode-1", WorkerRole::kDecode, 256));
  cluster.Join(FakeCluster::Describe("prefill-0", WorkerRole::kPrefill));
  cluster.Report("prefill-0", {"decode-0", "decode-1"});
  const auto num_at = [&](const std::string& id) {
    return cluster.Log(id).Of(Order::Kind::kDecode).size();
  };
  for (size_t i = 1; i <= 3; ++i) {
    cluster.Submit(cluster.Request("prompt", 100));
    EXPECT_EQ(num_at("decode-1"), i) << "however much busier it is";
  }
  cluster.Submit(cluster.Request("prompt", 50));
  EXPECT_EQ(num_at("decode-0"), 1u) << "here it fits";
  cluster.Report("decode-1", {}, 0);
  cluster.Submit(cluster.Request("prompt", 100));
  EXPECT_EQ(num_at("decode-0"), 2u) << "the other is full, and nobody waits beside an idle one";
}

// A client that names max_tokens gets them: it waits for the worker that holds them, and nobody
// else waits for it at the others.
TEST(ContextPlacementTest, ANamedLengthWaitsForAContextThatHoldsIt) {
  FakeCluster cluster;
  cluster.Join(WithContext("decode-0", WorkerRole::kDecode, 64));
  cluster.Join(WithContext("decode-1", WorkerRole::kDecode, 256));
  cluster.Advance(6 * kSecond, {"decode-0", "decode-1"});
  const auto num_at = [&](const std::string& id) {
    return cluster.Log(id).Of(Order::Kind::kDecode).size();
  };
  const auto named = [&](uint32_t max_tokens) {
    GenerateRequest request = cluster.Request("prompt", max_tokens);
    request.names_length = true;
    return request;
  };
  cluster.Report("decode-1", {}, 0);
  cluster.Submit(named(100));
  EXPECT_EQ(num_at("decode-0") + num_at("decode-1"), 0u) << "the one that holds it is full";
  cluster.Submit(named(50));
  EXPECT_EQ(num_at("decode-0"), 1u) << "here it fits, and nobody is before it";
  cluster.Report("decode-1");
  EXPECT_EQ(num_at("decode-1"), 1u);

  // Its own wait has an end, too.
  cluster.Report("decode-1", {}, 0);
  cluster.Submit(named(100));
  for (int i = 0; i < 110; ++i) {
    cluster.Report("decode-1", {}, 0);
    cluster.Advance(100'000, {"decode-0"});
  }
  ASSERT_TRUE(cluster.sink->error.has_value());
  EXPECT_EQ(cluster.sink->error->code, ErrorCode::kQueueTimeout);
}

// It has what comes free of those that hold it, before all that came after it.
TEST(ContextPlacementTest, NobodyPassesWhoWaitsForAContext) {
  FakeCluster cluster;
  cluster.Join(WithContext("decode-0", WorkerRole::kDecode, 64));
  cluster.Join(WithContext("decode-1", WorkerRole::kDecode, 256));
  cluster.Advance(6 * kSecond, {"decode-0", "decode-1"});
  cluster.Report("decode-1", {}, 0);
  GenerateRequest large = cluster.Request(std::string(100, 'p'), 100);
  large.names_length = true;
  const RequestUid first = cluster.Submit(std::move(large));
  const RequestUid open = cluster.Submit(cluster.Request("prompt", 200));
  EXPECT_EQ(cluster.Log("decode-0").Of(Order::Kind::kDecode).size(), 1u) << "of open length";
  cluster.core.Cancel(open);
  cluster.Report("decode-0", {}, 0);
  GenerateRequest small = cluster.Request("prompt", 100);
  small.names_length = true;
  cluster.Submit(std::move(small));
  cluster.Report("decode-1", {}, 6);  // room for the small one, not for the large one
  EXPECT_TRUE(cluster.Log("decode-1").Of(Order::Kind::kDecode).empty());
  cluster.Submit(cluster.Request("prompt", 200));
  EXPECT_TRUE(cluster.Log("decode-1").Of(Order::Kind::kDecode).empty());
  cluster.Report("decode-1", {}, 10);
  const auto orders = cluster.Log("decode-1").Of(Order::Kind::kDecode);
  ASSERT_FALSE(orders.empty());
  EXPECT_EQ(orders.front().uid, first);
}

// They count in the limit of all that wait, but nobody else's queue is longer for them.
TEST(ContextPlacementTest, WhoWaitsForAContextCounts) {
  FakeCluster cluster({.max_queued = 2});
  cluster.Join(WithContext("decode-0", WorkerRole::kDecode, 64));
  cluster.Join(WithContext("decode-1", WorkerRole::kDecode, 256));
  cluster.Advance(6 * kSecond, {"decode-0", "decode-1"});
  cluster.Report("decode-1", {}, 0);
  for (int i = 0; i < 3; ++i) {
    GenerateRequest request = cluster.Request("prompt", 100);
    request.names_length = true;
    cluster.Submit(std::move(request));
    EXPECT_EQ(cluster.sink->error.has_value(), i == 2);
  }
  EXPECT_EQ(cluster.sink->error->code, ErrorCode::kQueueFull);
  EXPECT_EQ(cluster.metrics.requests_waiting_numerics->value(), 0.0);
}

// At one placement a second 41 requests would take 41 s, but they wait for another worker.
TEST(ContextPlacementTest, WhoWaitsForAContextIsInNobodyElsesQueue) {
  FakeCluster cluster;
  cluster.Join(WithContext("decode-0", WorkerRole::kDecode, 64));
  cluster.Join(WithContext("decode-1", WorkerRole::kDecode, 256));
  cluster.Advance(6 * kSecond, {"decode-0", "decode-1"});
  cluster.core.OnLeaseClosed(cluster.leases["decode-1"]);
  const auto small = [&] {
    const RequestUid uid = cluster.Submit(cluster.Request("small", 4));
    EXPECT_FALSE(cluster.sink->error.has_value());
    cluster.Text("decode-0", uid, 0, "abcd", FinishReason::kLength);
    EXPECT_TRUE(cluster.sink->result.has_value());
  };
  for (int second = 0; second < 20; ++second) {
    for (int i = 0; i < 3 && second < 14; ++i) {
      GenerateRequest request = cluster.Request("prompt", 100);
      request.names_length = true;
      cluster.Submit(std::move(request));
      EXPECT_FALSE(cluster.sink->error.has_value());
    }
    small();
    cluster.Advance(1 * kSecond, {"decode-0"});
  }
}

// A request that is too large for the one pool whose context holds it is too large for good.
TEST(ContextPlacementTest, AShorterContextsPoolIsNoHope) {
  FakeCluster cluster;
  WorkerDescription large = WithContext("decode-1", WorkerRole::kDecode, 256);
  large.num_blocks = 17;
  cluster.Join(WithContext("decode-0", WorkerRole::kDecode, 64));
  cluster.Join(large);
  cluster.Advance(6 * kSecond, {"decode-0", "decode-1"});
  GenerateRequest request = cluster.Request(std::string(100, 'p'), 10);
  request.num_choices = 12;
  cluster.Submit(std::move(request));
  ASSERT_TRUE(cluster.sink->error.has_value()) << "at once";
  EXPECT_EQ(cluster.sink->error->code, ErrorCode::kInvalidValue);
}

// An answer of open length ends where its worker's context does, and takes no more of its pool.
TEST(ContextPlacementTest, AnOpenLengthFitsWhereverThePromptDoes) {
  FakeCluster cluster;
  WorkerDescription small = WithContext("decode-0", WorkerRole::kDecode, 64);
  small.num_blocks = 5;
  cluster.Join(small);
  cluster.Join(WithContext("decode-1", WorkerRole::kDecode, 256));
  cluster.Advance(6 * kSecond, {"decode-0", "decode-1"});
  cluster.core.OnLeaseClosed(cluster.leases["decode-1"]);
  cluster.Submit(cluster.Request("prompt", 250));
  EXPECT_EQ(cluster.Log("decode-0").Of(Order::Kind::kDecode).size(), 1u);
}

// Tokens that nobody has seen bind nothing.
TEST(ContextPlacementTest, WhatNobodyHasSeenWaitsForNoContext) {
  FakeCluster cluster;
  cluster.Join(WithContext("decode-1", WorkerRole::kDecode, 256));
  cluster.Join(FakeCluster::Describe("prefill-0", WorkerRole::kPrefill));
  cluster.Report("prefill-0", {"decode-1"});
  const RequestUid uid = cluster.Submit(cluster.Request("prompt", 200));
  cluster.Text("prefill-0", uid, 0, "a");  // its decode worker has not reserved
  EXPECT_EQ(cluster.sink->Text(), "");
  cluster.Join(WithContext("decode-0", WorkerRole::kDecode, 64));
  cluster.core.OnLeaseClosed(cluster.leases["decode-1"]);
  cluster.Advance(6 * kSecond, {"decode-0", "prefill-0"});
  EXPECT_EQ(cluster.Log("decode-0").Of(Order::Kind::kDecode).size(), 1u);
}

// A stream that lost its worker is not cut short where it goes on: for 15 s it waits for a context
// like that in which it began, and where its client named the length for no other.
TEST(ContextPlacementTest, AResumedAnswerWaitsForAContextLikeItsFirst) {
  for (const bool names_length : {false, true}) {
    FakeCluster cluster;
    cluster.Join(WithContext("decode-1", WorkerRole::kDecode, 256));
    cluster.Advance(6 * kSecond, {"decode-1"});
    GenerateRequest request = cluster.Request("prompt", 100);
    request.names_length = names_length;
    const RequestUid uid = cluster.Submit(std::move(request));
    cluster.Text("decode-1", uid, 0, "ab");
    ASSERT_EQ(cluster.sink->Text(), "ab");
    cluster.Join(WithContext("decode-0", WorkerRole::kDecode, 64));
    cluster.core.OnLeaseClosed(cluster.leases["decode-1"]);
    cluster.Advance(14 * kSecond, {"decode-0"});
    EXPECT_TRUE(cluster.Log("decode-0").Of(Order::Kind::kDecode).empty());
    const RequestUid fresh = cluster.Submit(cluster.Request("fresh"));
    EXPECT_EQ(cluster.Log("decode-0").Of(Order::Kind::kDecode).size(), 1u) << "it is not blocked";
    cluster.core.Cancel(fresh);
    cluster.Advance(2 * kSecond, {"decode-0"});
    EXPECT_EQ(cluster.Log("decode-0").Of(Order::Kind::kDecode).size(), names_length ? 1u : 2u);
    cluster.Advance(15 * kSecond, {"decode-0"});
    const auto& error = cluster.sinks.at(uid)->error;
    EXPECT_EQ(error.has_value() && error->code == ErrorCode::kWorkerLost, names_length);
  }
}

// A request may fit only the context of a worker that left. It waits for the worker's next life,
// for as long as clients wait.
TEST(ContextPlacementTest, TheContextOfAWorkerThatLeftCountsForAWhile) {
  FakeCluster cluster;
  cluster.Join(WithContext("decode-0", WorkerRole::kDecode, 64));
  cluster.Join(WithContext("decode-1", WorkerRole::kDecode, 256));
  cluster.core.OnLeaseClosed(cluster.leases["decode-1"]);
  EXPECT_EQ(cluster.core.Models()[0]->max_context, 256u);
  const RequestUid uid = cluster.Submit(cluster.Request(std::string(100, 'p'), 10));
  cluster.Advance(5 * kSecond, {"decode-0"});
  EXPECT_FALSE(cluster.sinks.at(uid)->error.has_value());
  cluster.Submit(cluster.Request("prompt"));
  EXPECT_EQ(cluster.Log("decode-0").Of(Order::Kind::kDecode).size(), 1u) << "it is not blocked";
  cluster.Join(WithContext("decode-1", WorkerRole::kDecode, 256));
  cluster.Advance(6 * kSecond, {"decode-0", "decode-1"});
  EXPECT_EQ(cluster.Log("decode-1").Of(Order::Kind::kDecode).size(), 1u);

  cluster.core.OnLeaseClosed(cluster.leases["decode-1"]);
  ASSERT_TRUE(cluster.core.TakeModelsChanged());
  cluster.Advance(29 * kSecond, {"decode-0"});
  EXPECT_FALSE(cluster.core.TakeModelsChanged());
  cluster.Advance(2 * kSecond, {"decode-0"});
  EXPECT_TRUE(cluster.core.TakeModelsChanged());
  EXPECT_EQ(cluster.core.Models()[0]->max_context, 64u);
  cluster.Join(WithContext("decode-1", WorkerRole::kDecode, 128));
  EXPECT_EQ(cluster.core.Models()[0]->max_context, 128u);
  cluster.core.OnLeaseClosed(cluster.leases["decode-0"]);
  cluster.core.OnLeaseClosed(cluster.leases["decode-1"]);
  EXPECT_TRUE(cluster.core.Models().empty());
}

// The router knows 4 tokens of an answer with two choices. A worker whose context ends at the
// fourth would call it the last.
TEST(ContextPlacementTest, NoWorkersContextEndsAnAnswerAtATokenThatIsKnown) {
  FakeCluster cluster;
  cluster.Join(WithContext("decode-0", WorkerRole::kDecode, 66));
  cluster.Join(WithContext("decode-1", WorkerRole::kDecode, 256));
  GenerateRequest request = cluster.Request(std::string(62, 'p'), 100);
  request.num_choices = 2;
  cluster.Advance(6 * kSecond, {"decode-0", "decode-1"});
  cluster.Report("decode-0", {}, 0);
  const RequestUid uid = cluster.Submit(std::move(request));
  ASSERT_EQ(cluster.Log("decode-1").Of(Order::Kind::kDecode).size(), 1u);
  cluster.Text("decode-1", uid, 0, "abcd");
  cluster.core.OnLeaseClosed(cluster.leases["decode-1"]);
  cluster.Report("decode-0");
  cluster.Advance(16 * kSecond, {"decode-0"});  // longer than it waits for a context like its first
  EXPECT_TRUE(cluster.Log("decode-0").Of(Order::Kind::kDecode).empty());
  cluster.Join(WithContext("decode-2", WorkerRole::kDecode, 256));
  cluster.Advance(6 * kSecond, {"decode-0", "decode-2"});
  EXPECT_EQ(cluster.Log("decode-2").Of(Order::Kind::kDecode).size(), 1u);
}

}  // namespace
}  // namespace baton::router
