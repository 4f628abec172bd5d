// How far a prompt is, on its way from the workers through the router: forwards alone, and before
// the first token.
#include <vector>

#include "gtest/gtest.h"

#include "tests/router/fake_cluster.h"

namespace baton::router {

namespace {

class ProgressTest : public testing::Test {
 protected:
  RequestUid Ask(bool reports_progress = true) {
    GenerateRequest request = cluster.Request("0123456789", 4);
    request.reports_progress = reports_progress;
    return cluster.Submit(std::move(request));
  }
  static WorkerToken Progress(RequestUid uid, uint32_t num_tokens, uint32_t attempt = 1) {
    WorkerToken event = FakeCluster::Token(uid, 0, 0);
    event.attempt = attempt;
    event.progress = {num_tokens, 2, 30'000};
    return event;
  }
  std::vector<uint32_t> Told() const {
    std::vector<uint32_t> told;
    for (const PromptProgress& progress : cluster.sink->progress) {
      EXPECT_EQ(progress.total, 10u);
      EXPECT_EQ(progress.cache, 2u);
      told.push_back(progress.processed);
    }
    return told;
  }

  FakeCluster cluster{{.mode = ServeMode::kAggregated}};
};

TEST_F(ProgressTest, TheClientIsToldBeforeTheFirstToken) {
  cluster.Join(FakeCluster::Describe("decode-0", WorkerRole::kDecode));
  const RequestUid uid = Ask();
  EXPECT_TRUE(cluster.Log("decode-0").Of(Order::Kind::kDecode)[0].reports_progress);
  cluster.Tokens("decode-0", {Progress(uid, 4)});
  cluster.now_us += 20'000;
  cluster.Tokens("decode-0", {Progress(uid, 10), cluster.Token(uid, 0, 'x')});
  cluster.State("decode-0", uid, WorkerRequestState::kReserved);
  EXPECT_EQ(Told(), (std::vector<uint32_t>{4, 10}));
  EXPECT_EQ(cluster.sink->progress[0].time_ms, 30);
  EXPECT_EQ(cluster.sink->progress[1].time_ms, 50) << "by the router's clock from then on";
  cluster.Tokens("decode-0", {Progress(uid, 10)});
  EXPECT_EQ(Told().size(), 2u);
  EXPECT_EQ(cluster.sink->Text(), "x");
}

TEST_F(ProgressTest, WhoDidNotAskIsNotTold) {
  cluster.Join(FakeCluster::Describe("decode-0", WorkerRole::kDecode));
  const RequestUid uid = Ask(false);
  EXPECT_FALSE(cluster.Log("decode-0").Of(Order::Kind::kDecode)[0].reports_progress);
  cluster.Tokens("decode-0", {Progress(uid, 4)});
  EXPECT_TRUE(Told().empty());
}

TEST_F(ProgressTest, APromptThatIsComputedAgainNeverGoesBack) {
  cluster.Join(FakeCluster::Describe("decode-0", WorkerRole::kDecode));
  const RequestUid uid = Ask();
  cluster.Tokens("decode-0", {Progress(uid, 8)});
  cluster.Join(FakeCluster::Describe("decode-1", WorkerRole::kDecode));
  cluster.core.OnLeaseClosed(cluster.leases["decode-0"]);
  cluster.Advance(100'000, {"decode-1"});
  const std::vector<Order> orders = cluster.Log("decode-1").Of(Order::Kind::kDecode);
  ASSERT_EQ(orders.size(), 1u);
  for (const uint32_t num_tokens : {4u, 8u, 9u, 200u}) {
    cluster.Tokens("decode-1", {Progress(uid, num_tokens, orders[0].attempt)});
  }
  cluster.Tokens("decode-1", {Progress(uid, 9, orders[0].attempt - 1)});
  EXPECT_EQ(Told(), (std::vector<uint32_t>{8, 9, 10})) << "and no further than the prompt";
  EXPECT_GE(cluster.sink->progress[2].time_ms, cluster.sink->progress[0].time_ms);
}

TEST_F(ProgressTest, ASlowClientMissesSome) {
  cluster.Join(FakeCluster::Describe("decode-0", WorkerRole::kDecode));
  const RequestUid uid = Ask();
  cluster.sink->buffered = size_t{1} << 20;
  cluster.Tokens("decode-0", {Progress(uid, 4)});
  EXPECT_TRUE(Told().empty());
  cluster.sink->buffered = 0;
  cluster.Tokens("decode-0", {Progress(uid, 5)});
  EXPECT_LE(Told().size(), 1u);
}

}  // namespace
}  // namespace baton::router
