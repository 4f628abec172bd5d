#include "src/base/mutex.h"

#include <chrono>

#include "gtest/gtest.h"

#include "src/base/thread.h"

namespace baton {
namespace {

// A number that threads add to and wait for.
struct Sum {
  Mutex mutex;
  CondVar changed;
  int value BATON_GUARDED_BY(mutex) = 0;
};

TEST(MutexTest, OneThreadAtATimeIsInside) {
  Sum sum;
  const auto add = [&] {
    for (int i = 0; i < 10'000; ++i) {
      MutexLock lock(sum.mutex);
      ++sum.value;
    }
  };
  Thread one("test-a", add);
  Thread other("test-b", add);
  one.Join();
  other.Join();
  MutexLock lock(sum.mutex);
  EXPECT_EQ(sum.value, 20'000);
}

// Each release is seen by another thread, which could not go on otherwise.
TEST(MutexTest, ALockIsReleasedEarlyAndTakenAgain) {
  Sum sum;
  MutexLock lock(sum.mutex);
  lock.Unlock();
  Thread("test-a", [&] {
    MutexLock inside(sum.mutex);
    sum.value = 1;
  }).Join();
  lock.Lock();
  EXPECT_EQ(sum.value, 1);
  lock.Unlock();  // and the end of the scope releases nothing
  Thread("test-b", [&] {
    MutexLock inside(sum.mutex);
    sum.value = 2;
  }).Join();
}

TEST(CondVarTest, AWaitReleasesTheMutexAndHoldsItAgain) {
  Sum sum;
  Thread adder;
  {
    MutexLock lock(sum.mutex);
    // It cannot add before the wait has released the mutex.
    adder = Thread("test-a", [&] {
      {
        MutexLock inside(sum.mutex);
        sum.value = 7;
      }
      sum.changed.NotifyOne();
    });
    while (sum.value != 7) sum.changed.Wait(sum.mutex);
    EXPECT_EQ(sum.value, 7);
  }
  adder.Join();
}

TEST(CondVarTest, AWaitEndsAtItsDeadlineWithTheMutexHeld) {
  Sum sum;
  const auto begin = std::chrono::steady_clock::now();
  const auto deadline = begin + std::chrono::milliseconds(20);
  MutexLock lock(sum.mutex);
  while (sum.changed.WaitUntil(sum.mutex, deadline)) {
  }
  EXPECT_GE(std::chrono::steady_clock::now(), deadline);
  EXPECT_FALSE(sum.changed.WaitUntil(sum.mutex, begin)) << "a deadline that has passed";
  lock.Unlock();
  Thread("test-a", [&] {
    MutexLock inside(sum.mutex);
    sum.value = 1;
  }).Join();
}

}  // namespace
}  // namespace baton
