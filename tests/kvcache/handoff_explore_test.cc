// A prefill worker and a decode worker over a lossy network: every order of events for small
// worlds, random orders for larger ones.
#include <deque>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "gtest/gtest.h"

#include "tests/kvcache/handoff_world.h"
#include "tests/test_seed.h"

namespace baton::kv {
namespace {

// The result of an exploration.
struct Explored {
  size_t worlds = 0;
  size_t bound = 0;      // worlds in which the decode worker has bound
  size_t completed = 0;  // worlds in which the prefill worker was told so
};

// Visits every world that can be reached; from each one, the faults end and all must come to rest:
// bound and applied, unless a side was cancelled, cut off, or its timers ran ahead.
Explored ExploreAll(const WorldShape& shape) {
  absl::flat_hash_set<HandoffWorld> seen;
  std::deque<HandoffWorld> open;
  Explored result;
  seen.insert(HandoffWorld(shape));
  open.push_back(HandoffWorld(shape));
  std::vector<WorldStep> steps;
  while (!open.empty()) {
    const HandoffWorld world = std::move(open.front());
    open.pop_front();
    ++result.worlds;
    result.bound += world.WasBound();
    result.completed += world.source().outcome() == HandoffOutcome::kApplied;
    HandoffWorld rest = world;
    if (!rest.RunToEnd()) {
      ADD_FAILURE() << "no end from: " << world.ToString() << "\nstuck at: " << rest.ToString();
      return result;
    }
    if (world.repairable() && shape.ticks == 0 && !shape.wrong_chain) {
      EXPECT_TRUE(rest.WasBound()) << world.ToString();
      EXPECT_EQ(rest.source().outcome(), HandoffOutcome::kApplied) << world.ToString();
    }
    world.Steps(&steps);
    for (const WorldStep& step : steps) {
      HandoffWorld next = world;
      next.Do(step);
      if (!next.bug().empty()) {
        ADD_FAILURE() << "step " << int(step.kind) << " from: " << world.ToString()
                      << "\nto: " << next.ToString();
        return result;
      }
      if (seen.insert(next).second) open.push_back(std::move(next));
    }
  }
  return result;
}

void Print(const char* name, const Explored& explored) {
  std::printf("%s: %zu worlds, %zu bound, %zu completed\n", name, explored.worlds, explored.bound,
              explored.completed);
}

TEST(HandoffExploreTest, EveryOrderWithoutFaultsEndsBoundAndApplied) {
  const Explored explored = ExploreAll({.num_blocks = 3, .num_layers = 2});
  Print("3 blocks x 2 layers, no faults", explored);
  EXPECT_GT(explored.worlds, 200u);
  EXPECT_GT(explored.bound, 0u);
  EXPECT_GT(explored.completed, 0u);
}

TEST(HandoffExploreTest, EveryOrderOfOneSliceWithTwoFaultsEndsWithNothingHeld) {
  const Explored explored = ExploreAll({.faults = 2});
  Print("1 slice, 2 faults", explored);
  EXPECT_GT(explored.worlds, 2'000u);
  EXPECT_GT(explored.bound, 0u);
}

TEST(HandoffExploreTest, EveryOrderOfTwoSlicesWithAFaultAndATimerEndsWithNothingHeld) {
  const Explored explored = ExploreAll({.num_layers = 2, .faults = 1, .ticks = 1});
  Print("2 slices, 1 fault, 1 tick", explored);
  EXPECT_GT(explored.worlds, 5'000u);
  EXPECT_GT(explored.completed, 0u);
}

TEST(HandoffExploreTest, EveryOrderOfTimersAloneEndsWithNothingHeld) {
  const Explored explored = ExploreAll({.ticks = 3});
  Print("1 slice, 3 ticks", explored);
  EXPECT_GT(explored.worlds, 200u);
}

TEST(HandoffExploreTest, AnotherPromptIsNeverBound) {
  const Explored explored = ExploreAll({.num_layers = 2, .faults = 1, .wrong_chain = true});
  Print("wrong chain", explored);
  EXPECT_EQ(explored.bound, 0u);
  EXPECT_EQ(explored.completed, 0u);
}

TEST(HandoffExploreTest, RandomOrdersOfLargerTransfersEndWithNothingHeld) {
  uint64_t bound = 0;
  uint64_t failed = 0;
  for (const uint64_t seed : TestSeeds(3)) {
    for (uint64_t run = 0; run < 2'000; ++run) {
      SCOPED_TRACE(testing::Message() << "BATON_TEST_SEED=" << seed << " run " << run);
      TestRandom random(seed * 1'000'003 + run);
      HandoffWorld world({.num_blocks = random.Between(1, 5),
                          .num_layers = random.Between(1, 4),
                          .num_choices = random.Between(1, 3),
                          .faults = random.Below(12),
                          .ticks = random.Below(8)});
      std::vector<WorldStep> steps;
      for (uint32_t i = 0; i < 300; ++i) {
        world.Steps(&steps);
        if (steps.empty()) break;
        world.Do(steps[random.Below(static_cast<uint32_t>(steps.size()))]);
        ASSERT_EQ(world.bug(), "") << world.ToString();
      }
      ASSERT_TRUE(world.RunToEnd()) << world.ToString();
      ASSERT_EQ(world.bug(), "") << world.ToString();
      bound += world.WasBound();
      failed += !world.WasBound();
    }
  }
  std::printf("%llu bound, %llu failed\n", static_cast<unsigned long long>(bound),
              static_cast<unsigned long long>(failed));
  EXPECT_GT(bound, 500u);
  EXPECT_GT(failed, 500u);
}

}  // namespace
}  // namespace baton::kv
