#include "src/router/queue_rate.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "tests/router/fake_cluster.h"

namespace baton::router {

using scheduler::FinishReason;

namespace {

constexpr int64_t kSecond = 1'000'000;

TEST(QueueRateTest, KnowsNothingBeforeAWindowIsFull) {
  QueueRate rate;
  for (uint32_t i = 0; i < QueueRate::kWindow; ++i) {
    rate.OnPlaced(i * 1000);
    EXPECT_FALSE(rate.PredictUs(10, i * 1000).has_value());
  }
  rate.OnPlaced(QueueRate::kWindow * 1000);
  EXPECT_EQ(rate.PredictUs(10, QueueRate::kWindow * 1000), 10'000);
}

TEST(QueueRateTest, APauseCountsAsOneGapAndTheRateIsThatOfTheLastWindow) {
  QueueRate rate;
  int64_t now_us = 0;
  for (uint32_t i = 0; i <= QueueRate::kWindow; ++i) rate.OnPlaced(now_us += 1000);
  EXPECT_EQ(rate.PredictUs(10, now_us), 10'000);
  EXPECT_EQ(rate.PredictUs(17, now_us + 52'000), 68'000) << "16 gaps of 1 ms and one of 52";
  EXPECT_GT(rate.PredictUs(100, now_us + 2 * kSecond), 10 * kSecond) << "it stands";
  for (uint32_t i = 0; i < QueueRate::kMaxWindow; ++i) rate.OnPlaced(now_us += 100);
  EXPECT_EQ(rate.PredictUs(10, now_us), 1'000);
}

// 16 answers at a time that begin together and end together, for 1.6 s: ten a second.
TEST(QueueRateTest, ABurstOfAWholeBatchIsNoRate) {
  QueueRate rate;
  int64_t now_us = 0;
  for (int batch = 0; batch < 8; ++batch) {
    now_us += 1'600'000;
    for (int i = 0; i < 16; ++i) rate.OnPlaced(now_us += 100);
    if (batch < 4) continue;
    EXPECT_NEAR(static_cast<double>(*rate.PredictUs(100, now_us)), 10e6, 1e6);
  }
}

// A large request reaches the head and waits a second for blocks. The requests after it are served
// soon after it, wherever in the window of placements the pause falls.
TEST(QueueRateTest, OnePauseAtTheHeadRefusesNobody) {
  QueueRate rate;
  int64_t now_us = 0;
  for (uint32_t i = 0; i <= 2 * QueueRate::kWindow; ++i) {
    rate.OnPlaced(now_us += 10'000);  // 100 a second
    const std::optional<int64_t> wait_us = rate.PredictUs(100, now_us + kSecond);
    EXPECT_LT(wait_us.value_or(0), RouterCoreConfig().queue_wait_us) << "after " << i;
  }
  EXPECT_EQ(rate.PredictUs(12, now_us), 120'000);
}

// Eight sequences at a time, each for 2 s: 4 a second. A flood is taken as far as the queue wait
// reaches and refused beyond, at once, with the time after which a retry makes sense.
TEST(QueueRateTest, FloodIsRefusedAtOnceWhenTheWaitWouldBeTooLong) {
  FakeCluster cluster;
  cluster.JoinPair();
  size_t num_refused = 0;
  size_t num_reserved = 0;
  uint32_t retry_after_s = 0;
  size_t num_done = 0;
  for (int tick = 0; tick < 200; ++tick) {  // 20 s, 10 requests a second
    cluster.Submit(cluster.Request("p", 1));
    if (cluster.sink->error.has_value()) {
      EXPECT_EQ(HttpStatusOf(cluster.sink->error->code), 429);
      EXPECT_EQ(cluster.sink->error->code, ErrorCode::kQueueFull);
      retry_after_s = cluster.sink->error->retry_after_s;
      ++num_refused;
    }
    cluster.Advance(100'000, {"decode-0", "prefill-0"});
    const auto orders = cluster.Log("decode-0").Of(Order::Kind::kDecode);
    for (; num_reserved < orders.size(); ++num_reserved) {
      cluster.State("decode-0", orders[num_reserved].uid, WorkerRequestState::kReserved);
    }
    // Every half second the two oldest that run end.
    if (tick % 5 != 4) continue;
    for (size_t i = 0; i < 2 && num_done < orders.size(); ++i, ++num_done) {
      cluster.Text("prefill-0", orders[num_done].uid, 0, "x", FinishReason::kLength);
    }
  }
  EXPECT_GT(num_refused, 50u);
  EXPECT_GE(retry_after_s, 1u);
  size_t num_timeouts = 0;
  size_t num_answered = 0;
  for (const auto& [uid, sink] : cluster.sinks) {
    num_answered += sink->result.has_value();
    num_timeouts += sink->error && sink->error->code == ErrorCode::kQueueTimeout;
  }
  EXPECT_EQ(num_answered, 80u) << "as many as could be";
  EXPECT_LE(num_timeouts, 10u) << "few wait in vain";
}

std::shared_ptr<const ModelInfo> OtherModel() {
  auto model = std::make_shared<ModelInfo>(*TestModel());
  model->id = "other";
  return model;
}

TEST(QueueRateTest, TheQueueOfOneModelRefusesNobodyOfAnother) {
  RouterCoreConfig config;
  config.mode = ServeMode::kAggregated;
  FakeCluster cluster(config);
  cluster.Join(FakeCluster::Describe("decode-0", WorkerRole::kDecode));
  WorkerDescription other = FakeCluster::Describe("decode-1", WorkerRole::kDecode);
  other.model = OtherModel();
  cluster.Join(other);
  // 108 at once, of which 8 run; then one ends each quarter of a second.
  std::vector<RequestUid> uids;
  for (int i = 0; i < 108; ++i) uids.push_back(cluster.Submit(cluster.Request("p", 1)));
  for (uint32_t i = 0; i < QueueRate::kWindow + 4; ++i) {
    cluster.Advance(250'000, {"decode-0", "decode-1"});
    cluster.Text("decode-0", uids[i], 0, "x", FinishReason::kLength);
  }
  const auto is_refused = [&cluster] {
    cluster.Submit(cluster.Request("p", 1));
    return cluster.sink->error && cluster.sink->error->code == ErrorCode::kQueueFull;
  };
  EXPECT_TRUE(is_refused()) << "some 80 are ahead of it, at 4 a second";
  for (uint32_t i = 0; i < 2 * QueueRate::kWindow; ++i) {
    GenerateRequest request = cluster.Request("p", 1);
    request.model = other.model;
    const RequestUid uid = cluster.Submit(std::move(request));
    ASSERT_FALSE(cluster.sink->ended()) << "its worker is idle";
    ASSERT_EQ(cluster.Log("decode-1").Of(Order::Kind::kDecode).size(), i + 1);
    cluster.Text("decode-1", uid, 0, "x", FinishReason::kLength);
  }
  EXPECT_TRUE(is_refused()) << "how fast the other queue moves says nothing";
}

// A worker that takes one request in 100 ms, and then refuses for 6 s: who comes then is told so.
TEST(QueueRateTest, ARefusedPlacementIsNoProgress) {
  RouterCoreConfig config;
  config.mode = ServeMode::kAggregated;
  FakeCluster cluster(config);
  cluster.Join(FakeCluster::Describe("decode-0", WorkerRole::kDecode));
  constexpr uint32_t kNumTaken = QueueRate::kWindow + 1;
  std::vector<RequestUid> uids;
  for (uint32_t i = 0; i < 8 + kNumTaken + 25; ++i) {
    uids.push_back(cluster.Submit(cluster.Request("p", 1)));
  }
  const auto orders = [&] { return cluster.Log("decode-0").Of(Order::Kind::kDecode); };
  size_t num_answered = 0;
  const auto answer = [&](WorkerRequestState state, StatusCode code) {
    while (num_answered < orders().size()) {
      const Order order = orders()[num_answered++];
      cluster.State("decode-0", order.uid, state, code, order.attempt);
    }
  };
  for (uint32_t i = 0; i < kNumTaken; ++i) {
    answer(WorkerRequestState::kPrefillStarted, StatusCode::kOk);
    cluster.Advance(100'000, {"decode-0"});
    cluster.Text("decode-0", uids[i], 0, "x", FinishReason::kLength);
  }
  answer(WorkerRequestState::kPrefillStarted, StatusCode::kOk);
  cluster.Submit(cluster.Request("p", 1));
  ASSERT_FALSE(cluster.sink->ended()) << "25 ahead of it, ten a second";
  cluster.Text("decode-0", uids[kNumTaken], 0, "x", FinishReason::kLength);
  for (int i = 0; i < 60; ++i) {
    answer(WorkerRequestState::kRejected, StatusCode::kResourceExhausted);
    cluster.Advance(100'000, {"decode-0"});
  }
  cluster.Submit(cluster.Request("p", 1));
  ASSERT_TRUE(cluster.sink->error.has_value());
  EXPECT_EQ(cluster.sink->error->code, ErrorCode::kQueueFull);
}

// Prompts that the router has sent count at once, also where a decode worker computes them.
TEST(PrefillWaitTest, BoundsWhatADecodeWorkerIsSentBetweenTwoHeartbeats) {
  RouterCoreConfig config;
  config.mode = ServeMode::kAggregated;
  config.prefill_wait_us = kSecond / 2;
  FakeCluster cluster(config);
  WorkerDescription worker = FakeCluster::Describe("decode-0", WorkerRole::kDecode);
  worker.num_blocks = 1024;
  worker.max_running = 256;
  cluster.Join(worker);
  std::vector<RequestUid> uids;
  for (int i = 0; i < 20; ++i) {  // 0.4 s each at the speed that is assumed
    uids.push_back(cluster.Submit(cluster.Request(std::string(200, 'p'))));
  }
  const auto num_placed = [&] { return cluster.Log("decode-0").Of(Order::Kind::kDecode).size(); };
  EXPECT_EQ(num_placed(), 2u) << "one in work and one behind it";
  cluster.State("decode-0", uids[0], WorkerRequestState::kPrefillDone);
  cluster.Advance(20'000, {"decode-0"});
  EXPECT_EQ(num_placed(), 3u);
  cluster.core.Cancel(uids[1]);
  cluster.Advance(20'000, {"decode-0"});
  EXPECT_EQ(num_placed(), 4u);
  EXPECT_EQ(cluster.core.num_queued(), 16u);
}

}  // namespace
}  // namespace baton::router
