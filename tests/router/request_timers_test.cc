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
      return next_us_[uid.hi];
    });
    return seen;
  }

  RequestTimers timers_;
  std::map<uint64_t, std::optional<int64_t>> next_us_;  // by the hi of the uid; none: it has ended
};

TEST_F(RequestTimersTest, ARequestIsLookedAtOnceAndThenWhenItsTimeHasCome) {
  timers_.Add(kA);
  timers_.Add(kB);
  next_us_ = {{1, 1000}, {2, 500}};
  EXPECT_EQ(Run(0), (std::vector<RequestUid>{kA, kB}));
  EXPECT_TRUE(Run(499).empty());
  EXPECT_EQ(Run(500), std::vector<RequestUid>{kB}) << "a time that has passed is due in every run";
  next_us_[2] = 2000;
  EXPECT_EQ(Run(501), std::vector<RequestUid>{kB});
  EXPECT_EQ(Run(1999), std::vector<RequestUid>{kA});
  EXPECT_EQ(timers_.size(), 2u);
}

TEST_F(RequestTimersTest, ARequestThatHasEndedIsForgotten) {
  timers_.Add(kA);
  timers_.Add(kB);
  next_us_ = {{2, 500}};
  EXPECT_EQ(Run(0), (std::vector<RequestUid>{kA, kB}));
  EXPECT_EQ(timers_.size(), 1u);
  EXPECT_EQ(Run(500), std::vector<RequestUid>{kB});
}

TEST_F(RequestTimersTest, LookAtAllIsForOneRun) {
  timers_.Add(kA);
  next_us_ = {{1, 1'000'000}};
  EXPECT_EQ(Run(0), std::vector<RequestUid>{kA});
  timers_.LookAtAll();
  EXPECT_EQ(Run(1), std::vector<RequestUid>{kA});
  EXPECT_TRUE(Run(2).empty());
}

TEST_F(RequestTimersTest, ALookMayAddRequests) {
  timers_.Add(kA);
  std::vector<RequestUid> seen;
  timers_.Run(0, [&](RequestUid uid) -> std::optional<int64_t> {
    seen.push_back(uid);
    if (uid == kA) timers_.Add(kB);
    if (uid == kA) return std::nullopt;
    return 10;
  });
  EXPECT_EQ(seen, (std::vector<RequestUid>{kA, kB}));
  EXPECT_EQ(timers_.size(), 1u);
}

}  // namespace
}  // namespace baton::router
