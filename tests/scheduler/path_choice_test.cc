// Tests the choice between a pair and the decode worker alone (--mode adaptive), by cases whose
// costs are worked out beside them.
#include "scheduler/path_choice.h"

#include <functional>
#include <initializer_list>
#include <limits>
#include <random>
#include <set>
#include <string>

#include "gtest/gtest.h"

#include "tests/scheduler/route_cluster.h"

namespace baton::scheduler {
namespace {

// 160 tokens at 500 a second: 0.32 s to compute. A block takes 0.032 s.
RouteQuery Query() {
  return {.num_tokens = 160, .max_total_tokens = 320, .compares_paths = true, .random = 1};
}

// A prefill worker and a decode worker, both idle, and a request.
struct Snapshot {
  RouteCluster cluster = RouteCluster(1000, 1, 1);
  RouteQuery query = Query();
  PrefillLoad& prefill = cluster.prefill[0];
  DecodeLoad& decode = cluster.decode[0];
  LinkUp& link = cluster.links[0];
};

// A change of it, and the route that follows.
struct Case {
  const char* what;
  std::function<void(Snapshot&)> change;
  RouteReason reason;  // kPair: the pair
};

void ExpectCases(std::initializer_list<Case> cases) {
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    Snapshot setup;
    c.change(setup);
    const Route route = setup.cluster.Pick(setup.query);
    const bool is_pair = c.reason == RouteReason::kPair;
    EXPECT_EQ(RouteReasonName(route.reason), RouteReasonName(c.reason));
    EXPECT_EQ(route.path, is_pair ? Route::Path::kDisagg : Route::Path::kLocal);
    EXPECT_TRUE(route.has_room);
  }
}

TEST(PathChoiceTest, APromptGoesWhereItIsPredictedToCostLess) {
  ExpectCases({
      {"equal", [](Snapshot&) {}, RouteReason::kPair},
      {"a queue within the margin: 0.36 x 7/8 = 0.315",
       [](Snapshot& s) { s.prefill.backlog_s = 0.04; }, RouteReason::kPair},
      {"a queue: 0.37 x 7/8 = 0.324", [](Snapshot& s) { s.prefill.backlog_s = 0.05; },
       RouteReason::kPrefillQueue},
      {"requests wait there, 16 tokens each: (0.32 + 0.064) x 7/8 = 0.336",
       [](Snapshot& s) { s.prefill.num_waiting = 2; }, RouteReason::kPrefillQueue},
      {"both have queues: 0.72 x 7/8 = 0.63 against 0.62",
       [](Snapshot& s) {
         s.prefill.backlog_s = 0.4;
         s.decode.backlog_s = 0.3;
       },
       RouteReason::kPrefillQueue},
      {"both have queues: 0.67 x 7/8 = 0.586 against 0.62",
       [](Snapshot& s) {
         s.prefill.backlog_s = 0.35;
         s.decode.backlog_s = 0.3;
       },
       RouteReason::kPair},
      {"a link as slow as 0.352 s: x 7/8 = 0.308",
       [](Snapshot& s) { s.link.seconds_per_token = 0.0022; }, RouteReason::kPair},
      {"a slow link: 0.64 x 7/8 = 0.56", [](Snapshot& s) { s.link.seconds_per_token = 0.004; },
       RouteReason::kSlowLink},
      {"KV waits for the link: 0.5 x 7/8 = 0.4375", [](Snapshot& s) { s.link.queued_s = 0.5; },
       RouteReason::kSlowLink},
      {"a hit at the decode worker: 0.064 against 0.28",
       [](Snapshot& s) { s.decode.cached_tokens = 128; }, RouteReason::kDecodeHit},
      {"a hit at both: equal again",
       [](Snapshot& s) { s.prefill.cached_tokens = s.decode.cached_tokens = 128; },
       RouteReason::kPair},
      {"a hit at the prefill worker", [](Snapshot& s) { s.prefill.cached_tokens = 128; },
       RouteReason::kPair},
      {"a faster decode worker: 0.16 against 0.28",
       [](Snapshot& s) { s.decode.tokens_per_s = 1000; }, RouteReason::kFasterDecode},
      {"a slightly faster one: 0.29 against 0.28", [](Snapshot& s) { s.decode.tokens_per_s = 550; },
       RouteReason::kPair},
      {"a slower one with the hit: 0.128 against 0.28",
       [](Snapshot& s) {
         s.decode.tokens_per_s = 250;
         s.decode.cached_tokens = 128;
       },
       RouteReason::kDecodeHit},
      {"the length alone decides below local_max_tokens",
       [](Snapshot& s) { s.query.local_max_tokens = 160; }, RouteReason::kShortPrompt},
      {"not adaptive",
       [](Snapshot& s) {
         s.query.compares_paths = false;
         s.prefill.backlog_s = 50;
       },
       RouteReason::kPair},
  });
}

TEST(PathChoiceTest, RoomNowComesBeforeAPredictionThatKnowsNoFullPool) {
  ExpectCases({
      {"no free block at the prefill worker", [](Snapshot& s) { s.prefill.num_free_blocks = 0; },
       RouteReason::kPrefillQueue},
      {"no request may be sent there", [](Snapshot& s) { s.prefill.num_slots = 0; },
       RouteReason::kPrefillQueue},
      {"the decode worker has too many prompts, fast as it is",
       [](Snapshot& s) {
         s.decode.tokens_per_s = 1e6;
         s.decode.num_waiting = 2;
         s.decode.backlog_s = s.query.max_backlog_s = 0.01;
         s.prefill.backlog_s = 0.5;
       },
       RouteReason::kPair},
  });
}

TEST(PathChoiceTest, StreamsDoNotPayForAFullPool) {
  Snapshot setup;
  setup.prefill.num_free_blocks = 0;
  setup.decode.num_streams = 1;
  const Route route = setup.cluster.Pick(setup.query);
  EXPECT_EQ(route.path, Route::Path::kDisagg);
  EXPECT_FALSE(route.has_room) << "it waits";
}

// Each stream waits for the 0.32 s as well.
TEST(PathChoiceTest, StreamsThatRunAtTheDecodeWorkerCount) {
  ExpectCases({
      {"one stream, a queue of one prompt: 0.64 against 0.64 x 7/8",
       [](Snapshot& s) {
         s.decode.num_streams = 1;
         s.prefill.backlog_s = 0.32;
       },
       RouteReason::kPair},
      {"one stream, a longer queue: 0.64 against 0.74 x 7/8 = 0.6475",
       [](Snapshot& s) {
         s.decode.num_streams = 1;
         s.prefill.backlog_s = 0.42;
       },
       RouteReason::kPrefillQueue},
      {"ten streams: 3.52 against 3.82 x 7/8 = 3.34",
       [](Snapshot& s) {
         s.decode.num_streams = 10;
         s.prefill.backlog_s = 3.5;
       },
       RouteReason::kPair},
      {"ten streams: 3.52 against 4.32 x 7/8 = 3.78",
       [](Snapshot& s) {
         s.decode.num_streams = 10;
         s.prefill.backlog_s = 4;
       },
       RouteReason::kPrefillQueue},
      {"a hit leaves little to wait for: 0.064 x 4 = 0.256 against 0.28",
       [](Snapshot& s) {
         s.decode.num_streams = 3;
         s.decode.cached_tokens = 128;
       },
       RouteReason::kDecodeHit},
      {"unless many wait: 0.064 x 5 = 0.32 against 0.28",
       [](Snapshot& s) {
         s.decode.num_streams = 4;
         s.decode.cached_tokens = 128;
       },
       RouteReason::kPair},
      {"requests that are only placed there are no streams",
       [](Snapshot& s) {
         s.decode.num_running = 20;
         s.prefill.backlog_s = 0.05;
       },
       RouteReason::kPrefillQueue},
  });
}

// Chunks of 16 tokens, 0.032 s each, beside rows that take step_s.
TEST(PathChoiceTest, TheObjectiveOfGapsIsKept) {
  const auto busy = [](Snapshot& s, double step_s, int64_t itl_objective_us) {
    s.prefill.backlog_s = 10;
    s.decode.num_streams = 1;
    s.decode.step_s = step_s;
    s.query.itl_objective_us = itl_objective_us;
  };
  ExpectCases({
      {"none", [&](Snapshot& s) { busy(s, 0.004, 0); }, RouteReason::kPrefillQueue},
      {"2 + 32 ms of 35 ms", [&](Snapshot& s) { busy(s, 0.002, 40'000); },
       RouteReason::kPrefillQueue},
      {"4 + 32 ms of 35 ms", [&](Snapshot& s) { busy(s, 0.004, 40'000); }, RouteReason::kPair},
      {"nobody there has gaps",
       [&](Snapshot& s) {
         busy(s, 0.004, 40'000);
         s.decode.num_streams = 0;
       },
       RouteReason::kPrefillQueue},
  });
}

TEST(PathChoiceTest, TheCostOfChunksBesideRows) {
  LocalTimes local = {.wait_s = 0.1, .compute_s = 0.2, .step_s = 0.005, .block_s = 0.002};
  EXPECT_DOUBLE_EQ(LocalCostS({.local = local}, 0), 0.3);
  local.num_streams = 2;
  // Steps of 25 ms leave 20 ms for chunks: a quarter longer. Two streams wait 0.2 s each.
  EXPECT_NEAR(LocalCostS({.local = local}, 0), 0.3 * 1.25 + 0.4, 1e-12);
  // An objective of 40 ms plans 35 ms: 30 ms for chunks.
  EXPECT_NEAR(LocalCostS({.local = local}, 40'000), 0.3 * (1 + 5.0 / 30) + 0.4, 1e-12);
  // Rows that fill a step leave one block.
  local.step_s = 0.03;
  EXPECT_NEAR(LocalCostS({.local = local}, 0), 0.3 * (1 + 30.0 / 2) + 0.4, 1e-12);
  EXPECT_EQ(LocalCostS({.local = local}, 30'000), std::numeric_limits<double>::infinity());
}

// The two workers lend each other their cores, one of each. A prompt takes 0.32 s on both cores and
// 0.64 s on one.
void ShareCores(Snapshot& s) {
  s.prefill.cores = {.id = 7, .num_home = 1};
  s.decode.cores = {.id = 7, .num_home = 1};
}

TEST(PathChoiceTest, WorkersThatLendTheirCoresAreNoTwoMachines) {
  ExpectCases({
      {"both idle: equal", ShareCores, RouteReason::kPair},
      {"a queue of one: 0.64, against 0.64 and the other's 0.32",
       [](Snapshot& s) {
         ShareCores(s);
         s.prefill.backlog_s = 0.32;
         s.prefill.num_waiting = 1;
       },
       RouteReason::kPair},
      {"a queue of ten: 3.52, against 0.64 and ten times 0.32",
       [](Snapshot& s) {
         ShareCores(s);
         s.prefill.backlog_s = 3.2;
         s.prefill.num_waiting = 10;
       },
       RouteReason::kPair},
      {"a queue of thirty short prompts: 1.98, against 0.13 and thirty times 0.064",
       [](Snapshot& s) {
         ShareCores(s);
         s.query.num_tokens = 32;
         s.prefill.backlog_s = 1.92;
         s.prefill.num_waiting = 30;
       },
       RouteReason::kPair},
      {"no cores in common: the queue counts",
       [](Snapshot& s) {
         ShareCores(s);
         s.decode.cores.id = 8;
         s.prefill.backlog_s = 3.2;
         s.prefill.num_waiting = 10;
       },
       RouteReason::kPrefillQueue},
      {"a prompt there, none here: 0.64 and the other's 0.32, against 0.64",
       [](Snapshot& s) {
         ShareCores(s);
         s.decode.backlog_s = 0.32;
         s.decode.num_waiting = 1;
       },
       RouteReason::kFasterDecode},
  });
}

TEST(PathChoiceTest, OnCoresThatBothLendAPromptGoesWhereLessIsToCompute) {
  ExpectCases({
      {"a hit at the decode worker: 0.064, against 0.28",
       [](Snapshot& s) {
         ShareCores(s);
         s.decode.cached_tokens = 128;
       },
       RouteReason::kDecodeHit},
      {"the same while ten wait: 0.128 and ten times 0.064",
       [](Snapshot& s) {
         ShareCores(s);
         s.decode.cached_tokens = 128;
         s.prefill.backlog_s = 3.2;
         s.prefill.num_waiting = 10;
       },
       RouteReason::kPrefillQueue},
      {"the same while the KV of ten computed prompts crosses",
       [](Snapshot& s) {
         ShareCores(s);
         s.decode.cached_tokens = 128;
         s.prefill.num_waiting = 10;
       },
       RouteReason::kDecodeHit},
      {"a speed that one of them has measured is of the same cores",
       [](Snapshot& s) {
         ShareCores(s);
         s.decode.tokens_per_s = 1000;
       },
       RouteReason::kPair},
      {"ten streams: 0.64 + 3.2, against 0.32 + 3.2",
       [](Snapshot& s) {
         ShareCores(s);
         s.decode.num_streams = 10;
       },
       RouteReason::kPair},
      {"a slow link: 0.64, against 0.32",
       [](Snapshot& s) {
         ShareCores(s);
         s.link.seconds_per_token = 0.004;
       },
       RouteReason::kSlowLink},
  });
}

// At most local_max_tokens of it are to be computed.
TEST(PathChoiceTest, OnCoresThatBothLendAShortPromptIsThePairsWhileEitherHasWork) {
  const auto is_short = [](Snapshot& s) {
    ShareCores(s);
    s.query.num_tokens = 32;
    s.query.local_max_tokens = 64;
  };
  const auto beside_a_stream = [&](Snapshot& s) {
    is_short(s);
    s.decode.num_streams = 1;
  };
  ExpectCases({
      {"both idle: no hand-off", is_short, RouteReason::kShortPrompt},
      {"a stream", beside_a_stream, RouteReason::kPair},
      {"a prompt at the decode worker",
       [&](Snapshot& s) {
         is_short(s);
         s.decode.num_waiting = 1;
       },
       RouteReason::kPair},
      {"thirty prompts at the prefill worker",
       [&](Snapshot& s) {
         is_short(s);
         s.prefill.backlog_s = 1.92;
         s.prefill.num_waiting = 30;
       },
       RouteReason::kPair},
      {"a stream, and a conversation of which both hold all but 32 tokens",
       [&](Snapshot& s) {
         beside_a_stream(s);
         s.query.num_tokens = 160;
         s.decode.cached_tokens = s.prefill.cached_tokens = 128;
       },
       RouteReason::kPair},
      {"the same, held by the decode worker alone",
       [&](Snapshot& s) {
         beside_a_stream(s);
         s.query.num_tokens = 160;
         s.decode.cached_tokens = 128;
       },
       RouteReason::kShortPrompt},
      {"a stream, and no room at the prefill worker",
       [&](Snapshot& s) {
         beside_a_stream(s);
         s.prefill.num_slots = 0;
       },
       RouteReason::kShortPrompt},
      {"a stream, and a link that rests",
       [&](Snapshot& s) {
         beside_a_stream(s);
         s.link.rests = true;
       },
       RouteReason::kShortPrompt},
      {"a stream on cores of its own",
       [&](Snapshot& s) {
         beside_a_stream(s);
         s.decode.cores.id = 8;
       },
       RouteReason::kShortPrompt},
      {"a stream, and no comparison of paths",
       [&](Snapshot& s) {
         beside_a_stream(s);
         s.query.compares_paths = false;
       },
       RouteReason::kShortPrompt},
  });
}

TEST(PathChoiceTest, AShortPromptStaysExactBesideAStream) {
  ExpectCases({{"a prefill worker of other numerics",
                [](Snapshot& s) {
                  ShareCores(s);
                  s.query.num_tokens = 32;
                  s.query.local_max_tokens = 64;
                  s.decode.num_streams = 1;
                  s.prefill.fingerprint.allow_inexact = true;
                  s.decode.fingerprint.allow_inexact = true;
                  s.decode.fingerprint.numerics_id = 1;
                },
                RouteReason::kShortPrompt}});
}

TEST(PathChoiceTest, WhatALentCoreCosts) {
  PathTimes times = {.pair = {.wait_s = 0.1, .compute_s = 0.2, .cross_s = 0.5, .num_waiting = 3},
                     .local = {.wait_s = 0.1, .compute_s = 0.3}};
  EXPECT_DOUBLE_EQ(PairCostS(times), 0.6);
  EXPECT_DOUBLE_EQ(LocalCostS(times, 0), 0.4);
  times.prefill_share = 0.25;
  EXPECT_DOUBLE_EQ(PairCostS(times), 0.6) << "all cores";
  EXPECT_DOUBLE_EQ(LocalCostS(times, 0), 0.4 / 0.75 + 3 * 0.3) << "beside the prefill worker";
  times.local.num_waiting = 1;
  times.local.num_streams = 2;
  EXPECT_DOUBLE_EQ(PairCostS(times), 4 * 0.1 + 4 * 0.2 + 3 * 0.2) << "a quarter of the cores";
  times.pair.num_waiting = 0;
  EXPECT_NEAR(LocalCostS(times, 0), 0.4 + 2 * 0.3, 1e-12) << "all cores";
}

// No pair, no choice: the reason is the hurdle.
TEST(PathChoiceTest, WithoutAPairTheHurdleIsTheReason) {
  RouteCluster cluster(1000, 1, 1);
  cluster.decode[0].num_streams = 50;
  cluster.links[0].rests = true;
  EXPECT_EQ(cluster.Pick(Query()).reason, RouteReason::kBadLink);
  cluster.links.clear();
  EXPECT_EQ(cluster.Pick(Query()).reason, RouteReason::kNoLink);
}

// The least loaded decode worker computes nothing while the other one holds the prompt, both being
// about as loaded.
TEST(PathChoiceTest, AHitAtAnotherDecodeWorkerIsFound) {
  RouteCluster cluster(1000, 1, 2);
  cluster.decode[1].cached_tokens = 144;
  cluster.decode[1].num_running = 2;
  Route route = cluster.Pick(Query());
  EXPECT_EQ(route.reason, RouteReason::kDecodeHit);
  EXPECT_EQ(route.decode_idx, 1u);
  cluster.decode[1].num_running = 3;
  route = cluster.Pick(Query());
  EXPECT_EQ(route.reason, RouteReason::kPair);
  EXPECT_EQ(route.decode_idx, 0u);
}

// Over random clusters: a local route is never predicted to end later than the pair that is there,
// and nothing but the comparison changes routes.
TEST(PathChoiceTest, ALocalPromptEndsSoonerOverRandomClusters) {
  constexpr uint32_t kSeed = 7;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  std::mt19937 random(kSeed);
  std::set<RouteReason> seen;
  for (int round = 0; round < 4'000; ++round) {
    SCOPED_TRACE(round);
    RouteCluster cluster(1000, 1, 1);
    PrefillLoad& prefill = cluster.prefill[0];
    DecodeLoad& decode = cluster.decode[0];
    prefill.backlog_s = random() % 3 == 0 ? random() % 40 / 10.0 : 0;
    prefill.tokens_per_s = 200 + random() % 800;
    prefill.cached_tokens = random() % 2 == 0 ? 0 : random() % 160;
    decode.backlog_s = random() % 4 == 0 ? random() % 20 / 10.0 : 0;
    decode.tokens_per_s = 200 + random() % 800;
    decode.cached_tokens = random() % 2 == 0 ? 0 : random() % 160;
    decode.num_streams = random() % 4;
    decode.step_s = random() % 20 / 1000.0;
    cluster.links[0].seconds_per_token = random() % 3 == 0 ? random() % 10 / 1000.0 : 0;
    RouteQuery query = Query();
    const Route chosen = cluster.Pick(query);
    query.compares_paths = false;
    const Route pair = cluster.Pick(query);
    ASSERT_EQ(pair.path, Route::Path::kDisagg);
    seen.insert(chosen.reason);
    if (chosen.path == Route::Path::kLocal) {
      ASSERT_LT(chosen.predicted_s, pair.predicted_s * (1 - kPathMargin));
      continue;
    }
    ASSERT_EQ(chosen.predicted_s, pair.predicted_s);
    decode.num_streams += 1;
    decode.backlog_s += 1;
    query.compares_paths = true;
    ASSERT_EQ(cluster.Pick(query).path, Route::Path::kDisagg) << "it has got worse there";
  }
  EXPECT_EQ(seen, (std::set<RouteReason>{RouteReason::kPair, RouteReason::kPrefillQueue,
                                         RouteReason::kSlowLink, RouteReason::kDecodeHit,
                                         RouteReason::kFasterDecode}));
}

}  // namespace
}  // namespace baton::scheduler
