// The named small clusters, explored to the end: every order of every event. The network loses,
// duplicates and reorders without limit. Slices are damaged as often as the protocol lets them, and
// timers may fire at any moment. Crashes, cut connections and cancels draw on a budget.
//
// BATON_CLOSURE=long spends more on other faults (scripts/test_full.sh), =short is what each mutant
// of scripts/mutate_handoff.py is run against.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "gtest/gtest.h"

#include "tests/kvcache/closure.h"

namespace baton::kv {
namespace {

enum class Form { kShort, kUsual, kLong };

Form TheForm() {
  const char* text = std::getenv("BATON_CLOSURE");
  const std::string form = text == nullptr ? "" : text;
  return form == "long" ? Form::kLong : form == "short" ? Form::kShort : Form::kUsual;
}

// The one of the three that is asked for.
template <typename T>
T Pick(T in_short, T in_usual, T in_long) {
  return TheForm() == Form::kShort ? in_short : TheForm() == Form::kUsual ? in_usual : in_long;
}

// Far more than any world has, unless a change makes one much larger.
uint64_t MaxStates() { return Pick(500'000, 5'000'000, 30'000'000); }

Closure ExpectClosed(const char* name, const ClusterShape& shape) {
  const Closure seen = ExploreToClosure(shape, MaxStates());
  std::printf(
      "%s; %u blocks, %u faults, %u attempts, %s router: %llu states, %llu transitions, depth %u, "
      "%.1f s; at "
      "rest %llu, done %llu; widest level %llu\n",
      name, shape.num_blocks, shape.faults, shape.max_attempts,
      shape.slow_router ? "slow" : "prompt", static_cast<unsigned long long>(seen.states),
      static_cast<unsigned long long>(seen.transitions), seen.depth, seen.seconds,
      static_cast<unsigned long long>(seen.at_rest), static_cast<unsigned long long>(seen.done),
      static_cast<unsigned long long>(seen.peak_frontier));
  EXPECT_EQ(seen.bug, "");
  EXPECT_TRUE(seen.closed) << "the limit of states was reached";
  EXPECT_GT(seen.at_rest, 0u);
  return seen;
}

TEST(HandoffClosureTest, OnePrefillOneDecodeOneRequest) {
  const Closure seen =
      ExpectClosed("1 P x 1 D x 1 request", {.num_blocks = Pick(1u, 2u, 2u),
                                             .max_attempts = 1,
                                             .slow_router = Pick(false, true, false),
                                             .faults = Pick(1u, 1u, 2u)});
  EXPECT_GT(seen.done, 0u);
}

TEST(HandoffClosureTest, OnePrefillOneDecodeOneRequestIsPlacedAgain) {
  const Closure seen =
      ExpectClosed("1 P x 1 D x 1 request, placed again", {.max_attempts = 2,
                                                           .damage = Pick(false, false, true),
                                                           .slow_router = false,
                                                           .faults = Pick(0u, 1u, 0u)});
  EXPECT_GT(seen.done, 0u);
}

TEST(HandoffClosureTest, OnePrefillTwoDecodesOneRequestIsRetargeted) {
  if (TheForm() == Form::kShort) return;  // retargeted to the same decode worker above
  const Closure seen =
      ExpectClosed("1 P x 2 D x 1 request, retargeted", {.num_decodes = 2,
                                                         .num_blocks = 1,
                                                         .pool_blocks = 1,
                                                         .max_attempts = 2,
                                                         .damage = false,
                                                         .slow_router = false,
                                                         .faults = Pick(0u, 0u, 1u),
                                                         .crash_prefill = false,
                                                         .crash_router = false,
                                                         .cut = false,
                                                         .cancel = false});
  EXPECT_GT(seen.done, 0u);
}

TEST(HandoffClosureTest, OnePrefillOneDecodeTwoRequestsShareThePool) {
  if (TheForm() == Form::kShort) return;
  const Closure seen =
      ExpectClosed("1 P x 1 D x 2 requests, blocks for one", {.num_requests = 2,
                                                              .num_blocks = 1,
                                                              .pool_blocks = 1,
                                                              .max_attempts = 1,
                                                              .damage = Pick(false, false, true),
                                                              .slow_router = false,
                                                              .faults = 0});
  EXPECT_GT(seen.done, 0u);
}

// A model of all kinds of pools: rows before a window stay, rows within it and a state cross.
TEST(HandoffClosureTest, RowsBeforeAWindowStayAndAStateCrosses) {
  const Closure seen =
      ExpectClosed("1 P x 1 D x 1 request, a window and a state", {.num_blocks = 3,
                                                                   .pool_blocks = 3,
                                                                   .num_unseen = 1,
                                                                   .num_state = 1,
                                                                   .max_attempts = 1,
                                                                   .slow_router = false,
                                                                   .faults = Pick(0u, 1u, 1u)});
  EXPECT_GT(seen.done, 0u);
}

TEST(HandoffClosureTest, TwoRoutersOneOfWhichDies) {
  if (TheForm() == Form::kShort) return;  // the death of the only router is explored above
  const Closure seen =
      ExpectClosed("2 routers x 1 P x 1 D, blocks for one request", {.num_requests = 2,
                                                                     .router_each = true,
                                                                     .num_blocks = 1,
                                                                     .pool_blocks = 1,
                                                                     .max_attempts = 1,
                                                                     .damage = false,
                                                                     .slow_router = false,
                                                                     .faults = 1,
                                                                     .crash_prefill = false,
                                                                     .crash_decode = false,
                                                                     .cut = false,
                                                                     .cancel = false});
  EXPECT_GT(seen.done, 0u);
}

TEST(HandoffClosureTest, AnotherPromptThanTheOneAskedForIsNeverAnswered) {
  const Closure seen = ExpectClosed(
      "1 P x 1 D, P computes another prompt",
      {.num_blocks = 1, .max_attempts = 1, .slow_router = false, .mixed_up = true, .faults = 1});
  EXPECT_EQ(seen.done, 0u);
}

TEST(HandoffClosureTest, WithoutAStrandTimeEveryLossFailsAtOnce) {
  const Closure seen = ExpectClosed(
      "1 P x 1 D x 1 request, no strand time",
      {.num_blocks = 1, .max_attempts = 1, .strand_us = 0, .slow_router = false, .faults = 1});
  EXPECT_GT(seen.done, 0u);
}

}  // namespace
}  // namespace baton::kv
