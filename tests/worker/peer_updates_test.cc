// Lists of peers on their way to the endpoint: whoever tells of them never waits, the newest list
// counts, and one with a name that is not found is not forgotten.
#include "src/worker/peer_updates.h"

#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace baton::worker {

using kv::PeerAddress;

namespace {

std::vector<PeerAddress> ListOf(const std::string& id) { return {{.worker_id = id}}; }

TEST(PeerUpdatesTest, WhoTellsDoesNotWaitAndTheNewestListCounts) {
  absl::Notification looks_up;
  absl::Notification answered;
  absl::Notification applied;
  std::vector<std::string> seen;  // of the thread, and read when it has ended
  {
    PeerUpdates updates([&](const std::vector<PeerAddress>& peers, const auto& /*is_old*/) {
      seen.push_back(peers.front().worker_id);
      if (seen.size() == 1) {
        looks_up.Notify();
        answered.WaitForNotification();  // a resolver that does not answer
      } else {
        applied.Notify();
      }
      return OkStatus();
    });
    updates.Set(ListOf("a"));
    looks_up.WaitForNotification();
    updates.Set(ListOf("b"));
    updates.Set(ListOf("c"));
    answered.Notify();
    applied.WaitForNotification();
  }
  EXPECT_EQ(seen, (std::vector<std::string>{"a", "c"}));
}

TEST(PeerUpdatesTest, AListThatCouldNotBeAppliedIsTriedAgainUntilItIs) {
  absl::Notification done;
  std::vector<std::string> seen;
  testing::internal::CaptureStderr();
  {
    PeerUpdates updates(
        [&](const std::vector<PeerAddress>& peers, const auto& /*is_old*/) {
          seen.push_back(peers.front().worker_id);
          if (seen.size() < 4) return Status(Unavailable("name not known"));
          done.Notify();
          return OkStatus();
        },
        std::chrono::milliseconds(1));
    updates.Set(ListOf("a"));
    done.WaitForNotification();
  }
  EXPECT_EQ(seen, std::vector<std::string>(4, "a"));
  const std::string log = testing::internal::GetCapturedStderr();
  const size_t said = log.find("name not known");
  EXPECT_NE(said, std::string::npos);
  EXPECT_EQ(log.find("name not known", said + 1), std::string::npos) << log;
}

TEST(PeerUpdatesTest, EndsWhileItWaitsToTryAgain) {
  absl::Notification tried;
  {
    PeerUpdates updates(
        [&](const std::vector<PeerAddress>&, const auto& /*is_old*/) {
          if (!tried.HasBeenNotified()) tried.Notify();
          return Unavailable("name not known");
        },
        std::chrono::hours(1));
    updates.Set(ListOf("a"));
    tried.WaitForNotification();
  }
  SUCCEED() << "a test that hangs fails";
}

// A list that is being applied, which may take long, is told when it is old.
TEST(PeerUpdatesTest, ANewerListAndTheEndMakeOneOld) {
  absl::Notification begun;
  absl::Notification second;
  PeerUpdates updates([&](const std::vector<PeerAddress>& peers, const auto& is_old) {
    if (peers.front().worker_id == "a") {
      EXPECT_FALSE(is_old());
      begun.Notify();
    } else {
      second.Notify();
    }
    while (!is_old()) std::this_thread::yield();
    return OkStatus();
  });
  updates.Set(ListOf("a"));
  begun.WaitForNotification();
  updates.Set(ListOf("b"));
  second.WaitForNotification();
  updates.Stop();
}

}  // namespace
}  // namespace baton::worker
