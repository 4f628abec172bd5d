#include "src/base/thread.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>

#include <array>
#include <atomic>
#include <string>

#include "gtest/gtest.h"

#include "src/base/unique_fd.h"

namespace baton {
namespace {

TEST(ThreadTest, CarriesItsNameCutToTheKernelsLimit) {
  char name[16] = {};
  Thread thread("test-name-that-is-too-long",
                [&] { pthread_getname_np(pthread_self(), name, sizeof(name)); });
  thread.Join();
  EXPECT_EQ(std::string(name), "test-name-that-");
}

TEST(ThreadTest, DestructionAndAssignmentJoin) {
  std::atomic<int> done{0};
  {
    Thread thread("test-a", [&] { done.fetch_add(1); });
    thread = Thread("test-b", [&] { done.fetch_add(10); });
    EXPECT_GE(done.load(), 1);
  }
  EXPECT_EQ(done.load(), 11);
}

TEST(ThreadTest, PinnedThreadRunsOnItsProcessor) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  int wanted = -1;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed)) wanted = cpu;
  }
  ASSERT_GE(wanted, 0);
  int ran_on = -1;
  Thread thread("test-pin", [&] {
    EXPECT_TRUE(KeepThisThreadOn(std::array{wanted}));
    ran_on = sched_getcpu();
  });
  thread.Join();
  EXPECT_EQ(ran_on, wanted);
}

TEST(ThreadTest, ImpossibleProcessorChangesNothing) {
  Thread thread("test-pin", [] {
    cpu_set_t before;
    cpu_set_t after;
    ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
    EXPECT_FALSE(KeepThisThreadOn({}));
    EXPECT_FALSE(KeepThisThreadOn(std::array{0, -1}));
    EXPECT_FALSE(KeepThisThreadOn(std::array{1'000'000}));
    ASSERT_EQ(sched_getaffinity(0, sizeof(after), &after), 0);
    EXPECT_TRUE(CPU_EQUAL(&before, &after));
  });
  thread.Join();
}

TEST(UniqueFdTest, ClosesExactlyOnce) {
  const int raw = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(raw, 0);
  {
    UniqueFd first(raw);
    UniqueFd second(std::move(first));
    EXPECT_FALSE(first.valid());
    EXPECT_EQ(second.get(), raw);
    EXPECT_NE(::fcntl(raw, F_GETFD), -1);
  }
  EXPECT_EQ(::fcntl(raw, F_GETFD), -1);
  const UniqueFd empty;
  EXPECT_FALSE(empty);
}

}  // namespace
}  // namespace baton
