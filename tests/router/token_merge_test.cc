// TokenMerge against its invariants and a naive model.
#include "src/router/token_merge.h"

#include <algorithm>
#include <random>

#include "gtest/gtest.h"

#include "tests/test_seed.h"

namespace baton::router {

using scheduler::FinishReason;

namespace {

using Outcome = TokenMerge::Outcome;

WorkerToken Make(uint32_t choice, uint32_t index, TokenId token,
                 FinishReason finish = FinishReason::kNone) {
  WorkerToken event;
  event.choice = choice;
  event.index = index;
  event.token = token;
  event.finish = finish;
  return event;
}

std::vector<TokenId> TakeAll(TokenMerge& merge, uint32_t choice) {
  std::vector<TokenId> tokens;
  while (merge.HasNext(choice)) tokens.push_back(merge.TakeNext(choice).token.token);
  return tokens;
}

TEST(TokenMergeTest, FirstCopyWinsAndEqualCopiesAreDropped) {
  TokenMerge merge(1, 8);
  EXPECT_EQ(merge.Add(Make(0, 0, 5), 1), Outcome::kReady);
  EXPECT_EQ(merge.Add(Make(0, 0, 5), 2), Outcome::kDuplicate);
  ASSERT_TRUE(merge.HasNext(0));
  EXPECT_EQ(merge.TakeNext(0).arrived_us, 1);
  EXPECT_FALSE(merge.HasNext(0));
  EXPECT_EQ(merge.Add(Make(0, 0, 5), 3), Outcome::kDuplicate) << "also after it was taken";
}

TEST(TokenMergeTest, UnequalCopiesAreAMismatchWhereverTheyMeet) {
  TokenMerge merge(1, 8);
  merge.Add(Make(0, 0, 5), 1);
  EXPECT_EQ(merge.Add(Make(0, 0, 6), 2), Outcome::kMismatch) << "in order";
  merge.Add(Make(0, 2, 7), 3);
  EXPECT_EQ(merge.Add(Make(0, 2, 8), 4), Outcome::kMismatch) << "ahead of a gap";
  EXPECT_EQ(merge.Add(Make(0, 2, 7), 4), Outcome::kDuplicate);
  TokenMerge ends(1, 8);
  ends.Add(Make(0, 0, 5, FinishReason::kStop), 1);
  EXPECT_EQ(ends.Add(Make(0, 0, 5, FinishReason::kNone), 2), Outcome::kMismatch) << "other end";
  EXPECT_EQ(ends.Add(Make(0, 1, 5), 2), Outcome::kMismatch) << "a token after the last";
  TokenMerge late_end(1, 8);
  late_end.Add(Make(0, 1, 5), 1);
  EXPECT_EQ(late_end.Add(Make(0, 0, 5, FinishReason::kStop), 2), Outcome::kMismatch)
      << "the last token closes a gap before a later one";
}

TEST(TokenMergeTest, RefusesWhatLiesOutsideTheRequest) {
  TokenMerge merge(2, 4);
  EXPECT_EQ(merge.Add(Make(2, 0, 1), 1), Outcome::kInvalid);
  EXPECT_EQ(merge.Add(Make(0, 4, 1), 1), Outcome::kInvalid);
  TokenMerge wide(1, 100'000);
  EXPECT_EQ(wide.Add(Make(0, TokenMerge::kMaxAhead, 1), 1), Outcome::kAhead);
  EXPECT_EQ(wide.Add(Make(0, TokenMerge::kMaxAhead + 1, 1), 1), Outcome::kOverflow);
}

TEST(TokenMergeTest, ClosedChoiceIsSilent) {
  TokenMerge merge(2, 8);
  merge.Add(Make(0, 0, 1), 1);
  merge.Add(Make(0, 1, 2), 1);
  merge.CloseChoice(0);
  EXPECT_EQ(merge.num_pending(), 0u);
  EXPECT_TRUE(TakeAll(merge, 0).empty());
  EXPECT_EQ(merge.Add(Make(0, 1, 99), 1), Outcome::kDuplicate);
  EXPECT_FALSE(merge.complete());
  merge.Add(Make(1, 0, 3, FinishReason::kLength), 1);
  EXPECT_TRUE(merge.complete());
  EXPECT_FALSE(merge.ended_by_workers()) << "choice 0 was ended by the router";
}

// Any order and any duplication of two workers' streams gives each choice's tokens once, in order.
TEST(TokenMergeTest, AnyOrderGivesTheSameStreams) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    const uint32_t num_choices = 1 + random() % 4;
    const uint32_t length = 1 + random() % 40;
    std::vector<WorkerToken> events;
    for (uint32_t choice = 0; choice < num_choices; ++choice) {
      for (uint32_t index = 0; index < length; ++index) {
        const bool last = index + 1 == length;
        const WorkerToken token = Make(choice, index, static_cast<TokenId>(choice * 1000 + index),
                                       last ? FinishReason::kLength : FinishReason::kNone);
        const uint32_t copies = 1 + random() % 2;
        for (uint32_t copy = 0; copy < copies; ++copy) events.push_back(token);
      }
    }
    std::shuffle(events.begin(), events.end(), random);
    TokenMerge merge(num_choices, length);
    std::vector<std::vector<TokenId>> got(num_choices);
    for (const WorkerToken& event : events) {
      const Outcome outcome = merge.Add(event, 0);
      ASSERT_TRUE(outcome == Outcome::kReady || outcome == Outcome::kAhead ||
                  outcome == Outcome::kDuplicate);
      if (random() % 2 == 0) continue;
      for (const TokenId token : TakeAll(merge, event.choice)) got[event.choice].push_back(token);
    }
    ASSERT_TRUE(merge.complete());
    ASSERT_TRUE(merge.ended_by_workers());
    for (uint32_t choice = 0; choice < num_choices; ++choice) {
      for (const TokenId token : TakeAll(merge, choice)) got[choice].push_back(token);
      ASSERT_EQ(got[choice].size(), length);
      for (uint32_t index = 0; index < length; ++index) {
        ASSERT_EQ(got[choice][index], static_cast<TokenId>(choice * 1000 + index));
      }
    }
    ASSERT_EQ(merge.num_pending(), 0u);
  }
}

}  // namespace
}  // namespace baton::router
