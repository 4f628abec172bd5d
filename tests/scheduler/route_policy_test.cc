#include "scheduler/route_policy.h"

#include <array>
#include <vector>

#include "gtest/gtest.h"

#include "tests/scheduler/route_cluster.h"

namespace baton::scheduler {
namespace {

RouteQuery Query(uint64_t random = 1) {
  return {.num_tokens = 160, .max_total_tokens = 320, .local_max_tokens = 32, .random = random};
}

void ExpectRoute(const Route& route, Route::Path path, RouteReason reason) {
  EXPECT_EQ(route.path, path) << RouteReasonName(route.reason);
  EXPECT_EQ(route.reason, reason) << RouteReasonName(route.reason);
}

TEST(RoutePolicyTest, PicksTheLessLoadedPair) {
  RouteCluster cluster(100, 2, 2);
  cluster.prefill[0].backlog_s = 2;
  cluster.decode[1].num_free_blocks = 20;
  const Route route = cluster.Pick(Query());
  ExpectRoute(route, Route::Path::kDisagg, RouteReason::kPair);
  EXPECT_EQ(route.prefill_idx, 1u);
  EXPECT_EQ(route.decode_idx, 0u);
  EXPECT_TRUE(route.exact);
  EXPECT_TRUE(route.has_room);
}

TEST(RoutePolicyTest, AlonePicksTheEarliestEndWithRoom) {
  std::vector<PrefillLoad> workers(3);
  for (PrefillLoad& worker : workers) {
    worker.ready = true;
    worker.num_blocks = 100;
    worker.num_free_blocks = 100;
  }
  workers[0].backlog_s = 2;
  workers[1].num_free_blocks = 3;  // the earliest end, without room
  workers[2].backlog_s = 1;
  const Route route = PickAlone(workers, Query());
  ExpectRoute(route, Route::Path::kLocal, RouteReason::kPair);
  EXPECT_EQ(route.decode_idx, 2u);
  EXPECT_TRUE(route.has_room);
  for (PrefillLoad& worker : workers) worker.num_free_blocks = 3;
  EXPECT_FALSE(PickAlone(workers, Query()).has_room) << "it waits";
  for (PrefillLoad& worker : workers) worker.num_blocks = 10;
  ExpectRoute(PickAlone(workers, Query()), Route::Path::kNone, RouteReason::kExceedsEveryPool);
  for (PrefillLoad& worker : workers) worker.ready = false;
  ExpectRoute(PickAlone(workers, Query()), Route::Path::kNone, RouteReason::kNoPrefillWorker);
  ExpectRoute(PickAlone({}, Query()), Route::Path::kNone, RouteReason::kNoPrefillWorker);
}

TEST(RoutePolicyTest, AStateTakesBlocksBesideThoseOfTheTokens) {
  RouteCluster cluster(100, 1, 1);
  PrefillLoad& prefill = cluster.prefill[0];
  DecodeLoad& decode = cluster.decode[0];
  prefill.state_blocks = decode.state_blocks = 40;
  // 10 blocks of the prompt, a state, and at the decode worker a block to grow into.
  decode.num_free_blocks = 51;
  prefill.num_free_blocks = 50;
  EXPECT_TRUE(cluster.Pick(Query()).has_room);
  decode.num_free_blocks = 50;
  EXPECT_FALSE(cluster.Pick(Query()).has_room);
  decode.num_free_blocks = 51;
  prefill.num_free_blocks = 49;
  EXPECT_FALSE(cluster.Pick(Query()).has_room);
  prefill.num_blocks = 49;
  ExpectRoute(cluster.Pick(Query()), Route::Path::kLocal, RouteReason::kPromptExceedsPrefill);
  decode.num_blocks = 59;  // 319 tokens at last: 20 blocks
  ExpectRoute(cluster.Pick(Query()), Route::Path::kNone, RouteReason::kExceedsEveryPool);
  decode.num_blocks = 100;
  RouteQuery query = Query();
  query.num_choices = 3;  // 10 + 3 * 41
  ExpectRoute(cluster.Pick(query), Route::Path::kNone, RouteReason::kExceedsEveryPool);
  // A worker alone needs a block more than the prompt and its state.
  prefill.num_blocks = 50;
  ExpectRoute(PickAlone(cluster.prefill, Query()), Route::Path::kNone,
              RouteReason::kExceedsEveryPool);
  prefill.num_blocks = 51;
  ExpectRoute(PickAlone(cluster.prefill, Query()), Route::Path::kLocal, RouteReason::kPair);
}

TEST(RoutePolicyTest, TheTimeThatAStateTakesToCrossCounts) {
  RouteCluster cluster(1'000, 1, 1);
  cluster.prefill[0].tokens_per_s = 1'000;
  cluster.links[0].seconds_per_token = 0.001;
  const double without = cluster.Pick(Query()).predicted_s;
  cluster.prefill[0].state_blocks = cluster.decode[0].state_blocks = 100;
  EXPECT_NEAR(cluster.Pick(Query()).predicted_s, without + 1.6, 1e-9);
}

TEST(RoutePolicyTest, AWindowTakesAndMovesItsBlocksAlone) {
  RouteCluster cluster(100, 1, 1);
  DecodeLoad& decode = cluster.decode[0];
  decode.window_blocks = 4;
  // A prompt of 10 blocks and 319 tokens at last: 4 blocks and one to grow into.
  decode.num_free_blocks = 5;
  EXPECT_TRUE(cluster.Pick(Query()).has_room);
  decode.num_free_blocks = 4;
  EXPECT_FALSE(cluster.Pick(Query()).has_room);
  decode.held_tokens = 160;
  decode.held_shared_blocks = 10;
  EXPECT_FALSE(cluster.Pick(Query()).has_room) << "what others use may lie before the window";
  decode.held_tokens = decode.held_shared_blocks = 0;
  decode.num_blocks = decode.num_free_blocks = 5;
  EXPECT_TRUE(cluster.Pick(Query()).has_room);
  decode.num_blocks = 4;
  ExpectRoute(cluster.Pick(Query()), Route::Path::kNone, RouteReason::kExceedsEveryPool);

  RouteCluster slow(100, 1, 1);
  slow.prefill[0].tokens_per_s = 1'000'000;
  slow.links[0].seconds_per_token = 0.001;
  const double without = slow.Pick(Query()).predicted_s;
  slow.decode[0].window_blocks = 4;
  EXPECT_NEAR(slow.Pick(Query()).predicted_s, without - (160 - 64) * 0.001, 1e-9);
}

TEST(RoutePolicyTest, EqualWorkersAreSpreadByTheRandomNumberAlone) {
  const RouteCluster cluster(100, 3, 3);
  std::array<uint32_t, 3> prefill{};
  std::array<uint32_t, 3> decode{};
  for (uint64_t random = 0; random < 3'000; ++random) {
    const Route route = cluster.Pick(Query(random));
    const Route again = cluster.Pick(Query(random));
    ASSERT_EQ(route.prefill_idx, again.prefill_idx);
    ASSERT_EQ(route.decode_idx, again.decode_idx);
    ++prefill[route.prefill_idx];
    ++decode[route.decode_idx];
  }
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(prefill[i], 1'000, 150);
    EXPECT_NEAR(decode[i], 1'000, 150);
  }
}

TEST(RoutePolicyTest, ShortPromptsAndAggregatedModeStayAtD) {
  const RouteCluster cluster(100, 1, 1);
  RouteQuery query = Query();
  query.num_tokens = 32;
  ExpectRoute(cluster.Pick(query), Route::Path::kLocal, RouteReason::kShortPrompt);
  query.num_tokens = 33;
  ExpectRoute(cluster.Pick(query), Route::Path::kDisagg, RouteReason::kPair);
  query.disaggregate = false;
  ExpectRoute(cluster.Pick(query), Route::Path::kLocal, RouteReason::kAggregatedMode);
}

// A prompt of 160 tokens at 500 a second takes 320 ms.
TEST(RoutePolicyTest, ALinkThatIsSlowerThanComputingCounts) {
  RouteCluster cluster(100, 2, 1);
  cluster.links = {{0, 0, 0.001}, {1, 0, 0}};  // 160 ms: hidden behind the computing
  std::array<uint32_t, 2> picked{};
  for (uint64_t random = 0; random < 200; ++random) {
    ++picked[cluster.Pick(Query(random)).prefill_idx];
  }
  EXPECT_GT(picked[0], 50u);
  cluster.links[0].seconds_per_token = 0.01;  // 1.6 s
  for (uint64_t random = 0; random < 200; ++random) {
    EXPECT_EQ(cluster.Pick(Query(random)).prefill_idx, 1u);
  }
  // A queue may cost more than the link.
  cluster.prefill[1].backlog_s = 2;
  EXPECT_EQ(cluster.Pick(Query()).prefill_idx, 0u);
  // KV that the decode worker has need not cross.
  cluster.prefill[1].backlog_s = 0.1;
  cluster.decode[0].cached_tokens = 144;
  EXPECT_EQ(cluster.Pick(Query()).prefill_idx, 0u);
}

TEST(RoutePolicyTest, OfDecodeWorkersAboutAsLoadedTheOneIsTakenThatKvReachesSooner) {
  RouteCluster cluster(100, 1, 2);
  cluster.links = {{0, 0, 0.01}, {0, 1, 0.0001}};
  for (uint64_t random = 0; random < 50; ++random) {
    EXPECT_EQ(cluster.Pick(Query(random)).decode_idx, 1u);
  }
  cluster.decode[1].num_running = 3;  // more than two beside none
  for (uint64_t random = 0; random < 50; ++random) {
    EXPECT_EQ(cluster.Pick(Query(random)).decode_idx, 0u) << "a link is no reason to crowd one";
  }
}

TEST(RoutePolicyTest, SaysWhyNoPrefillWorkerServes) {
  RouteCluster cluster(100, 2, 1);
  cluster.prefill[0].ready = cluster.prefill[1].ready = false;
  ExpectRoute(cluster.Pick(Query()), Route::Path::kLocal, RouteReason::kNoPrefillWorker);
  cluster.prefill[0].ready = true;
  cluster.prefill[0].fingerprint.weights_id = 3;
  ExpectRoute(cluster.Pick(Query()), Route::Path::kLocal, RouteReason::kNoCompatiblePair);
  cluster.prefill[1].ready = true;
  cluster.links.clear();
  ExpectRoute(cluster.Pick(Query()), Route::Path::kLocal, RouteReason::kNoLink);
  cluster.links.push_back({1, 0});
  cluster.prefill[1].num_blocks = 9;
  ExpectRoute(cluster.Pick(Query()), Route::Path::kLocal, RouteReason::kPromptExceedsPrefill);
  cluster.prefill[1].num_blocks = 10;
  ExpectRoute(cluster.Pick(Query()), Route::Path::kDisagg, RouteReason::kPair);
}

TEST(RoutePolicyTest, SaysWhyNoDecodeWorkerServes) {
  RouteCluster cluster(100, 1, 2);
  cluster.decode[0].ready = cluster.decode[1].ready = false;
  ExpectRoute(cluster.Pick(Query()), Route::Path::kNone, RouteReason::kNoDecodeWorker);
  cluster.decode[0].ready = true;
  cluster.decode[0].num_blocks = 19;  // 319 tokens of KV need 20
  ExpectRoute(cluster.Pick(Query()), Route::Path::kNone, RouteReason::kNoDecodeWorker);
  cluster.decode[1].num_blocks = 19;
  ExpectRoute(cluster.Pick(Query()), Route::Path::kNone, RouteReason::kExceedsEveryPool);
  cluster.decode[0].num_blocks = 20;
  ExpectRoute(cluster.Pick(Query()), Route::Path::kDisagg, RouteReason::kPair);
  ExpectRoute(RouteCluster(100, 1, 0).Pick(Query()), Route::Path::kNone,
              RouteReason::kNoDecodeWorker);
}

TEST(RoutePolicyTest, ADWithAPartnerComesBeforeAnEmptyDWithout) {
  RouteCluster cluster(100, 1, 2);
  cluster.links = {{0, 1}};
  cluster.decode[1].num_free_blocks = 30;
  const Route route = cluster.Pick(Query());
  ExpectRoute(route, Route::Path::kDisagg, RouteReason::kPair);
  EXPECT_EQ(route.decode_idx, 1u);
}

TEST(RoutePolicyTest, AFullDComesLastAndIsMarked) {
  RouteCluster cluster(100, 1, 2);
  cluster.decode[0].num_free_blocks = 10;  // 10 for the prompt and one a choice are needed
  cluster.decode[1].num_free_blocks = 11;
  cluster.decode[1].num_running = 50;
  Route route = cluster.Pick(Query());
  EXPECT_EQ(route.decode_idx, 1u);
  EXPECT_TRUE(route.has_room);
  cluster.decode[1].num_free_blocks = 0;
  route = cluster.Pick(Query());
  ExpectRoute(route, Route::Path::kDisagg, RouteReason::kPair);
  EXPECT_FALSE(route.has_room);
}

TEST(RoutePolicyTest, ANewStreamWaitsForABatchThatItsThroughputNeeds) {
  RouteCluster cluster(100, 1, 2);
  cluster.decode[0].num_new = 0;
  cluster.decode[1].num_running = 50;
  EXPECT_EQ(cluster.Pick(Query()).decode_idx, 1u) << "the other one gains by it";
  cluster.decode[1].num_new = 0;
  RouteQuery query = Query();
  EXPECT_FALSE(cluster.Pick(query).has_room);
  query.has_begun = true;
  EXPECT_TRUE(cluster.Pick(query).has_room) << "a stream that has begun goes on";
  query.has_begun = false;
  query.num_choices = 20;
  cluster.decode[0].num_new = 4;
  EXPECT_FALSE(cluster.Pick(query).has_room);
  cluster.decode[0].most_new = 4;
  EXPECT_TRUE(cluster.Pick(query).has_room) << "it never has to wait for more";
}

// Prefill worker 0 reaches decode workers 0 and 2, prefill worker 1 reaches only decode worker 1.
// Prefill worker 0 takes no more: waiting for it would leave the other pair idle.
TEST(RoutePolicyTest, APairWithRoomComesBeforeAnIdleDWhoseOnlyPIsFull) {
  RouteCluster cluster(100, 2, 3);
  cluster.links = {{0, 0}, {0, 2}, {1, 1}};
  cluster.decode[1].num_running = 40;
  EXPECT_NE(cluster.Pick(Query()).decode_idx, 1u);
  cluster.prefill[0].num_slots = 0;
  cluster.decode[0].cached_tokens = 100;  // nor is a hit worth the wait
  Route route = cluster.Pick(Query());
  ExpectRoute(route, Route::Path::kDisagg, RouteReason::kPair);
  EXPECT_EQ(route.prefill_idx, 1u);
  EXPECT_EQ(route.decode_idx, 1u);
  EXPECT_TRUE(route.has_room);
  // Where every prefill worker is full, the better decode worker is picked again.
  cluster.prefill[1].num_free_blocks = 5;
  route = cluster.Pick(Query());
  EXPECT_EQ(route.decode_idx, 0u);
  EXPECT_FALSE(route.has_room);
}

TEST(RoutePolicyTest, AWorkerWithTooMuchToComputeIsFullOnceAPromptWaitsThere) {
  RouteCluster cluster(100, 2, 1);
  RouteQuery query = Query();
  query.max_backlog_s = 3;
  cluster.prefill[0].backlog_s = 3;
  cluster.prefill[1].backlog_s = 50;
  cluster.prefill[1].num_waiting = 2;
  // However long the prompt in work takes, another may wait after it.
  cluster.prefill[0].num_waiting = 1;
  EXPECT_TRUE(cluster.Pick(query).has_room);
  cluster.prefill[0].num_waiting = 2;
  EXPECT_FALSE(cluster.Pick(query).has_room);
  cluster.prefill[0].backlog_s = 2.9;
  const Route route = cluster.Pick(query);
  EXPECT_TRUE(route.has_room);
  EXPECT_EQ(route.prefill_idx, 0u);
}

TEST(RoutePolicyTest, ADWithTooMuchToComputeIsFullForPromptsOfItsOwnOnly) {
  RouteCluster cluster(100, 1, 2);
  RouteQuery query = Query();
  query.max_backlog_s = 3;
  for (DecodeLoad& decode : cluster.decode) {
    decode.backlog_s = 3;
    decode.num_waiting = 2;
  }
  EXPECT_TRUE(cluster.Pick(query).has_room);
  query.disaggregate = false;
  EXPECT_FALSE(cluster.Pick(query).has_room);
  cluster.decode[1].backlog_s = 1;
  const Route route = cluster.Pick(query);
  EXPECT_TRUE(route.has_room);
  EXPECT_EQ(route.decode_idx, 1u);
}

TEST(RoutePolicyTest, AnExactPartnerComesBeforeAnIdleInexactOne) {
  RouteCluster cluster(100, 2, 1);
  cluster.prefill[0].fingerprint.numerics_id = 7;
  cluster.prefill[0].fingerprint.allow_inexact = true;
  cluster.decode[0].fingerprint.allow_inexact = true;
  cluster.prefill[1].backlog_s = 5;
  Route route = cluster.Pick(Query());
  EXPECT_EQ(route.prefill_idx, 1u);
  EXPECT_TRUE(route.exact);
  cluster.prefill[1].ready = false;
  route = cluster.Pick(Query());
  EXPECT_EQ(route.prefill_idx, 0u);
  EXPECT_FALSE(route.exact);
  cluster.decode[0].fingerprint.allow_inexact = false;
  ExpectRoute(cluster.Pick(Query()), Route::Path::kLocal, RouteReason::kNoCompatiblePair);
}

TEST(RoutePolicyTest, OutputGoesOnWithItsOwnNumericsFirst) {
  RouteCluster cluster(100, 0, 2);
  cluster.decode[0].fingerprint.numerics_id = 7;
  cluster.decode[1].num_free_blocks = 0;
  EXPECT_EQ(cluster.Pick(Query()).decode_idx, 0u) << "without output only room counts";
  RouteQuery query = Query();
  query.numerics_id = 0;
  EXPECT_EQ(cluster.Pick(query).decode_idx, 1u);
  EXPECT_FALSE(cluster.Pick(query).has_room) << "it is waited for";
  cluster.decode[1].ready = false;
  EXPECT_EQ(cluster.Pick(query).decode_idx, 0u);
  EXPECT_TRUE(cluster.Pick(query).has_room);
  // The part of the prompt that a worker holds is no reason either.
  cluster.decode[1].ready = true;
  cluster.decode[1].num_free_blocks = cluster.decode[1].num_blocks;
  cluster.decode[0].cached_tokens = query.num_tokens;
  EXPECT_EQ(cluster.Pick(query).decode_idx, 1u);
  EXPECT_EQ(cluster.Pick(Query()).decode_idx, 0u);
}

TEST(RoutePolicyTest, PairingComparesEachField) {
  const WorkerFingerprint same;
  EXPECT_EQ(PairingOf(same, same), Pairing::kExact);
  struct Case {
    WorkerFingerprint other;
    Pairing pairing;
    const char* field;
  };
  const Case cases[] = {
      {{.wire_min = 2, .wire_max = 3}, Pairing::kOtherWire, "wire_version"},
      {{.layout_id = 1}, Pairing::kOtherLayout, "layout_id"},
      {{.weights_id = 1}, Pairing::kOtherWeights, "weights_id"},
      {{.tokenizer_id = 1}, Pairing::kOtherTokenizer, "tokenizer_id"},
      {{.numerics_id = 1}, Pairing::kOtherNumerics, "numerics_id"},
      {{.numerics_id = 1, .allow_inexact = true}, Pairing::kOtherNumerics, "numerics_id"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(PairingOf(same, c.other), c.pairing) << c.field;
    EXPECT_EQ(PairingOf(c.other, same), c.pairing) << c.field;
    EXPECT_FALSE(IsPaired(c.pairing));
  }
  EXPECT_EQ(PairingOf({.allow_inexact = true}, {.numerics_id = 1, .allow_inexact = true}),
            Pairing::kInexact);
  EXPECT_EQ(PairingOf({.wire_min = 1, .wire_max = 2}, {.wire_min = 2, .wire_max = 3}),
            Pairing::kExact)
      << "N and N-1 speak";
}

}  // namespace
}  // namespace baton::scheduler
