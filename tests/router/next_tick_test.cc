// When the router's loop has to turn: not while nobody has anything to gain, and exactly when a
// timer ends.
#include <algorithm>
#include <optional>

#include "gtest/gtest.h"

#include "src/base/limits.h"
#include "tests/router/fake_cluster.h"

namespace baton::router {

using limits::kDeadUs;
using limits::kSuspectUs;

namespace {

constexpr int64_t kSoonUs = 20'000;
constexpr int64_t kHeartbeatUs = 250'000;

// One decode worker that computes prompts itself, and a loop that turns only when it has to.
class NextTickTest : public testing::Test {
 protected:
  static RouterCoreConfig Aggregated() {
    RouterCoreConfig config;
    config.mode = ServeMode::kAggregated;
    config.worker_stall_us = 60'000'000;  // the worker has nothing to say
    return config;
  }

  void SetUp() override {
    cluster_.Join(FakeCluster::Describe("decode-0", WorkerRole::kDecode));
    cluster_.core.Tick(cluster_.now_us);
  }
  // A stream that its worker computes, and whose client knows it.
  RequestUid BeginStream(int64_t timeout_us = 0) {
    GenerateRequest request = cluster_.Request("hello");
    request.timeout_us = timeout_us;
    const RequestUid uid = cluster_.Submit(std::move(request));
    cluster_.State("decode-0", uid, WorkerRequestState::kPrefillStarted);
    return uid;
  }
  // Turns the loop until `until_us`, or until `done`. `heartbeats`: the worker sends its own.
  template <typename Done>
  void Turn(int64_t until_us, bool heartbeats, Done done) {
    int64_t beat_us = heartbeats ? cluster_.now_us + kHeartbeatUs : INT64_MAX;
    int64_t tick_us = cluster_.core.NextTickUs(cluster_.now_us);
    while (cluster_.now_us < until_us && !done()) {
      cluster_.now_us = std::min({until_us, beat_us, tick_us});
      if (cluster_.now_us == beat_us) {
        cluster_.Report("decode-0");
        beat_us += kHeartbeatUs;
      }
      const bool ticks = cluster_.now_us == tick_us;
      if (ticks) cluster_.core.Tick(cluster_.now_us);
      num_ticks_ += ticks ? 1 : 0;
      const int64_t next_us = cluster_.core.NextTickUs(cluster_.now_us);
      tick_us = ticks ? next_us : std::min(tick_us, next_us);
    }
  }
  void Turn(int64_t until_us, bool heartbeats) {
    Turn(until_us, heartbeats, [] { return false; });
  }

  FakeCluster cluster_{Aggregated()};
  int num_ticks_ = 0;
};

TEST_F(NextTickTest, SilentStreamsNeedFiveTicksASecond) {
  for (int i = 0; i < 8; ++i) BeginStream();
  EXPECT_EQ(cluster_.core.NextTickUs(cluster_.now_us), cluster_.now_us + kSoonUs)
      << "new requests are looked at soon";
  Turn(cluster_.now_us + 1'000'000, /*heartbeats=*/true);
  num_ticks_ = 0;
  Turn(cluster_.now_us + 10'000'000, /*heartbeats=*/true);
  EXPECT_LE(num_ticks_, 60);
  EXPECT_GE(num_ticks_, 45);
  EXPECT_EQ(cluster_.core.num_live(), 8u);
}

TEST_F(NextTickTest, AWorkerThatFallsSilentIsDroppedAfterTwoSeconds) {
  BeginStream();
  Turn(cluster_.now_us + 1'130'000, /*heartbeats=*/true);
  cluster_.Report("decode-0");
  const int64_t heard_us = cluster_.now_us;
  const auto is_ready = [&] { return cluster_.core.CheckReady(cluster_.now_us); };
  EXPECT_TRUE(is_ready());
  Turn(heard_us + kDeadUs, /*heartbeats=*/false, [&] { return !is_ready(); });
  EXPECT_EQ(cluster_.now_us, heard_us + kSuspectUs) << "it gets nothing new";
  const auto is_gone = [&] { return cluster_.core.registry().workers().empty(); };
  Turn(heard_us + 2 * kDeadUs, /*heartbeats=*/false, is_gone);
  EXPECT_EQ(cluster_.now_us, heard_us + kDeadUs);
}

TEST_F(NextTickTest, ADeadlineIsKept) {
  const int64_t begin_us = cluster_.now_us;
  BeginStream(/*timeout_us=*/3'333'000);
  Turn(begin_us + 10'000'000, /*heartbeats=*/true,
       [&] { return cluster_.sink->error.has_value(); });
  ASSERT_TRUE(cluster_.sink->error.has_value());
  EXPECT_EQ(cluster_.sink->error->code, ErrorCode::kDeadlineExceeded);
  EXPECT_GE(cluster_.now_us, begin_us + 3'333'000);
  EXPECT_LE(cluster_.now_us, begin_us + 3'333'000 + kSoonUs);
}

TEST_F(NextTickTest, AQueueIsTriedSoon) {
  cluster_.Report("decode-0", {}, /*free_blocks=*/0);
  cluster_.Submit(cluster_.Request("hello"));
  ASSERT_EQ(cluster_.core.num_queued(), 1u);
  cluster_.core.Tick(cluster_.now_us += 1'000);
  EXPECT_EQ(cluster_.core.NextTickUs(cluster_.now_us), cluster_.now_us + kSoonUs);
}

TEST_F(NextTickTest, AWorkerThatBeginsToDrainIsLookedAtSoon) {
  BeginStream();
  Turn(cluster_.now_us + 1'000'000, /*heartbeats=*/true);
  cluster_.core.Tick(cluster_.now_us);
  EXPECT_GT(cluster_.core.NextTickUs(cluster_.now_us), cluster_.now_us + kSoonUs);
  cluster_.Report("decode-0", {}, std::nullopt, /*draining=*/true);
  EXPECT_EQ(cluster_.core.NextTickUs(cluster_.now_us), cluster_.now_us + kSoonUs);
}

TEST(NextTick, ARouterAloneTicksOnceASecond) {
  FakeCluster cluster;
  cluster.core.Tick(cluster.now_us);
  EXPECT_EQ(cluster.core.NextTickUs(cluster.now_us), cluster.now_us + 1'000'000);
  cluster.Join(FakeCluster::Describe("decode-0", WorkerRole::kDecode));
  EXPECT_EQ(cluster.core.NextTickUs(cluster.now_us), cluster.now_us + kSoonUs);
}

}  // namespace
}  // namespace baton::router
