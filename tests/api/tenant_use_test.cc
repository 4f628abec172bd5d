// Limits of tenants on a clock that the test moves.
#include "src/api/tenant_use.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::api {
namespace {

using testing::ElementsAre;
using testing::Pair;

constexpr int64_t kSecondUs = 1'000'000;

TEST(TenantUseTest, RequestsFillSteadily) {
  int64_t now_us = 5;
  TenantUse use("a", {.requests_per_minute = 2}, now_us);
  EXPECT_TRUE(use.TakeRequest(now_us).ok());
  EXPECT_TRUE(use.TakeRequest(now_us).ok());
  const TenantVerdict refused = use.TakeRequest(now_us);
  EXPECT_EQ(refused.limit, TenantLimit::kRequests);
  EXPECT_EQ(refused.allowed, 2u);
  EXPECT_EQ(refused.retry_after_s, 30u);
  EXPECT_THAT(use.Fields(now_us), ElementsAre(Pair("x-ratelimit-limit-requests", "2"),
                                              Pair("x-ratelimit-remaining-requests", "0"),
                                              Pair("x-ratelimit-reset-requests", "60.000s")));
  now_us += 29 * kSecondUs;
  EXPECT_EQ(use.TakeRequest(now_us).retry_after_s, 1u);
  now_us += kSecondUs + 1;
  EXPECT_TRUE(use.TakeRequest(now_us).ok());
  EXPECT_FALSE(use.TakeRequest(now_us).ok()) << "no minute boundary gives all of it at once";
  now_us += 3600 * kSecondUs;
  EXPECT_TRUE(use.TakeRequest(now_us).ok());
  EXPECT_TRUE(use.TakeRequest(now_us).ok());
  EXPECT_FALSE(use.TakeRequest(now_us).ok()) << "more than a minute's worth is never saved up";
  EXPECT_EQ(use.num_refused(TenantLimit::kRequests), 4u);
}

TEST(TenantUseTest, AClockThatOtherThreadsReadBeforeTakesNothingBack) {
  TenantUse use("a", {.requests_per_minute = 1}, 100 * kSecondUs);
  EXPECT_TRUE(use.TakeRequest(100 * kSecondUs).ok());
  EXPECT_FALSE(use.TakeRequest(99 * kSecondUs).ok());
  EXPECT_FALSE(use.TakeRequest(159 * kSecondUs).ok());
  EXPECT_TRUE(use.TakeRequest(160 * kSecondUs).ok());
}

TEST(TenantUseTest, AnswersAreOwed) {
  TenantUse use("a", {.tokens_per_minute = 60}, 0);
  EXPECT_TRUE(use.TakeRequest(0).ok());
  EXPECT_TRUE(use.Begin(50, 0).ok());
  use.End(30, 0);  // 20 tokens beyond the limit
  const TenantVerdict refused = use.TakeRequest(0);
  EXPECT_EQ(refused.limit, TenantLimit::kTokens);
  EXPECT_EQ(refused.retry_after_s, 21u);
  EXPECT_THAT(use.Fields(0), ElementsAre(Pair("x-ratelimit-limit-tokens", "60"),
                                         Pair("x-ratelimit-remaining-tokens", "0"),
                                         Pair("x-ratelimit-reset-tokens", "80.000s")));
  EXPECT_TRUE(use.TakeRequest(22 * kSecondUs).ok());
  EXPECT_EQ(use.Begin(10, 22 * kSecondUs).retry_after_s, 8u) << "2 of 10 are there";
}

TEST(TenantUseTest, APromptAboveAMinutesTokensNeedsAFullBucket) {
  TenantUse use("a", {.tokens_per_minute = 60}, 0);
  EXPECT_TRUE(use.Begin(600, 0).ok());
  use.End(0, 0);
  EXPECT_FALSE(use.Begin(600, 599 * kSecondUs).ok());
  EXPECT_TRUE(use.Begin(600, 600 * kSecondUs).ok());
}

TEST(TenantUseTest, PlacesComeBack) {
  TenantUse use("a", {.concurrency = 2}, 0);
  EXPECT_TRUE(use.Begin(1, 0).ok());
  EXPECT_TRUE(use.Begin(1, 0).ok());
  EXPECT_EQ(use.Begin(1, 0).limit, TenantLimit::kConcurrency);
  EXPECT_EQ(use.TakeRequest(0).retry_after_s, 1u);
  use.End(5, 0);
  EXPECT_TRUE(use.TakeRequest(0).ok());
  EXPECT_TRUE(use.Begin(1, 0).ok());
  EXPECT_TRUE(use.Fields(0).empty()) << "a limit of places has no standard field";
}

TEST(TenantUseTest, NewLimitsForgetNothing) {
  TenantUse use("a", {.requests_per_minute = 10}, 0);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(use.TakeRequest(0).ok());
  use.SetLimits({.requests_per_minute = 20, .concurrency = 1}, 0);
  EXPECT_FALSE(use.TakeRequest(0).ok());
  use.SetLimits({}, 0);
  EXPECT_TRUE(use.TakeRequest(0).ok());
  use.SetLimits({.requests_per_minute = 1}, 0);
  EXPECT_TRUE(use.TakeRequest(0).ok());
  EXPECT_FALSE(use.TakeRequest(0).ok());
}

}  // namespace
}  // namespace baton::api
