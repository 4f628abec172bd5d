// LinkHealth: how fast a link is, when it is left alone, and when a hand-off had better move.
#include "scheduler/link_health.h"

#include <gtest/gtest.h>

#include "scheduler/route_policy.h"
#include "tests/scheduler/route_cluster.h"

namespace baton::scheduler {
namespace {

constexpr int64_t kSecond = 1'000'000;
constexpr uint64_t kMiB = uint64_t{1} << 20;

TEST(LinkHealthTest, RestsLongerWithEachFaultUpToALimit) {
  LinkHealth link;
  EXPECT_FALSE(link.IsLeftAlone(0));
  EXPECT_FALSE(link.WantsProbe(/*is_slow=*/false, 0)) << "it never failed";
  int64_t now_us = kSecond;
  for (const int64_t rest_s : {1, 2, 4, 8, 8, 8}) {
    link.OnFault(now_us);
    EXPECT_EQ(link.rests_until_us(), now_us + rest_s * kSecond);
    link.OnFault(now_us + 1);
    EXPECT_EQ(link.rests_until_us(), now_us + rest_s * kSecond) << "of the same time";
    EXPECT_FALSE(link.WantsProbe(/*is_slow=*/false, link.rests_until_us() - 1));
    now_us = link.rests_until_us();
    EXPECT_TRUE(link.IsLeftAlone(now_us)) << "a probe tries it";
    EXPECT_TRUE(link.WantsProbe(/*is_slow=*/false, now_us));
  }
}

TEST(LinkHealthTest, OneProbeAtATimeTriesALinkThatRested) {
  LinkHealth link;
  link.OnFault(0);
  int64_t now_us = link.rests_until_us();
  link.OnProbe(now_us);
  EXPECT_FALSE(link.WantsProbe(/*is_slow=*/false, now_us + kProbeEveryUs - 1))
      << "it may have found no room";
  now_us += kProbeEveryUs;
  link.OnProbe(now_us);
  link.BeginHandOff(kMiB);
  EXPECT_FALSE(link.WantsProbe(/*is_slow=*/false, now_us + kProbeEveryUs)) << "one is under way";
  EXPECT_TRUE(link.IsLeftAlone(now_us + kProbePatienceUs));
  link.OnVerified(kMiB, 0.1, 0.1, now_us);
  link.EndHandOff(kMiB);
  EXPECT_FALSE(link.IsLeftAlone(now_us)) << "it is good";
  EXPECT_FALSE(link.WantsProbe(/*is_slow=*/false, now_us + kProbeEveryUs));
}

TEST(LinkHealthTest, OneHandOffTriesALinkForWhichNoProbeFindsRoom) {
  LinkHealth link;
  link.OnFault(0);
  const int64_t rested_us = link.rests_until_us();
  EXPECT_TRUE(link.IsLeftAlone(rested_us + 10 * kSecond)) << "nobody asked for a probe";
  link.OnProbe(rested_us);
  EXPECT_TRUE(link.IsLeftAlone(rested_us + kProbePatienceUs - 1));
  const int64_t now_us = rested_us + kProbePatienceUs;
  EXPECT_FALSE(link.IsLeftAlone(now_us));
  link.BeginHandOff(kMiB);
  EXPECT_TRUE(link.IsLeftAlone(now_us)) << "one at a time";
  link.EndHandOff(kMiB);
  link.OnFault(now_us);
  EXPECT_TRUE(link.IsLeftAlone(link.rests_until_us())) << "then probes come first again";
  EXPECT_LT(kMaxLinkRestUs + kProbePatienceUs, 10 * kSecond);
}

TEST(LinkHealthTest, ASlowLinkIsProbedWhenItsSpeedWasFoundLongAgo) {
  LinkHealth link;
  link.OnVerified(2 * kMiB, 2, 2, kSecond);
  EXPECT_FALSE(link.WantsProbe(/*is_slow=*/true, kSecond + kSpeedTrustedUs - 1));
  EXPECT_TRUE(link.WantsProbe(/*is_slow=*/true, kSecond + kSpeedTrustedUs));
  EXPECT_FALSE(link.WantsProbe(/*is_slow=*/false, kSecond + kSpeedTrustedUs));
  EXPECT_FALSE(link.IsLeftAlone(10 * kSecond));
  // The next speed that is found replaces the old one, whether it is larger or smaller.
  link.OnVerified(2 * kMiB, 0.02, 0.02, 10 * kSecond);
  EXPECT_NEAR(link.limit_bytes_per_s(), 100.0 * kMiB, kMiB);
  EXPECT_FALSE(link.WantsProbe(/*is_slow=*/true, 10 * kSecond + kSpeedTrustedUs - 1));
  link.OnVerified(2 * kMiB, 2, 2, 20 * kSecond);
  EXPECT_NEAR(link.limit_bytes_per_s(), 1.0 * kMiB, kMiB / 100.0);
  // A probe that crossed while its prompt was computed measures nothing; the next one waits too.
  const int64_t probed_us = 20 * kSecond + kSpeedTrustedUs;
  link.OnProbe(probed_us);
  link.OnVerified(kMiB, 1.0, 0.1, probed_us);
  link.OnProbeVerified(probed_us);
  EXPECT_FALSE(link.WantsProbe(/*is_slow=*/true, probed_us + kSpeedTrustedUs - 1));
  EXPECT_TRUE(link.WantsProbe(/*is_slow=*/true, probed_us + kSpeedTrustedUs));
  link.OnFault(probed_us);
  EXPECT_TRUE(link.WantsProbe(/*is_slow=*/false, link.rests_until_us())) << "a fault comes first";
}

// All slices of a short prompt may come between two looks of the decode worker.
TEST(LinkHealthTest, AProbeOfNoMeasurableTimeFindsThatALinkIsFast) {
  LinkHealth link;
  link.OnVerified(2 * kMiB, 2, 2, kSecond);
  ASSERT_EQ(link.limit_bytes_per_s(), static_cast<double>(kMiB));
  const int64_t probed_us = kSecond + kSpeedTrustedUs;
  ASSERT_TRUE(link.WantsProbe(/*is_slow=*/true, probed_us));
  link.OnProbe(probed_us);
  link.OnVerified(kMiB, 0, 0.0006, probed_us);
  EXPECT_EQ(link.limit_bytes_per_s(), static_cast<double>(kMiB) * 1000);
}

// KV of a short prompt crosses shared memory in less than the time of a transfer that was not
// measured.
TEST(LinkHealthTest, AMeasuredTimeCountsAsItIsHoweverShort) {
  LinkHealth link;
  link.OnVerified(2 * kMiB, 0.0002, 0.0002, kSecond);
  EXPECT_DOUBLE_EQ(link.limit_bytes_per_s(), static_cast<double>(2 * kMiB) / 0.0002);
}

TEST(LinkHealthTest, ASuspectedLinkIsProbedAtOnceAndKeepsItsSpeed) {
  LinkHealth link;
  link.OnVerified(100 * kMiB, 0.1, 0.1, kSecond);
  link.Suspect(kSecond);
  EXPECT_TRUE(link.IsSuspected());
  EXPECT_TRUE(link.IsLeftAlone(kSecond));
  EXPECT_TRUE(link.WantsProbe(/*is_slow=*/false, kSecond));
  link.BeginHandOff(100'000);
  link.OnVerified(100'000, 0.02, 0.02, kSecond);
  link.EndHandOff(100'000);
  EXPECT_FALSE(link.IsLeftAlone(kSecond));
  EXPECT_EQ(link.num_stalls(), 0u);
  EXPECT_NEAR(link.limit_bytes_per_s(), 1000.0 * kMiB, kMiB) << "it was small: most is latency";
}

TEST(LinkHealthTest, ALinkThatIsBadOrCarriesBytesIsNotSuspected) {
  LinkHealth busy;
  busy.OnBytes(1000, 10 * kSecond);
  busy.Suspect(11 * kSecond - 1);
  EXPECT_FALSE(busy.IsLeftAlone(11 * kSecond));
  busy.Suspect(11 * kSecond);
  EXPECT_TRUE(busy.IsLeftAlone(11 * kSecond));
  LinkHealth bad;
  bad.OnFault(0);
  const int64_t rests_until_us = bad.rests_until_us();
  bad.Suspect(kSecond / 2);
  EXPECT_FALSE(bad.IsSuspected());
  EXPECT_EQ(bad.rests_until_us(), rests_until_us);
}

TEST(LinkHealthTest, ALinkThatFlapsRestsAsLongAsOneThatStaysBad) {
  LinkHealth link;
  int64_t now_us = kSecond;
  for (const int64_t rest_s : {1, 2, 4, 8, 8}) {
    link.OnFault(now_us);
    EXPECT_EQ(link.rests_until_us() - now_us, rest_s * kSecond);
    now_us = link.rests_until_us();
    link.OnVerified(kMiB, 0.1, 0.1, now_us);
    EXPECT_FALSE(link.Rests(now_us)) << "good: used at once";
  }
  now_us += kLinkForgivenUs;
  link.OnFault(now_us);
  EXPECT_EQ(link.rests_until_us() - now_us, kFirstLinkRestUs) << "long ago";
}

TEST(LinkHealthTest, TheRateIsThatOfTheLastSecond) {
  LinkHealth link;
  EXPECT_EQ(link.RateSince(0, kSecond), 0);
  for (int64_t us = 10 * kSecond; us < 12 * kSecond; us += 50'000) link.OnBytes(50'000, us);
  const double rate = link.RateSince(10 * kSecond, 12 * kSecond);
  EXPECT_NEAR(rate, 1e6, 1.5e5);
  EXPECT_EQ(link.RateSince(10 * kSecond, 14 * kSecond), 0) << "nothing came for two seconds";
  EXPECT_NEAR(link.RateSince(11'500'000, 12 * kSecond), 1e6, 2.5e5) << "busy for half of it";
}

TEST(LinkHealthTest, AHealedLinkForgetsTheSpeedThatWasMeasuredWhileItWasBad) {
  LinkHealth link;
  link.OnVerified(100 * kMiB, 0.1, 0.1, 0);
  EXPECT_NEAR(link.limit_bytes_per_s(), 1000.0 * kMiB, kMiB);
  link.OnStall(250e3, kSecond);
  EXPECT_EQ(link.num_stalls(), 1u);
  EXPECT_EQ(link.limit_bytes_per_s(), 250e3);
  link.OnVerified(100 * kMiB, 0.1, 0.1, 3 * kSecond);
  EXPECT_NEAR(link.limit_bytes_per_s(), 1000.0 * kMiB, kMiB);
}

// A small prompt is served well by a link on which a large one takes for ever.
TEST(LinkHealthTest, ASmallHandOffThatTriesALinkMeasuresIt) {
  LinkHealth link;
  link.OnStall(0, 0);
  link.BeginHandOff(100'000);
  link.OnVerified(100'000, 0.4, 0.39, kSecond);
  EXPECT_FALSE(link.IsLeftAlone(kSecond));
  EXPECT_NEAR(link.limit_bytes_per_s(), 250e3, 1) << "still slow";
  link.OnVerified(100'000, 0.2, 0.01, kSecond);
  EXPECT_LT(link.limit_bytes_per_s(), 300e3);
  link.OnStall(250e3, 2 * kSecond);
  link.OnVerified(100'000, 0.001, 0.001, 4 * kSecond);
  EXPECT_NEAR(link.limit_bytes_per_s(), 100e6, 1) << "healed";
}

TEST(LinkHealthTest, TimeInWhichTheRouterStoodStillIsNoSilenceOfTheLink) {
  LinkHealth link;
  for (int64_t us = 10 * kSecond; us < 11 * kSecond; us += 50'000) link.OnBytes(50'000, us);
  const double before = link.RateSince(10 * kSecond, 11 * kSecond);
  EXPECT_GT(before, 8e5);
  constexpr int64_t kLateUs = 5'125'000;  // 41 eighths of a second
  link.ForgiveSilence(kLateUs);
  EXPECT_EQ(link.RateSince(10 * kSecond + kLateUs, 11 * kSecond + kLateUs), before);
  EXPECT_EQ(link.last_bytes_us(), 10'950'000 + kLateUs);
  LinkHealth unused;
  unused.ForgiveSilence(5 * kSecond);
  EXPECT_EQ(unused.last_bytes_us(), 0);
}

TEST(LinkHealthTest, TheEndIsPredictedFromBytesAndWithoutAnyFromTheSilence) {
  EXPECT_DOUBLE_EQ(SecondsLeft({.bytes_left = 3'000'000, .bytes_per_s = 250e3, .silent_s = 0.1}),
                   12);
  EXPECT_DOUBLE_EQ(SecondsLeft({.bytes_left = 3'000'000, .bytes_per_s = 0, .silent_s = 0.7}), 0.7);
  EXPECT_TRUE(IsWorthMoving(12, 0.4));
  EXPECT_FALSE(IsWorthMoving(12, 6)) << "computing it again takes about as long";
  EXPECT_FALSE(IsWorthMoving(kLeastGainS, 0)) << "so little is noise";
}

TEST(LinkHealthTest, ARestingLinkIsNoWay) {
  RouteCluster cluster(64, 2, 1);
  cluster.links[0].rests = true;
  for (uint64_t random = 0; random < 20; ++random) {
    EXPECT_EQ(
        cluster.Pick({.num_tokens = 100, .max_total_tokens = 120, .random = random}).prefill_idx,
        1u);
  }
  cluster.links[1].rests = true;
  const Route route = cluster.Pick({.num_tokens = 100, .max_total_tokens = 120});
  EXPECT_EQ(route.path, Route::Path::kLocal);
  EXPECT_EQ(route.reason, RouteReason::kBadLink);
  EXPECT_DOUBLE_EQ(route.predicted_s, 100.0 / 500);
}

TEST(LinkHealthTest, KvUnderWayOnALinkCountsLikeAQueue) {
  RouteCluster cluster(64, 2, 1);
  cluster.links[0].seconds_per_token = cluster.links[1].seconds_per_token = 0.01;
  cluster.links[0].queued_s = 0.5;
  for (uint64_t random = 0; random < 20; ++random) {
    const Route route =
        cluster.Pick({.num_tokens = 100, .max_total_tokens = 120, .random = random});
    EXPECT_EQ(route.prefill_idx, 1u);
    EXPECT_DOUBLE_EQ(route.predicted_s, 1.0);
  }
}

TEST(LinkHealthTest, ARequestThatLinksFailedNeedsNone) {
  const RouteCluster cluster(64, 2, 1);
  const Route route =
      cluster.Pick({.num_tokens = 100, .max_total_tokens = 120, .needs_no_link = true});
  EXPECT_EQ(route.path, Route::Path::kLocal);
  EXPECT_EQ(route.reason, RouteReason::kBadLink);
}

}  // namespace
}  // namespace baton::scheduler
