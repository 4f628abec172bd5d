// Prefix hits in the route policy: what they may decide, and what load may not be overruled.
#include <algorithm>
#include <random>

#include "gtest/gtest.h"

#include "scheduler/route_policy.h"
#include "tests/scheduler/route_cluster.h"

namespace baton::scheduler {
namespace {

RouteQuery Query(uint64_t random = 1) {
  return {.num_tokens = 1600, .max_total_tokens = 1700, .random = random};
}

TEST(RoutePrefixTest, PIsTheOneWithTheEarliestPredictedEnd) {
  RouteCluster cluster(1000, 3, 1);
  cluster.prefill[2].cached_tokens = 800;
  for (uint64_t random = 0; random < 50; ++random) {
    EXPECT_EQ(cluster.Pick(Query(random)).prefill_idx, 2u) << "all idle";
  }
  cluster.prefill[2].backlog_s = 1.2;  // 1600 tokens take 3.2 s, 800 take 1.6 s
  EXPECT_EQ(cluster.Pick(Query()).prefill_idx, 2u) << "2.8 s are less than 3.2 s";
  cluster.prefill[2].backlog_s = 2.2;
  EXPECT_NE(cluster.Pick(Query()).prefill_idx, 2u) << "3.8 s are more";
  cluster.prefill[0].tokens_per_s = 1000;
  cluster.prefill[2].backlog_s = 0;
  cluster.prefill[2].cached_tokens = 100;
  EXPECT_EQ(cluster.Pick(Query()).prefill_idx, 0u) << "a fast worker beats a small hit";
}

TEST(RoutePrefixTest, AHitOnAnInexactOrFullPDoesNotComeBeforeAProperOne) {
  RouteCluster cluster(1000, 2, 1);
  cluster.prefill[1].cached_tokens = 1599;
  cluster.prefill[1].num_free_blocks = 99;  // 100 are needed
  EXPECT_EQ(cluster.Pick(Query()).prefill_idx, 0u);
  cluster.prefill[1].num_free_blocks = 1000;
  EXPECT_EQ(cluster.Pick(Query()).prefill_idx, 1u);
  cluster.prefill[1].fingerprint.numerics_id = 5;
  cluster.prefill[1].fingerprint.allow_inexact = true;
  cluster.decode[0].fingerprint.allow_inexact = true;
  EXPECT_EQ(cluster.Pick(Query()).prefill_idx, 0u);
}

TEST(RoutePrefixTest, DHoldingMoreComesFirstOnlyWithinTheBoundsOfLoad) {
  RouteCluster cluster(1000, 1, 3);
  cluster.decode[1].cached_tokens = 160;
  cluster.decode[2].cached_tokens = 1600;
  for (uint64_t random = 0; random < 50; ++random) {
    EXPECT_EQ(cluster.Pick(Query(random)).decode_idx, 2u);
  }
  cluster.decode[2].num_running = 2;
  EXPECT_EQ(cluster.Pick(Query()).decode_idx, 2u) << "two sequences more than the idle ones";
  cluster.decode[2].num_running = 3;
  EXPECT_EQ(cluster.Pick(Query()).decode_idx, 1u) << "the next best of those within the bounds";
  for (DecodeLoad& decode : cluster.decode) decode.num_running += 20;
  EXPECT_EQ(cluster.Pick(Query()).decode_idx, 2u) << "half as many again are allowed as well";
  cluster.decode[2].num_free_blocks = 1000 - 125;  // 2 sixteenths of the pool
  EXPECT_EQ(cluster.Pick(Query()).decode_idx, 2u);
  cluster.decode[2].num_free_blocks = 1000 - 190;
  EXPECT_EQ(cluster.Pick(Query()).decode_idx, 1u);
}

// The bound of load is the whole one for a whole prompt, and a part of it for a part.
TEST(RoutePrefixTest, AShortHitIsWorthALittleLoad) {
  RouteCluster cluster(10'000, 1, 2);
  cluster.decode[0].num_running = 20;
  const auto picks_holder = [&](uint32_t cached_tokens, uint32_t num_running) {
    cluster.decode[1].cached_tokens = cached_tokens;
    cluster.decode[1].num_running = num_running;
    const Route route = cluster.Pick(Query());
    EXPECT_EQ(route.for_prefix, route.decode_idx == 1 && num_running > 20) << num_running;
    return route.decode_idx == 1;
  };
  // 12 more sequences than 20 for 1,600 tokens, 6 for 800, 1 for 160, none for 16.
  EXPECT_TRUE(picks_holder(1600, 32));
  EXPECT_FALSE(picks_holder(1600, 33));
  EXPECT_TRUE(picks_holder(800, 26));
  EXPECT_FALSE(picks_holder(800, 27));
  EXPECT_TRUE(picks_holder(160, 21));
  EXPECT_FALSE(picks_holder(160, 22));
  EXPECT_TRUE(picks_holder(16, 20));
  EXPECT_FALSE(picks_holder(16, 21));
}

// A decode worker may have KV that it cannot go on from: of a model with states, beyond its last
// checkpoint. It need not cross.
TEST(RoutePrefixTest, HeldKvCountsForAPairAndNotForTheDecodeWorkerAlone) {
  RouteCluster cluster(1000, 1, 2);
  cluster.decode[1].held_tokens = 1600;
  cluster.decode[1].num_running = 1;
  for (uint64_t random = 0; random < 50; ++random) {
    const Route route = cluster.Pick(Query(random));
    EXPECT_EQ(route.decode_idx, 1u);
    EXPECT_TRUE(route.for_prefix);
  }
  cluster.decode[0].cached_tokens = 800;
  EXPECT_EQ(cluster.Pick(Query()).decode_idx, 1u) << "nothing crosses to it";
  RouteQuery alone = Query();
  alone.disaggregate = false;
  EXPECT_EQ(cluster.Pick(alone).decode_idx, 0u) << "the other one would compute it all";

  // KV of 1,600 tokens takes 16 s to cross.
  for (LinkUp& link : cluster.links) link.seconds_per_token = 0.01;
  cluster.decode[0].cached_tokens = 0;
  EXPECT_NEAR(cluster.Pick(Query()).predicted_s, 3.2, 1e-9) << "the prompt is to be computed";
  cluster.decode[1].held_tokens = 0;
  EXPECT_NEAR(cluster.Pick(Query()).predicted_s, 16, 1e-9);
}

TEST(RoutePrefixTest, AHitDoesNotLeadToADWithoutRoomOrPartner) {
  RouteCluster cluster(1000, 1, 2);
  cluster.decode[1].cached_tokens = 1600;
  cluster.links = {{0, 0}};
  EXPECT_EQ(cluster.Pick(Query()).decode_idx, 0u);
  cluster = RouteCluster(1000, 1, 2);
  cluster.decode[1].cached_tokens = 1600;
  cluster.decode[1].num_free_blocks = 50;
  EXPECT_EQ(cluster.Pick(Query()).decode_idx, 0u);
}

TEST(RoutePrefixTest, AdaptiveCountsTheTokensThatDLacks) {
  RouteCluster cluster(1000, 1, 1);
  RouteQuery query = Query();
  query.local_max_tokens = 64;
  EXPECT_EQ(cluster.Pick(query).path, Route::Path::kDisagg);
  cluster.decode[0].cached_tokens = 1600 - 65;
  EXPECT_EQ(cluster.Pick(query).path, Route::Path::kDisagg);
  cluster.decode[0].cached_tokens = 1600 - 64;
  EXPECT_EQ(cluster.Pick(query).path, Route::Path::kLocal);
  EXPECT_EQ(cluster.Pick(query).reason, RouteReason::kShortPrompt);
  query.local_max_tokens = 0;  // not adaptive
  cluster.decode[0].cached_tokens = 1600;
  EXPECT_EQ(cluster.Pick(query).path, Route::Path::kDisagg);
}

// A prompt that the decode worker computes itself waits for its other prompts: for no longer than
// the hit saves.
TEST(RoutePrefixTest, ALocalPromptDoesNotWaitLongerThanItsHitSaves) {
  RouteCluster cluster(1000, 0, 2);
  RouteQuery query = Query();
  query.disaggregate = false;
  cluster.decode[1].cached_tokens = 1000;  // saves 2 s
  cluster.decode[1].backlog_s = 1.9;
  EXPECT_EQ(cluster.Pick(query).decode_idx, 1u);
  cluster.decode[1].backlog_s = 2.1;
  EXPECT_EQ(cluster.Pick(query).decode_idx, 0u);
}

// Everybody sends the one prompt that only the first prefill worker and the first decode worker
// hold. Their load grows with each request, and the others take their part.
TEST(RoutePrefixTest, APromptThatEverybodySendsIsSpread) {
  for (const bool disaggregate : {true, false}) {
    for (const uint32_t cached : {160u, 1584u, 1600u}) {
      RouteCluster cluster(1000, 4, 4);
      cluster.prefill[0].cached_tokens = cached;
      cluster.decode[0].cached_tokens = cached;
      for (uint64_t i = 0; i < 400; ++i) {
        RouteQuery query = Query(i * 7919);
        query.disaggregate = disaggregate;
        query.num_tokens = 1600;
        const Route route = cluster.Pick(query);
        DecodeLoad& decode = cluster.decode[route.decode_idx];
        ++decode.num_running;
        if (route.path != Route::Path::kDisagg) {
          decode.backlog_s += (1600 - std::min(decode.cached_tokens, 1599u)) / decode.tokens_per_s;
          continue;
        }
        PrefillLoad& prefill = cluster.prefill[route.prefill_idx];
        ++prefill.num_waiting;
        prefill.backlog_s += (1600 - std::min(prefill.cached_tokens, 1599u)) / 500.0;
      }
      uint32_t least = 400;
      uint32_t most = 0;
      for (const DecodeLoad& decode : cluster.decode) {
        least = std::min(least, decode.num_running);
        most = std::max(most, decode.num_running);
      }
      EXPECT_LE(most, least + 3 + least / 2) << "cached " << cached;
      EXPECT_EQ(cluster.decode[0].num_running, most) << "the holder has the largest part";
      EXPECT_GT(most, least);
      if (!disaggregate) continue;
      for (const PrefillLoad& prefill : cluster.prefill) EXPECT_GT(prefill.num_waiting, 0u);
      const double first_s = cluster.prefill[0].backlog_s + cluster.prefill[0].num_waiting * 0.032;
      const double other_s = cluster.prefill[1].backlog_s + cluster.prefill[1].num_waiting * 0.032;
      EXPECT_NEAR(first_s, other_s, 3.5) << "one prompt takes 3.2 s";
    }
  }
}

RouteCluster RandomCluster(std::mt19937& random) {
  RouteCluster cluster(1000, 1 + random() % 4, 1 + random() % 4);
  for (PrefillLoad& prefill : cluster.prefill) {
    prefill.ready = random() % 8 != 0;
    prefill.backlog_s = random() % 2 == 0 ? 0 : random() % 100 / 10.0;
    prefill.num_waiting = random() % 5;
    prefill.num_free_blocks = random() % 300;
    prefill.tokens_per_s = 100 + random() % 1000;
  }
  for (DecodeLoad& decode : cluster.decode) {
    decode.ready = random() % 8 != 0;
    decode.backlog_s = random() % 2 == 0 ? 0 : random() % 100 / 10.0;
    decode.num_running = random() % 20;
    decode.num_free_blocks = random() % 1000;
    decode.tokens_per_s = 100 + random() % 1000;
  }
  return cluster;
}

// Random clusters: hits never change whether and why a request is served, and a worker that holds
// more than before is never given up for it.
TEST(RoutePrefixTest, PropertiesOverRandomClusters) {
  std::mt19937 random(11);
  for (int round = 0; round < 4'000; ++round) {
    SCOPED_TRACE(round);
    RouteCluster cluster = RandomCluster(random);
    RouteQuery query = Query(random());
    query.disaggregate = random() % 4 != 0;
    const Route without = cluster.Pick(query);
    for (PrefillLoad& prefill : cluster.prefill) prefill.cached_tokens = random() % 2000;
    for (DecodeLoad& decode : cluster.decode) decode.cached_tokens = random() % 2000;
    const Route with = cluster.Pick(query);
    ASSERT_EQ(with.path, without.path);
    ASSERT_EQ(with.reason, without.reason);
    ASSERT_EQ(with.has_room, without.has_room);
    ASSERT_EQ(with.exact, without.exact);
    if (with.path == Route::Path::kNone) continue;
    const DecodeLoad chosen = cluster.decode[with.decode_idx];
    const DecodeLoad& least = cluster.decode[without.decode_idx];
    ASSERT_LE(chosen.num_running, least.num_running + 2 + least.num_running / 2);
    ASSERT_LE(1000.0 - chosen.num_free_blocks, 1000.0 - least.num_free_blocks + 3 * 1000.0 / 16);
    ASSERT_GE(std::min(chosen.cached_tokens, 1599u), std::min(least.cached_tokens, 1599u));

    cluster.decode[with.decode_idx].cached_tokens = 1600;
    ASSERT_EQ(cluster.Pick(query).decode_idx, with.decode_idx) << "more is held there";
    cluster.decode[with.decode_idx] = chosen;
    if (with.path != Route::Path::kDisagg) continue;
    RouteCluster more = cluster;
    more.prefill[with.prefill_idx].cached_tokens = 1600;
    ASSERT_EQ(more.Pick(query).prefill_idx, with.prefill_idx);
    RouteCluster idler = cluster;
    idler.prefill[with.prefill_idx].backlog_s = 0;
    ASSERT_EQ(idler.Pick(query).prefill_idx, with.prefill_idx);
  }
}

}  // namespace
}  // namespace baton::scheduler
