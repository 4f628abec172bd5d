#include "src/router/queue_rate.h"

#include <string>

#include "gtest/gtest.h"

#include "tests/router/fake_cluster.h"

namespace baton {
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
  rate.OnEmpty();
  EXPECT_FALSE(rate.PredictUs(10, QueueRate::kWindow * 1000).has_value());
}

TEST(QueueRateTest, ASlowerQueueIsBelievedAtOnceAFasterOneAfterAWindow) {
  QueueRate rate;
  int64_t now_us = 0;
  for (uint32_t i = 0; i <= QueueRate::kWindow; ++i) rate.OnPlaced(now_us += 1000);
  EXPECT_EQ(rate.PredictUs(10, now_us), 10'000);
  EXPECT_EQ(rate.PredictUs(10, now_us + 50'000), 500'000) << "nothing was placed since";
  for (uint32_t i = 0; i < QueueRate::kWindow; ++i) rate.OnPlaced(now_us += 100);
  EXPECT_EQ(rate.PredictUs(10, now_us), 1'000);
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

}  // namespace
}  // namespace baton
