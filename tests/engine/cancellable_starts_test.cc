// Which cancels reach an engine.
#include "src/engine/cancellable_starts.h"

#include "gtest/gtest.h"

namespace baton::engine {
namespace {

RequestKey Key(uint64_t uid, uint32_t attempt) { return {{uid, 7}, attempt}; }

TEST(CancellableStartsTest, OneCancelForEachStartAndNoneForOthers) {
  CancellableStarts starts;
  EXPECT_FALSE(starts.TakeCancel(Key(1, 9)));
  EXPECT_TRUE(starts.Note(Key(1, 2)));
  EXPECT_FALSE(starts.Note(Key(1, 2)));
  EXPECT_FALSE(starts.TakeCancel(Key(1, 1))) << "an older attempt";
  EXPECT_FALSE(starts.TakeCancel(Key(2, 2))) << "another request";
  EXPECT_TRUE(starts.TakeCancel(Key(1, 3)));
  EXPECT_FALSE(starts.TakeCancel(Key(1, 3)));
}

TEST(CancellableStartsTest, ARefusedAttemptLeavesTheOneBeforeIt) {
  CancellableStarts starts;
  starts.Note(Key(1, 1));
  starts.Note(Key(1, 2));
  starts.Forget(Key(1, 2));
  EXPECT_TRUE(starts.TakeCancel(Key(1, 1)));
  starts.Note(Key(1, 3));
  starts.Note(Key(1, 4));
  starts.OnState(Key(1, 4), RequestState::kRejected);
  EXPECT_TRUE(starts.TakeCancel(Key(1, 4)));
  EXPECT_FALSE(starts.TakeCancel(Key(1, 4)));
}

TEST(CancellableStartsTest, AnEndCountsForAllAttemptsBeforeIt) {
  CancellableStarts starts;
  for (const uint32_t attempt : {1, 2, 3}) starts.Note(Key(1, attempt));
  starts.OnState(Key(1, 2), RequestState::kGranted);
  EXPECT_TRUE(starts.TakeCancel(Key(1, 1)));
  starts.OnState(Key(1, 2), RequestState::kHandedOff);
  EXPECT_FALSE(starts.TakeCancel(Key(1, 2)));
  EXPECT_TRUE(starts.TakeCancel(Key(1, 3)));
}

}  // namespace
}  // namespace baton::engine
