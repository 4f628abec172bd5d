#include "src/obs/request_lifetime.h"

#include <cstdint>
#include <numeric>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/test_seed.h"

namespace baton::obs {
namespace {

using ::testing::ElementsAre;

int64_t Sum(const RequestLifetime& lifetime) {
  const auto stages = lifetime.StagesUs();
  return std::accumulate(stages.begin(), stages.end(), int64_t{0});
}

TEST(RequestLifetimeTest, StagesOfADisaggregatedRequest) {
  RequestLifetime lifetime(1000);
  lifetime.Mark(RequestEvent::kAdmitted, 1010);
  lifetime.Mark(RequestEvent::kPrefillStarted, 1030);
  lifetime.Mark(RequestEvent::kGranted, 1060);  // while prefill computes: nobody waits for it
  lifetime.Mark(RequestEvent::kFirstToken, 1100);
  lifetime.Mark(RequestEvent::kVerified, 1105);
  lifetime.Mark(RequestEvent::kFirstStepStarted, 1108);
  lifetime.Mark(RequestEvent::kFirstStepEnded, 1115);
  lifetime.Mark(RequestEvent::kLastToken, 1100);
  lifetime.Mark(RequestEvent::kLastToken, 1500);
  EXPECT_THAT(lifetime.StagesUs(), ElementsAre(10, 20, 70, 0, 5, 3, 7, 385));
  EXPECT_EQ(lifetime.EndToEndUs(), 500);
  EXPECT_EQ(lifetime.TimeToFirstTokenUs(), 100);
}

TEST(RequestLifetimeTest, LocalRequestHasNoTransfer) {
  RequestLifetime lifetime(0);
  lifetime.Mark(RequestEvent::kAdmitted, 1);
  lifetime.Mark(RequestEvent::kPrefillStarted, 2);
  lifetime.Mark(RequestEvent::kFirstToken, 10);
  lifetime.Mark(RequestEvent::kFirstStepEnded, 12);
  lifetime.Mark(RequestEvent::kLastToken, 20);
  EXPECT_THAT(lifetime.StagesUs(), ElementsAre(1, 1, 8, 0, 0, 0, 2, 8));
}

TEST(RequestLifetimeTest, OneTokenAnswerEndsBeforeItsTransfer) {
  RequestLifetime lifetime(0);
  lifetime.Mark(RequestEvent::kAdmitted, 1);
  lifetime.Mark(RequestEvent::kPrefillStarted, 2);
  lifetime.Mark(RequestEvent::kFirstToken, 10);
  lifetime.Mark(RequestEvent::kLastToken, 10);
  lifetime.Mark(RequestEvent::kVerified, 30);
  EXPECT_THAT(lifetime.StagesUs(), ElementsAre(1, 1, 8, 0, 0, 0, 0, 0));
  EXPECT_EQ(lifetime.EndToEndUs(), 10);
}

// A router that was held up hears all of this at one time.
TEST(RequestLifetimeTest, StepsTakeTheirTimeWhenTheirEndsAreHeardAtOnce) {
  RequestLifetime lifetime(0);
  lifetime.Mark(RequestEvent::kAdmitted, 10);
  lifetime.Mark(RequestEvent::kPrefillStarted, 20);
  for (const RequestEvent event :
       {RequestEvent::kFirstToken, RequestEvent::kVerified, RequestEvent::kFirstStepStarted,
        RequestEvent::kFirstStepEnded, RequestEvent::kLastToken}) {
    lifetime.Mark(event, 100);
  }
  lifetime.CountStep(0, 55);
  lifetime.CountStep(1, 7);
  lifetime.CountStep(1, 7);  // of another choice
  lifetime.CountStep(2, 5);
  EXPECT_THAT(lifetime.StagesUs(), ElementsAre(10, 10, 68, 0, 0, 0, 7, 5));
  EXPECT_EQ(lifetime.TimeToFirstTokenUs(), 100) << "that is when the client could see it";
  lifetime.CountStep(3, 1'000'000);
  EXPECT_THAT(lifetime.StagesUs(), ElementsAre(0, 0, 0, 0, 0, 0, 0, 100)) << "as far as it goes";
}

TEST(RequestLifetimeTest, StepsThatWereHeardInTimeStayAsHeard) {
  RequestLifetime lifetime(0);
  lifetime.Mark(RequestEvent::kFirstToken, 10);
  lifetime.Mark(RequestEvent::kFirstStepStarted, 20);
  lifetime.CountStep(1, 7);
  EXPECT_THAT(lifetime.StagesUs(), ElementsAre(0, 0, 10, 0, 0, 10, 0, 0)) << "it is not over";
  lifetime.Mark(RequestEvent::kFirstStepEnded, 28);
  lifetime.Mark(RequestEvent::kLastToken, 40);
  lifetime.CountStep(2, 6);
  EXPECT_THAT(lifetime.StagesUs(), ElementsAre(0, 0, 10, 0, 0, 10, 8, 12));
}

TEST(RequestLifetimeTest, FailedRequestEndsAtItsLatestMark) {
  RequestLifetime lifetime(100);
  EXPECT_EQ(lifetime.EndToEndUs(), 0);
  EXPECT_EQ(lifetime.TimeToFirstTokenUs(), std::nullopt);
  lifetime.Mark(RequestEvent::kAdmitted, 150);
  EXPECT_EQ(lifetime.EndToEndUs(), 50);
  EXPECT_EQ(Sum(lifetime), 50);
}

TEST(RequestLifetimeTest, TheFirstMarkCountsExceptForTokens) {
  RequestLifetime lifetime(0);
  lifetime.Mark(RequestEvent::kPrefillStarted, 5);
  lifetime.Mark(RequestEvent::kPrefillStarted, 50);
  EXPECT_EQ(lifetime.TimeOf(RequestEvent::kPrefillStarted), 5);
  EXPECT_EQ(lifetime.TimeOf(RequestEvent::kGranted), std::nullopt);
}

TEST(RequestLifetimeTest, StagesSumToEndToEndWhateverIsMarked) {
  const uint64_t seed = TestSeed();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 5000; ++round) {
    RequestLifetime lifetime(static_cast<int64_t>(random() % 100));
    const size_t num_marks = random() % 12;
    for (size_t i = 0; i < num_marks; ++i) {
      const auto event = static_cast<RequestEvent>(1 + random() % (kNumRequestEvents - 1));
      lifetime.Mark(event, static_cast<int64_t>(random() % 200));
      lifetime.CountStep(static_cast<uint32_t>(random() % 4), static_cast<uint32_t>(random() % 50));
      ASSERT_EQ(Sum(lifetime), lifetime.EndToEndUs()) << "BATON_TEST_SEED=" << seed;
      for (const int64_t stage_us : lifetime.StagesUs()) {
        ASSERT_GE(stage_us, 0) << "BATON_TEST_SEED=" << seed;
      }
    }
  }
}

// One that lives or failed: what passes goes to the stage that has begun.
TEST(RequestLifetimeTest, AnOpenStageGrowsUntilTheLook) {
  RequestLifetime lifetime(100);
  const auto open_us = [&](RequestStage stage, int64_t end_us) {
    return lifetime.StagesUntilUs(end_us)[static_cast<size_t>(stage)];
  };
  EXPECT_EQ(open_us(RequestStage::kAdmit, 130), 30);
  lifetime.Mark(RequestEvent::kAdmitted, 130);
  EXPECT_EQ(open_us(RequestStage::kQueuePrefill, 150), 20);
  lifetime.Mark(RequestEvent::kPrefillStarted, 150);
  lifetime.Mark(RequestEvent::kGranted, 160);  // while the prompt is computed
  EXPECT_EQ(open_us(RequestStage::kPrefill, 200), 50);
  lifetime.Mark(RequestEvent::kFirstToken, 200);
  lifetime.Mark(RequestEvent::kLastToken, 200);
  EXPECT_EQ(open_us(RequestStage::kKvTransfer, 210), 10);
  lifetime.Mark(RequestEvent::kVerified, 220);
  lifetime.Mark(RequestEvent::kFirstStepStarted, 230);
  EXPECT_EQ(open_us(RequestStage::kFirstStep, 235), 5);
  lifetime.Mark(RequestEvent::kFirstStepEnded, 240);
  EXPECT_EQ(open_us(RequestStage::kDecode, 300), 60);
}

TEST(RequestLifetimeTest, StagesUntilALookSumToItsAge) {
  const uint64_t seed = TestSeed();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 5000; ++round) {
    RequestLifetime lifetime(50);
    for (size_t i = random() % 12; i > 0; --i) {
      const auto event = static_cast<RequestEvent>(1 + random() % (kNumRequestEvents - 1));
      lifetime.Mark(event, static_cast<int64_t>(random() % 200));
      lifetime.CountStep(static_cast<uint32_t>(random() % 4), static_cast<uint32_t>(random() % 50));
    }
    const auto end_us = static_cast<int64_t>(50 + random() % 200);
    int64_t sum_us = 0;
    for (const int64_t stage_us : lifetime.StagesUntilUs(end_us)) {
      ASSERT_GE(stage_us, 0) << "BATON_TEST_SEED=" << seed;
      sum_us += stage_us;
    }
    ASSERT_EQ(sum_us, end_us - 50) << "BATON_TEST_SEED=" << seed;
  }
}

}  // namespace
}  // namespace baton::obs
