// More requests than a pool can serve: who runs, who waits, and who is told at once.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "src/base/priority.h"
#include "src/router/queue_forecast.h"
#include "tests/router/fake_cluster.h"
#include "tests/test_seed.h"

namespace baton::router {

using scheduler::FinishReason;

namespace {

constexpr int64_t kSecond = 1'000'000;

// One decode worker that computes prompts itself, of `max_running` rows and this batch limit.
class OverloadTest : public testing::Test {
 protected:
  static RouterCoreConfig Aggregated() {
    RouterCoreConfig config;
    config.mode = ServeMode::kAggregated;
    return config;
  }
  void Join(const std::string& id, uint32_t batch_limit, uint32_t max_running = 256) {
    WorkerDescription worker = FakeCluster::Describe(id, WorkerRole::kDecode);
    worker.num_blocks = 4096;
    worker.max_running = max_running;
    cluster_.Join(worker);
    Report(id, batch_limit);
  }
  void Report(const std::string& id, uint32_t batch_limit, uint32_t step_us = 0) {
    WorkerLoadReport load;
    load.ready = true;
    load.num_blocks = 4096;
    load.blocks[0] = 4096;
    load.batch_limit = batch_limit;
    load.step_us = step_us;
    load.prefill_tokens_per_s = speed_;
    cluster_.core.OnWorkerLoad(cluster_.leases[id], load, cluster_.now_us);
  }
  std::vector<RequestUid> Submit(int num_requests) {
    std::vector<RequestUid> uids;
    for (int i = 0; i < num_requests; ++i)
      uids.push_back(cluster_.Submit(cluster_.Request("p", 4)));
    return uids;
  }
  RequestUid SubmitAt(int32_t priority) {
    GenerateRequest request = cluster_.Request("p", 4);
    request.priority = priority;
    return cluster_.Submit(std::move(request));
  }
  std::vector<Order> Orders(const std::string& id = "decode-0") {
    return cluster_.Log(id).Of(Order::Kind::kDecode);
  }
  void End(RequestUid uid) { cluster_.Text("decode-0", uid, 0, "abcd", FinishReason::kLength); }
  uint64_t NumRefused(obs::EarlyRefusal reason) {
    return cluster_.metrics.early_refusals_total[static_cast<size_t>(reason)]->value();
  }

  explicit OverloadTest(RouterCoreConfig config = Aggregated()) : cluster_(std::move(config)) {}

  FakeCluster cluster_;
  float speed_ = 0;
};

// Requests may wait for longer than a priority takes to age.
class PatientQueueTest : public OverloadTest {
 protected:
  static RouterCoreConfig Patient() {
    RouterCoreConfig config = Aggregated();
    config.queue_wait_us = 1000 * kSecond;
    return config;
  }
  PatientQueueTest() : OverloadTest(Patient()) {}
};

constexpr uint32_t kAhead = WorkerRegistry::kPromptsAhead;

TEST_F(OverloadTest, NoMoreBeginThanAddThroughput) {
  Join("decode-0", 6);
  Submit(40);
  EXPECT_EQ(Orders().size(), 6 + kAhead);
  EXPECT_EQ(cluster_.core.num_queued(), 40 - 6 - kAhead);
  Report("decode-0", 12);
  EXPECT_EQ(Orders().size(), 12 + kAhead) << "a limit that rises lets the next in at once";
  cluster_.core.Tick(cluster_.now_us);
  EXPECT_EQ(cluster_.metrics.batch_limit->value(), 12.0);
}

TEST_F(OverloadTest, MaxBatchBoundsWhatTheWorkerMeasures) {
  Join("decode-0", 200, /*max_running=*/3);
  Submit(10);
  EXPECT_EQ(Orders().size(), 3u);
}

TEST_F(OverloadTest, AWorkerThatTellsNoLimitHasNone) {
  Join("decode-0", 0, /*max_running=*/20);
  Submit(30);
  EXPECT_EQ(Orders().size(), 20u);
}

TEST_F(OverloadTest, AnAnswerThatEndsLetsTheNextInWithoutATick) {
  Join("decode-0", 6);
  const std::vector<RequestUid> uids = Submit(20);
  const size_t num_placed = Orders().size();
  End(uids[0]);
  ASSERT_EQ(Orders().size(), num_placed + 1);
  EXPECT_EQ(Orders().back().uid, uids[num_placed]) << "the first that waits";
}

TEST_F(OverloadTest, WhoComesFirstBeginsFirst) {
  Join("decode-0", 6);
  const std::vector<RequestUid> uids = Submit(60);
  for (int i = 0; i < 60; ++i) End(uids[i]);
  const std::vector<Order> orders = Orders();
  ASSERT_EQ(orders.size(), 60u);
  for (int i = 0; i < 60; ++i) EXPECT_EQ(orders[i].uid, uids[i]) << i;
}

TEST_F(OverloadTest, TheSmallerPriorityBeginsFirstAndEqualOnesAsTheyCame) {
  Join("decode-0", 6);
  const std::vector<RequestUid> running = Submit(6 + kAhead);
  const size_t num_running = Orders().size();
  std::vector<RequestUid> waiting;
  const int32_t priorities[] = {0, 5, -1, 0, -1000, 5};
  for (const int32_t priority : priorities) waiting.push_back(SubmitAt(priority));
  ASSERT_EQ(Orders().size(), num_running) << "a priority takes no place from one that runs";
  for (const RequestUid uid : running) End(uid);
  const std::vector<Order> orders = Orders();
  ASSERT_EQ(orders.size(), num_running + waiting.size());
  const size_t expected[] = {4, 2, 0, 3, 1, 5};
  for (size_t i = 0; i < waiting.size(); ++i) {
    EXPECT_EQ(orders[num_running + i].uid, waiting[expected[i]]) << i;
    EXPECT_EQ(orders[num_running + i].priority, priorities[expected[i]]) << "its worker hears";
  }
}

// However many come before it, one of priority 1 begins before those that come a step later.
TEST_F(PatientQueueTest, AStreamOfHigherPrioritiesStarvesNobody) {
  Join("decode-0", 6);
  std::vector<RequestUid> running = Submit(6 + kAhead);
  const RequestUid low = SubmitAt(1);
  const int64_t begin_us = cluster_.now_us;
  size_t num_done = 0;
  const auto has_begun = [&] {
    const std::vector<Order> orders = Orders();
    return std::any_of(orders.begin(), orders.end(), [&](const Order& o) { return o.uid == low; });
  };
  // Each second one comes, and one ends.
  while (!has_begun() && cluster_.now_us < begin_us + 20 * kSecond) {
    SubmitAt(0);
    for (int tick = 0; tick < 10; ++tick) {
      cluster_.now_us += kSecond / 10;
      Report("decode-0", 6);
      cluster_.core.Tick(cluster_.now_us);
    }
    End(Orders()[num_done++].uid);
  }
  EXPECT_TRUE(has_begun());
  EXPECT_GE(cluster_.now_us - begin_us, kPriorityStepUs);
  EXPECT_LE(cluster_.now_us - begin_us, kPriorityStepUs + 2 * kSecond);
}

TEST_F(OverloadTest, OneThatLostItsWorkerGoesBeforeEveryPriority) {
  Join("decode-0", 4);
  const RequestUid lost = SubmitAt(1000);
  Submit(3 + kAhead);
  Join("decode-1", 4);
  Submit(4 + kAhead);
  const RequestUid high = SubmitAt(-1000);
  cluster_.core.OnLeaseClosed(cluster_.leases["decode-0"]);
  cluster_.Advance(100'000, {});
  for (const Order& order : Orders("decode-1")) {
    cluster_.Text("decode-1", order.uid, 0, "abcd", FinishReason::kLength);
  }
  const std::vector<Order> orders = Orders("decode-1");
  const auto place_of = [&](RequestUid uid) {
    return std::find_if(orders.begin(), orders.end(), [&](const Order& o) { return o.uid == uid; });
  };
  ASSERT_NE(place_of(lost), orders.end());
  EXPECT_LT(place_of(lost), place_of(high));
}

TEST_F(OverloadTest, ARequestOfManyChoicesNeedNotWaitUntilNothingRuns) {
  Join("decode-0", 8);
  const std::vector<RequestUid> uids = Submit(8 + kAhead);
  GenerateRequest many = cluster_.Request("p", 4);
  many.num_choices = 20;
  const RequestUid uid = cluster_.Submit(many);
  for (int i = 0; i < 3; ++i) End(uids[i]);
  EXPECT_EQ(Orders().size(), 8u + kAhead) << "it waits for half of the limit";
  End(uids[3]);
  ASSERT_EQ(Orders().size(), 8u + kAhead + 1);
  EXPECT_EQ(Orders().back().uid, uid);
}

TEST_F(OverloadTest, AStreamThatLostItsWorkerWaitsForNoBatch) {
  Join("decode-0", 4);
  const std::vector<RequestUid> first = Submit(4);
  Join("decode-1", 4);
  Submit(4 + 2 * kAhead);
  const size_t num_before = Orders("decode-1").size();
  cluster_.Text("decode-0", first[0], 0, "a");
  cluster_.core.OnLeaseClosed(cluster_.leases["decode-0"]);
  cluster_.Advance(100'000, {});
  bool resumed = false;
  for (const Order& order : Orders("decode-1")) resumed |= order.uid == first[0];
  EXPECT_TRUE(resumed) << num_before << " ran there already";
}

// Twelve a second, of which four are served: by the time the queue is as long as the queue wait,
// those who come are told at once, and nearly none of the others waits in vain.
TEST_F(OverloadTest, WhoWouldWaitTooLongIsToldAtOnce) {
  Join("decode-0", 4);
  std::vector<RequestUid> uids;
  size_t num_done = 0;
  int64_t told_us = 0;
  for (int tick = 0; tick < 400; ++tick) {  // 40 s
    for (int i = 0; i < (tick % 5 == 0 ? 2 : 1); ++i) {
      uids.push_back(cluster_.Submit(cluster_.Request("p", 4)));
      if (cluster_.sink->error && told_us == 0) told_us = tick * 100'000;
    }
    cluster_.now_us += 100'000;
    Report("decode-0", 4);
    cluster_.core.Tick(cluster_.now_us);
    const std::vector<Order> orders = Orders();
    if (tick % 5 == 4) {
      for (int i = 0; i < 2 && num_done < orders.size(); ++i) End(orders[num_done++].uid);
    }
  }
  size_t num_late = 0;
  size_t num_at_once = 0;
  for (const RequestUid uid : uids) {
    const auto& error = cluster_.sinks[uid]->error;
    if (!error) continue;
    num_late += error->code == ErrorCode::kQueueTimeout ? 1 : 0;
    num_at_once += error->code == ErrorCode::kQueueFull ? 1 : 0;
  }
  EXPECT_EQ(num_done, 160u) << "no place stays empty";
  EXPECT_GT(num_at_once, 200u);
  EXPECT_LE(num_late, num_at_once / 100);
  EXPECT_GT(told_us, 3 * kSecond) << "a queue that is short enough refuses nobody";
  EXPECT_EQ(NumRefused(obs::EarlyRefusal::kQueueWait), num_at_once);
  EXPECT_GT(cluster_.metrics.predicted_wait_seconds->value(), 5.0);
  EXPECT_LT(cluster_.metrics.predicted_wait_seconds->value(), 12.0);
}

TEST_F(OverloadTest, NoWaitIsForecastWhereNoWorkerCanBeCalled) {
  Join("decode-0", 4);
  Submit(60);
  for (size_t i = 0; i < 18; ++i) {  // the queue has a rate: four a second
    cluster_.now_us += kSecond / 4;
    Report("decode-0", 4);
    cluster_.core.Tick(cluster_.now_us);
    End(Orders()[i].uid);
  }
  Submit(1);
  ASSERT_TRUE(cluster_.sink->error.has_value()) << "36 wait before it";
  ASSERT_EQ(cluster_.sink->error->code, ErrorCode::kQueueFull);
  cluster_.core.OnSessionDown(cluster_.Session("decode-0"), "refused", cluster_.now_us);
  Submit(1);
  const auto waiting = cluster_.sink;
  EXPECT_FALSE(waiting->ended()) << "the next session may come in time";
  cluster_.Advance(11 * kSecond, {"decode-0"});
  ASSERT_TRUE(waiting->error.has_value());
  EXPECT_EQ(waiting->error->code, ErrorCode::kNoWorkers);
  EXPECT_EQ(NumRefused(obs::EarlyRefusal::kQueueWait), 1u);
}

// A cold server: a short answer has ended, and one with a large prompt has run for four seconds.
TEST_F(OverloadTest, OneLargePromptOfAColdServerRefusesNobodyAfterIt) {
  Join("decode-0", 1, /*max_running=*/1);
  End(Submit(1)[0]);
  const RequestUid large = Submit(1)[0];
  for (int tick = 0; tick < 40; ++tick) {
    cluster_.now_us += kSecond / 10;
    Report("decode-0", 1);
    cluster_.core.Tick(cluster_.now_us);
  }
  const std::vector<RequestUid> later = Submit(5);
  EXPECT_EQ(cluster_.core.num_queued(), 5u) << "by four seconds each the fourth would wait 15 s";
  End(large);
  for (const RequestUid uid : later) End(uid);
  for (const RequestUid uid : later) EXPECT_FALSE(cluster_.sinks[uid]->error.has_value());
  EXPECT_EQ(NumRefused(obs::EarlyRefusal::kQueueWait), 0u);
}

TEST_F(OverloadTest, WhatCannotMeetItsDeadlineIsNeverStarted) {
  speed_ = 1'000;
  Join("decode-0", 8);
  Report("decode-0", 8, /*step_us=*/20'000);
  GenerateRequest request = cluster_.Request("p", 200);
  request.sampling.ignore_eos = true;  // 199 steps of 20 ms
  request.timeout_us = kSecond;
  request.fields.timeout = "timeout_ms";
  cluster_.Submit(request);
  ASSERT_TRUE(cluster_.sink->error.has_value());
  EXPECT_EQ(HttpStatusOf(cluster_.sink->error->code), 504);
  EXPECT_NE(cluster_.sink->error->Message().find("was not started: 'timeout_ms' leaves it 1000 ms"),
            std::string::npos)
      << cluster_.sink->error->Message();
  EXPECT_TRUE(Orders().empty());
  EXPECT_EQ(NumRefused(obs::EarlyRefusal::kDeadline), 1u);
  request.timeout_us = 3 * kSecond;
  cluster_.Submit(request);
  EXPECT_FALSE(cluster_.sink->ended()) << "it may be faster than the steps before it";
  request.timeout_us = kSecond;
  request.is_streamed = true;
  cluster_.Submit(request);
  EXPECT_FALSE(cluster_.sink->ended()) << "its client has what comes before the deadline";
  request.is_streamed = false;
  request.sampling.ignore_eos = false;
  cluster_.Submit(request);
  EXPECT_FALSE(cluster_.sink->ended()) << "it may be short";
}

TEST(QueueForecastTest, SaysNothingBeforeItKnowsAnything) {
  RetryEstimate estimate;
  const auto running = [] { return std::vector<RunningAnswer>(4); };
  EXPECT_FALSE(ForecastWaitUs(5, QueueRate(), estimate, running, 0).has_value());
  for (uint32_t i = 1; i < RetryEstimate::kMinAnswers; ++i) estimate.OnServed(kSecond, 100);
  EXPECT_FALSE(ForecastWaitUs(5, QueueRate(), estimate, running, 0).has_value())
      << "a few answers say little of the next ones";
  estimate.Look(running(), 0);
  EXPECT_EQ(estimate.AfterS(5), 2u) << "who found no room is told a time all the same";
}

TEST(QueueForecastTest, BeforeTheQueueHasARateTheRunningAnswersTell) {
  RetryEstimate estimate;
  for (uint32_t i = 0; i < RetryEstimate::kMinAnswers; ++i) estimate.OnServed(2 * kSecond, 100);
  // 50 of 100 tokens in one second: another second is left.
  const RunningAnswer answer = {
      .age_us = kSecond, .decode_us = kSecond, .num_tokens = 51, .max_tokens = 1'000};
  const auto running = [&] { return std::vector<RunningAnswer>(4, answer); };
  const auto wait_us = ForecastWaitUs(3, QueueRate(), estimate, running, 0);
  ASSERT_TRUE(wait_us.has_value());
  EXPECT_NEAR(static_cast<double>(*wait_us), 980'000, 30'000);
  const auto next_round_us = ForecastWaitUs(4, QueueRate(), estimate, running, 0);
  EXPECT_NEAR(static_cast<double>(*next_round_us), 980'000 + 1'980'000, 60'000);
}

TEST(QueueForecastTest, RefusesByTheFirstLimitThatTheWaitExceeds) {
  const WaitLimits open = {.queue_wait_us = 10 * kSecond};
  EXPECT_FALSE(RefusalForWait(8 * kSecond, open).has_value());
  const auto refused = RefusalForWait(12 * kSecond, open);
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code, ErrorCode::kQueueFull);
  EXPECT_EQ(refused->retry_after_s, 5u) << "15 s by a cautious forecast, 10 of them are allowed";
  EXPECT_EQ(refused->Message(),
            "A request that comes now would wait about 15.0 s for its turn, and the server's "
            "--queue-wait-ms is 10000; try again later.");
  WaitLimits urgent = open;
  urgent.left_us = 2 * kSecond;
  urgent.deadline_field = "timeout_ms";
  EXPECT_FALSE(RefusalForWait(kSecond, urgent).has_value());
  const auto late = RefusalForWait(5 * kSecond, urgent);
  ASSERT_TRUE(late.has_value());
  EXPECT_EQ(late->code, ErrorCode::kQueueFull);
  EXPECT_EQ(late->retry_after_s, 3u);
  EXPECT_NE(late->Message().find("'timeout_ms' leaves it 2.0 s"), std::string::npos);
}

TEST(QueueForecastTest, AnAnswerWithoutADeadlineIsNeverTooLate) {
  EXPECT_FALSE(IsTooLateToStart(INT64_MAX,
                                {.prompt_us = kSecond, .token_us = kSecond, .num_tokens = 1'000}));
  EXPECT_FALSE(IsTooLateToStart(1, {})) << "nothing is known";
  EXPECT_TRUE(IsTooLateToStart(kSecond / 2 - 1, {.prompt_us = kSecond}));
  EXPECT_FALSE(IsTooLateToStart(kSecond / 2, {.prompt_us = kSecond}));
}

// A queue before `num_places` places whose answers have random lengths: the forecast is within a
// third of the truth on average, and the cautious one is exceeded by few.
TEST(QueueForecastTest, IsCloseToTheTruthForRandomAnswers) {
  for (const uint64_t seed : TestSeeds(10)) {
    TestRandom random(seed);
    const uint32_t num_places = random.Between(1, 40);
    const uint32_t shortest_us = random.Between(100'000, 1'000'000);
    std::vector<int64_t> ends_us(num_places);
    for (int64_t& end_us : ends_us) end_us = random.Between(1, 2 * shortest_us);
    QueueRate rate;
    const size_t num_ahead = random.Between(50, 200);
    uint32_t num_exceeded = 0;
    double sum_of_ratios = 0;
    constexpr uint32_t kNumAsked = 200;
    std::vector<int64_t> placed_us;  // by order
    std::vector<int64_t> forecast_us;
    for (uint32_t i = 0; i < kNumAsked + num_ahead + 100; ++i) {
      int64_t& next_us = *std::min_element(ends_us.begin(), ends_us.end());
      const int64_t now_us = next_us;
      next_us += random.Between(shortest_us, 3 * shortest_us);
      rate.OnPlaced(now_us);
      placed_us.push_back(now_us);
      forecast_us.push_back(rate.PredictUs(num_ahead, now_us).value_or(0));
    }
    for (uint32_t i = 100; i < 100 + kNumAsked; ++i) {
      const int64_t truth_us = placed_us[i + num_ahead] - placed_us[i];
      sum_of_ratios += static_cast<double>(forecast_us[i]) / static_cast<double>(truth_us);
      num_exceeded += CautiousWaitUs(forecast_us[i]) < truth_us ? 1 : 0;
    }
    const double mean = sum_of_ratios / kNumAsked;
    EXPECT_GT(mean, 0.75) << "seed " << seed;
    EXPECT_LT(mean, 1.33) << "seed " << seed;
    EXPECT_LE(num_exceeded, kNumAsked / 5) << "seed " << seed << ", " << num_places << " places";
  }
}

}  // namespace
}  // namespace baton::router
