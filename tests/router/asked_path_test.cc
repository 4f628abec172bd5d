// Tests that a request may ask who computes its prompt (the field `path`).
#include "src/router/asked_path.h"

#include <string>

#include "gtest/gtest.h"

#include "tests/router/fake_cluster.h"

namespace baton::router {

namespace {

// Submits a request of `num_tokens` that asks for `path`; true: a prefill worker got it.
bool IsSplit(FakeCluster& cluster, AskedPath path, size_t num_tokens = 6) {
  const size_t before = cluster.Log("prefill-0").Of(Order::Kind::kPrefill).size();
  GenerateRequest request = cluster.Request(std::string(num_tokens, 'p'));
  request.path = path;
  cluster.Submit(std::move(request));
  return cluster.Log("prefill-0").Of(Order::Kind::kPrefill).size() > before;
}

TEST(AskedPathTest, TheRequestDecidesBesideTheMode) {
  struct Case {
    ServeMode mode;
    AskedPath path;
    bool is_split;
  };
  const Case cases[] = {
      {ServeMode::kDisagg, AskedPath::kAuto, true},
      {ServeMode::kDisagg, AskedPath::kDisagg, true},
      {ServeMode::kDisagg, AskedPath::kLocal, false},
      {ServeMode::kAdaptive, AskedPath::kAuto, false},
      {ServeMode::kAdaptive, AskedPath::kDisagg, true},
      {ServeMode::kAdaptive, AskedPath::kLocal, false},
      {ServeMode::kAggregated, AskedPath::kAuto, false},
      {ServeMode::kAggregated, AskedPath::kLocal, false},
  };
  for (const Case& c : cases) {
    RouterCoreConfig config;
    config.mode = c.mode;
    config.local_max_tokens = 64;
    FakeCluster cluster(config);
    cluster.JoinPair();
    EXPECT_EQ(IsSplit(cluster, c.path), c.is_split)
        << static_cast<int>(c.mode) << ' ' << static_cast<int>(c.path);
    EXPECT_FALSE(cluster.sink->ended());
    EXPECT_EQ(cluster.Log("decode-0").Of(Order::Kind::kDecode).size(), 1u);
  }
}

TEST(AskedPathTest, ASplitThatIsNotThereIsRefusedWithTheReason) {
  RouterCoreConfig config;
  config.mode = ServeMode::kAggregated;
  FakeCluster cluster(config);
  cluster.JoinPair();
  EXPECT_FALSE(IsSplit(cluster, AskedPath::kDisagg));
  ASSERT_TRUE(cluster.sink->error.has_value());
  EXPECT_EQ(HttpStatusOf(cluster.sink->error->code), 400);
  EXPECT_EQ(cluster.sink->error->param, "path");
  EXPECT_EQ(cluster.sink->error->Message(),
            "'path' is out of range: it must be \"auto\" or \"local\", since this server runs with "
            "--mode aggregated.");
  EXPECT_TRUE(cluster.Log("decode-0").Of(Order::Kind::kDecode).empty());
}

TEST(AskedPathTest, APromptThatNoPrefillWorkerHoldsIsNotSplit) {
  FakeCluster cluster;
  cluster.Join(FakeCluster::Describe("decode-0", WorkerRole::kDecode));
  WorkerDescription small = FakeCluster::Describe("prefill-0", WorkerRole::kPrefill);
  small.num_blocks = 2;
  cluster.Join(small);
  cluster.Report("prefill-0", {"decode-0"});
  EXPECT_FALSE(IsSplit(cluster, AskedPath::kDisagg, 40));
  ASSERT_TRUE(cluster.sink->error.has_value());
  EXPECT_NE(cluster.sink->error->Message().find("has blocks enough"), std::string::npos);
  EXPECT_TRUE(IsSplit(cluster, AskedPath::kDisagg, 30));
}

}  // namespace
}  // namespace baton::router
