// RequestEnds: whose work ends before its time, and when. One that never ends holds its blocks for
// ever.
#include "src/engine/request_ends.h"

#include <cstdint>

#include "gtest/gtest.h"

#include "tests/engine/parts_rig.h"

namespace baton::engine {
namespace {

constexpr int64_t kMs = 1'000;

// A rig whose requests are told apart by number.
class RequestEndsTest : public ::testing::Test {
 protected:
  RequestKey Begin(uint64_t number, SessionId session, int64_t deadline_us) {
    RequestSpec spec = ToyRequest(number, 10, 20);
    spec.session = session;
    spec.deadline_us = deadline_us;
    spec.key.attempt = 2;
    return rig_.Add(spec)->spec.key;
  }
  // The last state that its router heard.
  RequestState EndOf(const RequestKey& key) {
    rig_.state.outbox.Flush();
    return rig_.recorder.Of(key).last();
  }
  bool IsLive(const RequestKey& key) const { return rig_.state.FindLive(key) != nullptr; }
  void ExpireAt(int64_t now_us) {
    rig_.state.now_us = now_us;
    rig_.ends.Expire();
  }

  PartsRig rig_;
  const int64_t start_us_ = rig_.state.now_us;
};

TEST_F(RequestEndsTest, ADeadlineEndsItsOwnRequestAtItsTime) {
  const RequestKey early = Begin(1, SessionId(1), 50 * kMs);
  const RequestKey late = Begin(2, SessionId(1), 80 * kMs);
  EXPECT_EQ(rig_.ends.NextDueUs(), start_us_ + 50 * kMs);
  ExpireAt(start_us_ + 50 * kMs - 1);
  EXPECT_TRUE(IsLive(early));
  ExpireAt(start_us_ + 50 * kMs);
  EXPECT_EQ(EndOf(early), RequestState::kFailed);
  EXPECT_EQ(rig_.recorder.Of(early).status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(IsLive(late));
  EXPECT_EQ(rig_.ends.NextDueUs(), start_us_ + 80 * kMs);
  ExpireAt(start_us_ + 80 * kMs);
  EXPECT_FALSE(IsLive(late));
  EXPECT_FALSE(rig_.state.scheduler.HasWork());
  EXPECT_EQ(rig_.ends.NextDueUs(), INT64_MAX);
}

TEST_F(RequestEndsTest, ASilentRoutersRequestsEndWithItsLease) {
  const RequestKey silent = Begin(1, SessionId(1), 1'000 * kMs);
  const RequestKey heard = Begin(2, SessionId(2), 1'000 * kMs);
  rig_.leases.Begin(SessionId(1), start_us_ + 20 * kMs);
  rig_.leases.Begin(SessionId(2), start_us_ + 20 * kMs);
  rig_.leases.Renew(SessionId(2), start_us_ + 90 * kMs);
  EXPECT_EQ(rig_.ends.NextDueUs(), start_us_ + 20 * kMs);
  ExpireAt(start_us_ + 20 * kMs);
  EXPECT_EQ(EndOf(silent), RequestState::kCancelled);
  EXPECT_TRUE(IsLive(heard));
  EXPECT_EQ(rig_.leases.size(), 1u) << "the lease is over too";
  EXPECT_EQ(rig_.ends.NextDueUs(), start_us_ + 90 * kMs);
}

TEST_F(RequestEndsTest, ACancelEndsItsOwnAttemptAndOlderOnes) {
  const RequestKey key = Begin(1, SessionId(1), 1'000 * kMs);
  RequestKey other = key;
  other.attempt = key.attempt - 1;
  rig_.ends.Cancel(other);
  EXPECT_TRUE(IsLive(key)) << "the cancel of an older attempt came late";
  other.attempt = key.attempt + 1;
  rig_.ends.Cancel(other);
  EXPECT_EQ(EndOf(key), RequestState::kCancelled);
  rig_.ends.Cancel(key);
  rig_.state.outbox.Flush();
  EXPECT_EQ(rig_.recorder.Of(key).num_terminal, 1u);
}

TEST_F(RequestEndsTest, AFaultOfTheDeviceEndsAllOfThem) {
  const RequestKey first = Begin(1, SessionId(1), 1'000 * kMs);
  const RequestKey second = Begin(2, SessionId(2), 1'000 * kMs);
  rig_.ends.AbandonAll(Internal("the device is gone"));
  for (const RequestKey& key : {first, second}) {
    EXPECT_EQ(EndOf(key), RequestState::kFailed);
    EXPECT_EQ(rig_.recorder.Of(key).failed_part, FailedPart::kComputation);
    EXPECT_EQ(rig_.recorder.Of(key).status.code(), StatusCode::kInternal);
  }
  EXPECT_EQ(rig_.state.requests.size(), 0u);
  EXPECT_FALSE(rig_.state.scheduler.HasWork());
}

}  // namespace
}  // namespace baton::engine
