// Tests a router core whose workers serve two models: neither sees the other's workers.
#include <memory>
#include <string>
#include <utility>

#include "gtest/gtest.h"

#include "tests/router/fake_cluster.h"

namespace baton::router {
namespace {

std::shared_ptr<const ModelInfo> OtherModel() {
  auto model = std::make_shared<ModelInfo>(*TestModel());
  model->id = "other";
  return model;
}

// Joins a worker of another model: other weights and another layout, which its pool may have.
void JoinOther(FakeCluster& cluster, const std::string& id, WorkerRole role) {
  WorkerDescription worker = FakeCluster::Describe(id, role);
  worker.model = OtherModel();
  worker.fingerprint.layout_id = 11;
  worker.fingerprint.weights_id = 12;
  cluster.Join(std::move(worker));
}

RequestUid SubmitTo(FakeCluster& cluster, std::shared_ptr<const ModelInfo> model) {
  GenerateRequest request = cluster.Request("prompt");
  request.model = std::move(model);
  return cluster.Submit(std::move(request));
}

TEST(SeveralModelsTest, ARequestGoesToThePoolOfItsModel) {
  FakeCluster cluster;
  cluster.JoinPair();
  JoinOther(cluster, "decode-1", WorkerRole::kDecode);
  JoinOther(cluster, "prefill-1", WorkerRole::kPrefill);
  cluster.Report("prefill-1", {"decode-1"});
  for (int i = 0; i < 4; ++i) {
    SubmitTo(cluster, TestModel());
    SubmitTo(cluster, OtherModel());
  }
  for (const char* place : {"0", "1"}) {
    const std::string prefill = std::string("prefill-") + place;
    const std::string decode = std::string("decode-") + place;
    EXPECT_EQ(cluster.connector.logs[prefill]->Of(Order::Kind::kPrefill).size(), 4u) << prefill;
    EXPECT_EQ(cluster.connector.logs[decode]->Of(Order::Kind::kDecode).size(), 4u) << decode;
  }
}

TEST(SeveralModelsTest, AModelWithoutWorkersEndsItsRequestsAlone) {
  FakeCluster cluster;
  cluster.JoinPair();
  SubmitTo(cluster, OtherModel());
  ASSERT_TRUE(cluster.sink->error.has_value());
  EXPECT_EQ(cluster.sink->error->code, ErrorCode::kNoWorkers);
  EXPECT_GT(cluster.sink->error->retry_after_s, 0u);
  SubmitTo(cluster, TestModel());
  EXPECT_FALSE(cluster.sink->error.has_value());
}

TEST(SeveralModelsTest, ReadyOnceEachExpectedModelHadAPool) {
  RouterCoreConfig config;
  config.expected_models = {"other", "toy"};
  FakeCluster cluster(config);
  cluster.JoinPair();
  cluster.Advance(1'000'000, {"decode-0", "prefill-0"});
  EXPECT_FALSE(cluster.core.Ready(cluster.now_us));
  JoinOther(cluster, "decode-1", WorkerRole::kDecode);
  JoinOther(cluster, "prefill-1", WorkerRole::kPrefill);
  cluster.Report("prefill-1", {"decode-1"});
  EXPECT_TRUE(cluster.core.Ready(cluster.now_us));
  cluster.core.OnLeaseClosed(cluster.leases["decode-0"]);
  EXPECT_TRUE(cluster.core.Ready(cluster.now_us)) << "the other model is served";
  cluster.core.OnLeaseClosed(cluster.leases["decode-1"]);
  EXPECT_FALSE(cluster.core.Ready(cluster.now_us));
}

TEST(SeveralModelsTest, EachModelWaitsForItsFirstPrefillWorker) {
  FakeCluster cluster;
  cluster.JoinPair();
  JoinOther(cluster, "decode-1", WorkerRole::kDecode);
  SubmitTo(cluster, OtherModel());
  EXPECT_EQ(cluster.connector.logs["decode-1"]->Of(Order::Kind::kDecode).size(), 0u)
      << "a pair of the other model is no pair of this one";
  JoinOther(cluster, "prefill-1", WorkerRole::kPrefill);
  cluster.Report("prefill-1", {"decode-1"});
  EXPECT_EQ(cluster.connector.logs["prefill-1"]->Of(Order::Kind::kPrefill).size(), 1u);
}

TEST(SeveralModelsTest, TheTopologySaysOfWhichModelAWorkerIs) {
  FakeCluster cluster;
  cluster.JoinPair();
  EXPECT_FALSE(cluster.core.TopologyView(cluster.now_us).has_several_models);
  JoinOther(cluster, "decode-1", WorkerRole::kDecode);
  const Topology topology = cluster.core.TopologyView(cluster.now_us);
  EXPECT_TRUE(topology.has_several_models);
  EXPECT_EQ(topology.model, "other,toy");
}

}  // namespace
}  // namespace baton::router
