#include "src/router/request_timers.h"

#include <map>
#include <optional>
#include <vector>

#include "gtest/gtest.h"

namespace baton::router {
namespace {

constexpr RequestUid kA{1, 1};
constexpr RequestUid kB{2, 2};

// Answers each look as told, and remembers who was looked at.
class RequestTimersTest : public testing::Test {
 protected:
  std::vector<RequestUid> Run(int64_t now_us) {
    std::vector<RequestUid> seen;
    timers_.Run(now_us, [&](RequestUid uid) {
      seen.push_back(uid);
      return next_[uid.hi];
    });
    return seen;
  }

  static NextLook At(int64_t us) { return {.due_us = us, .look_us = us}; }

  RequestTimers timers_;
  std::map<uint64_t, std::optional<NextLook>> next_;  // by the hi of the uid; none: it has ended
};

TEST_F(RequestTimersTest, ARequestIsLookedAtOnceAndThenWhenItsTimeHasCome) {
  timers_.Add(kA);
  timers_.Add(kB);
  next_ = {{1, At(1000)}, {2, At(500)}};
  EXPECT_EQ(Run(0), (std::vector<RequestUid>{kA, kB}));
  EXPECT_TRUE(Run(499).empty());
  EXPECT_EQ(Run(500), std::vector<RequestUid>{kB}) << "a time that has passed is due in every run";
  next_[2] = At(2000);
  EXPECT_EQ(Run(501), std::vector<RequestUid>{kB});
  EXPECT_EQ(Run(1999), std::vector<RequestUid>{kA});
  EXPECT_EQ(timers_.size(), 2u);
}

TEST_F(RequestTimersTest, ARequestThatHasEndedIsForgotten) {
  timers_.Add(kA);
  timers_.Add(kB);
  next_ = {{2, At(500)}};
  EXPECT_EQ(Run(0), (std::vector<RequestUid>{kA, kB}));
  EXPECT_EQ(timers_.size(), 1u);
  EXPECT_EQ(Run(500), std::vector<RequestUid>{kB});
}

TEST_F(RequestTimersTest, LookAtAllIsForOneRun) {
  timers_.Add(kA);
  next_ = {{1, At(1'000'000)}};
  EXPECT_EQ(Run(0), std::vector<RequestUid>{kA});
  timers_.LookAtAll();
  EXPECT_EQ(Run(1), std::vector<RequestUid>{kA});
  EXPECT_TRUE(Run(2).empty());
}

TEST_F(RequestTimersTest, ALookBeforeTheTimeWaitsForARunThatComesAnyway) {
  EXPECT_EQ(timers_.due_us(), INT64_MAX);
  timers_.Add(kA);
  timers_.Add(kB);
  EXPECT_EQ(timers_.due_us(), 0) << "a new request needs a look";
  next_ = {{1, NextLook{.due_us = 9000, .look_us = 500}}, {2, At(7000)}};
  Run(0);
  EXPECT_EQ(timers_.due_us(), 7000);
  next_[1] = At(6000);
  EXPECT_TRUE(Run(499).empty());
  EXPECT_EQ(Run(600), std::vector<RequestUid>{kA});
  EXPECT_EQ(timers_.due_us(), 6000);
  timers_.LookAtAll();
  EXPECT_EQ(timers_.due_us(), 0);
}

TEST_F(RequestTimersTest, ALookMayAddRequests) {
  timers_.Add(kA);
  std::vector<RequestUid> seen;
  timers_.Run(0, [&](RequestUid uid) -> std::optional<NextLook> {
    seen.push_back(uid);
    if (uid == kA) timers_.Add(kB);
    if (uid == kA) return std::nullopt;
    return At(10);
  });
  EXPECT_EQ(seen, (std::vector<RequestUid>{kA, kB}));
  EXPECT_EQ(timers_.size(), 1u);
}

}  // namespace
}  // namespace baton::router
