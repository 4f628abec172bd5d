// Requests for vectors on their way through the router: one prefill worker alone, again after its
// death, refused where no worker gives vectors.
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "tests/router/fake_cluster.h"

namespace baton::router {

using scheduler::FinishReason;

namespace {

const std::vector<float> kVector = {0.6f, 0.0f, -0.8f};

class EmbeddingTest : public testing::Test {
 protected:
  explicit EmbeddingTest(RouterCoreConfig config = {}) : cluster(config) {}

  static WorkerDescription Describe(const std::string& id, WorkerRole role, bool gives = true) {
    WorkerDescription worker = FakeCluster::Describe(id, role);
    worker.embedding_size = gives ? static_cast<uint32_t>(kVector.size()) : 0;
    return worker;
  }
  void Join(const std::string& id, WorkerRole role, bool gives = true) {
    cluster.Join(Describe(id, role, gives));
  }
  GenerateRequest Embedded(std::string_view prompt) {
    GenerateRequest request = cluster.Request(prompt, 1);
    auto model = std::make_shared<ModelInfo>(*request.model);
    model->embedding_size = static_cast<uint32_t>(kVector.size());
    request.model = std::move(model);
    request.embeds = true;
    request.names_length = true;
    return request;
  }
  static WorkerToken VectorOf(RequestUid uid, uint32_t attempt = 1) {
    WorkerToken token = FakeCluster::Token(uid, 0, 'c', FinishReason::kLength);
    token.attempt = attempt;
    token.embedding = kVector;
    return token;
  }
  size_t NumOrders(const std::string& id, Order::Kind kind) {
    return cluster.Log(id).Of(kind).size();
  }

  FakeCluster cluster;
};

// Decode workers compute prompts themselves.
class AggregatedEmbeddingTest : public EmbeddingTest {
 protected:
  AggregatedEmbeddingTest() : EmbeddingTest({.mode = ServeMode::kAggregated}) {}
};

TEST_F(EmbeddingTest, OnePrefillWorkerAloneGivesIt) {
  Join("decode-0", WorkerRole::kDecode);
  Join("prefill-0", WorkerRole::kPrefill);
  const RequestUid uid = cluster.Submit(Embedded("abc"));
  EXPECT_EQ(NumOrders("prefill-0", Order::Kind::kEmbedding), 1u);
  EXPECT_EQ(NumOrders("prefill-0", Order::Kind::kPrefill), 0u);
  EXPECT_TRUE(cluster.Log("decode-0").Of(Order::Kind::kDecode).empty()) << "no grant, no hand-off";
  EXPECT_GT(cluster.PlacedBlocks("prefill-0"), 0u);
  cluster.State("prefill-0", uid, WorkerRequestState::kPrefillStarted);
  cluster.State("prefill-0", uid, WorkerRequestState::kPrefillDone);
  cluster.Tokens("prefill-0", {VectorOf(uid)});
  EXPECT_EQ(cluster.sink->embedding, kVector);
  ASSERT_TRUE(cluster.sink->result.has_value());
  EXPECT_EQ(cluster.sink->result->num_prompt_tokens, 3u);
  EXPECT_EQ(cluster.sink->result->num_completion_tokens, 0u);
  EXPECT_EQ(cluster.PlacedBlocks("prefill-0"), 0u);
  EXPECT_EQ(NumOrders("prefill-0", Order::Kind::kCancel), 0u) << "the worker is done by itself";
}

TEST_F(EmbeddingTest, TheLeastLoadedPrefillWorkerIsTaken) {
  Join("decode-0", WorkerRole::kDecode);
  Join("prefill-0", WorkerRole::kPrefill);
  Join("prefill-1", WorkerRole::kPrefill);
  for (int i = 0; i < 8; ++i) cluster.Submit(Embedded("abcdefgh"));
  EXPECT_EQ(NumOrders("prefill-0", Order::Kind::kEmbedding), 4u);
  EXPECT_EQ(NumOrders("prefill-1", Order::Kind::kEmbedding), 4u);
}

TEST_F(AggregatedEmbeddingTest, ADecodeWorkerGivesIt) {
  Join("decode-0", WorkerRole::kDecode);
  const RequestUid uid = cluster.Submit(Embedded("abc"));
  EXPECT_EQ(NumOrders("decode-0", Order::Kind::kEmbedding), 1u);
  cluster.Tokens("decode-0", {VectorOf(uid)});
  EXPECT_EQ(cluster.sink->embedding, kVector);
}

TEST_F(EmbeddingTest, AnotherWorkerGivesItAfterADeath) {
  Join("decode-0", WorkerRole::kDecode);
  Join("prefill-0", WorkerRole::kPrefill);
  const RequestUid uid = cluster.Submit(Embedded("abc"));
  cluster.State("prefill-0", uid, WorkerRequestState::kPrefillStarted);
  Join("prefill-1", WorkerRole::kPrefill);
  cluster.core.OnLeaseClosed(cluster.leases["prefill-0"]);
  cluster.Advance(200'000, {"decode-0", "prefill-1"});
  ASSERT_EQ(NumOrders("prefill-1", Order::Kind::kEmbedding), 1u);
  const uint32_t attempt = cluster.Log("prefill-1").Of(Order::Kind::kEmbedding)[0].attempt;
  EXPECT_EQ(attempt, 2u);
  cluster.Tokens("prefill-1", {VectorOf(uid, attempt)});
  EXPECT_EQ(cluster.sink->embedding, kVector);
}

TEST_F(EmbeddingTest, ACancelReachesTheWorker) {
  Join("decode-0", WorkerRole::kDecode);
  Join("prefill-0", WorkerRole::kPrefill);
  const RequestUid uid = cluster.Submit(Embedded("abc"));
  cluster.core.Cancel(uid, CancelCause::kClientLeft, cluster.now_us);
  EXPECT_EQ(NumOrders("prefill-0", Order::Kind::kCancel), 1u);
  EXPECT_EQ(cluster.PlacedBlocks("prefill-0"), 0u);
}

TEST_F(EmbeddingTest, WorkersOfAnOlderReleaseAreNotAsked) {
  Join("decode-0", WorkerRole::kDecode, /*gives=*/false);
  Join("prefill-0", WorkerRole::kPrefill, /*gives=*/false);
  cluster.Submit(Embedded("abc"));
  ASSERT_TRUE(cluster.sink->error.has_value());
  EXPECT_EQ(cluster.sink->error->code, ErrorCode::kUnsupported);
  EXPECT_EQ(cluster.sink->error->param, "model");
}

// Prompts of texts and of vectors share the prefill worker, and its room goes by their order.
TEST_F(EmbeddingTest, AVectorDoesNotPassATextThatWaitsForThePrefillWorker) {
  cluster.Join(Describe("decode-0", WorkerRole::kDecode));
  cluster.Join(Describe("prefill-0", WorkerRole::kPrefill));
  cluster.Report("prefill-0", {"decode-0"}, 3);
  cluster.Submit(cluster.Request(std::string(100, 'x')));
  for (int i = 0; i < 3; ++i) cluster.Submit(Embedded("abc"));
  EXPECT_EQ(NumOrders("prefill-0", Order::Kind::kPrefill), 0u) << "7 blocks, and 3 are free";
  EXPECT_EQ(NumOrders("prefill-0", Order::Kind::kEmbedding), 0u);
  cluster.Report("prefill-0", {"decode-0"});
  cluster.core.Tick(cluster.now_us);
  EXPECT_EQ(NumOrders("prefill-0", Order::Kind::kPrefill), 1u);
  EXPECT_EQ(NumOrders("prefill-0", Order::Kind::kEmbedding), 3u);
}

TEST_F(EmbeddingTest, ATextDoesNotPassAVectorThatWaitsForThePrefillWorker) {
  cluster.Join(Describe("decode-0", WorkerRole::kDecode));
  cluster.Join(Describe("prefill-0", WorkerRole::kPrefill));
  cluster.Report("prefill-0", {"decode-0"}, 3);
  cluster.Submit(Embedded(std::string(100, 'x')));
  cluster.Submit(cluster.Request("abc"));
  cluster.Submit(Embedded("abc"));
  EXPECT_EQ(NumOrders("prefill-0", Order::Kind::kPrefill), 0u);
  EXPECT_EQ(NumOrders("prefill-0", Order::Kind::kEmbedding), 0u);
  cluster.Report("prefill-0", {"decode-0"});
  cluster.core.Tick(cluster.now_us);
  EXPECT_EQ(NumOrders("prefill-0", Order::Kind::kPrefill), 1u);
  EXPECT_EQ(NumOrders("prefill-0", Order::Kind::kEmbedding), 2u);
}

TEST_F(EmbeddingTest, AVectorClaimsNoPrefillWorkerThatGivesNone) {
  cluster.Join(Describe("decode-0", WorkerRole::kDecode));
  cluster.Join(Describe("prefill-0", WorkerRole::kPrefill));
  cluster.Join(Describe("prefill-1", WorkerRole::kPrefill, /*gives=*/false));
  cluster.Report("prefill-0", {"decode-0"}, 3);
  cluster.Report("prefill-1", {"decode-0"});
  cluster.Submit(Embedded(std::string(100, 'x')));
  for (int i = 0; i < 8; ++i) cluster.Submit(cluster.Request("abc"));
  EXPECT_EQ(NumOrders("prefill-1", Order::Kind::kPrefill), 8u);
  EXPECT_EQ(NumOrders("prefill-0", Order::Kind::kPrefill), 0u) << "its room is the vector's";
  EXPECT_EQ(NumOrders("prefill-1", Order::Kind::kEmbedding), 0u);
  cluster.Report("prefill-0", {"decode-0"});
  cluster.core.Tick(cluster.now_us);
  EXPECT_EQ(NumOrders("prefill-0", Order::Kind::kEmbedding), 1u);
}

TEST_F(EmbeddingTest, AVectorPassesTextsThatWaitForADecodeWorker) {
  cluster.Join(Describe("decode-0", WorkerRole::kDecode));
  cluster.Join(Describe("prefill-0", WorkerRole::kPrefill));
  cluster.Report("prefill-0", {"decode-0"});
  cluster.Report("decode-0", {}, 0);
  for (int i = 0; i < 20; ++i) cluster.Submit(cluster.Request("abc"));
  cluster.Submit(Embedded("abc"));
  EXPECT_EQ(NumOrders("prefill-0", Order::Kind::kPrefill), 0u);
  EXPECT_EQ(NumOrders("prefill-0", Order::Kind::kEmbedding), 1u);
}

// Vectors that stand say nothing about texts that go elsewhere, however long no text comes.
TEST_F(EmbeddingTest, VectorsThatWaitRefuseNoTextWithAnIdleDecodeWorker) {
  Join("decode-0", WorkerRole::kDecode);
  Join("prefill-0", WorkerRole::kPrefill);
  cluster.Report("prefill-0", {"decode-0"}, 0);
  const auto submit_local = [&] {
    GenerateRequest request = cluster.Request("abc");
    request.path = AskedPath::kLocal;
    return cluster.Submit(std::move(request));
  };
  for (int i = 0; i < 100; ++i) cluster.Submit(Embedded("abc"));
  ASSERT_EQ(cluster.core.num_queued(), 100u);
  for (size_t i = 0; i < QueueRate::kWindow + 4; ++i) {
    const RequestUid uid = submit_local();
    ASSERT_EQ(NumOrders("decode-0", Order::Kind::kDecode), i + 1);
    cluster.Text("decode-0", uid, 0, "ab", FinishReason::kLength);
    cluster.now_us += 100'000;
    cluster.Report("prefill-0", {"decode-0"}, 0);
    cluster.Report("decode-0");
  }
  for (int i = 0; i < 50; ++i) {  // 5 s without a text
    cluster.now_us += 100'000;
    cluster.Report("prefill-0", {"decode-0"}, 0);
    cluster.Report("decode-0");
    cluster.core.Tick(cluster.now_us);
  }
  ASSERT_EQ(cluster.core.num_queued(), 100u);
  submit_local();
  EXPECT_FALSE(cluster.sink->error.has_value()) << cluster.sink->error->Message();
  EXPECT_EQ(NumOrders("decode-0", Order::Kind::kDecode), QueueRate::kWindow + 5);
  EXPECT_EQ(cluster.metrics.predicted_wait_seconds->value(), 0.0) << "no rate of vectors is known";
}

TEST_F(EmbeddingTest, TheForecastOfVectorsIsOfTheirOwnRate) {
  Join("decode-0", WorkerRole::kDecode);
  Join("prefill-0", WorkerRole::kPrefill);
  std::vector<RequestUid> uids;
  const auto submit = [&] { uids.push_back(cluster.Submit(Embedded(std::string(500, 'x')))); };
  for (int i = 0; i < 21; ++i) submit();
  for (size_t i = 0; i < 20; ++i) {  // 33 of 64 blocks each: another one is taken each 0.2 s
    submit();
    cluster.now_us += 200'000;
    cluster.Report("prefill-0", {"decode-0"});
    cluster.Report("decode-0");
    ASSERT_EQ(NumOrders("prefill-0", Order::Kind::kEmbedding), i + 1u);
    cluster.Tokens("prefill-0", {VectorOf(uids[i])});
    cluster.core.Tick(cluster.now_us);
  }
  const auto num_waiting = static_cast<double>(cluster.core.num_queued());
  EXPECT_EQ(num_waiting, 20.0);
  EXPECT_NEAR(cluster.metrics.predicted_wait_seconds->value(), num_waiting * 0.2, 0.1);
  cluster.Submit(cluster.Request("abc"));
  EXPECT_FALSE(cluster.sink->error.has_value());
}

TEST_F(AggregatedEmbeddingTest, AVectorDoesNotPassATextThatWaits) {
  Join("decode-0", WorkerRole::kDecode);
  cluster.Report("decode-0", {}, 3);
  cluster.Submit(cluster.Request(std::string(100, 'x')));
  cluster.Submit(Embedded("abc"));
  EXPECT_EQ(NumOrders("decode-0", Order::Kind::kEmbedding), 0u);
  cluster.Report("decode-0");
  cluster.core.Tick(cluster.now_us);
  EXPECT_EQ(NumOrders("decode-0", Order::Kind::kDecode), 1u);
  EXPECT_EQ(NumOrders("decode-0", Order::Kind::kEmbedding), 1u);
}

TEST_F(EmbeddingTest, PrefillWorkersAloneSuffice) {
  WorkerDescription worker = Describe("prefill-0", WorkerRole::kPrefill);
  auto model = std::make_shared<ModelInfo>(*worker.model);
  model->embedding_size = worker.embedding_size;
  worker.model = model;
  cluster.Join(std::move(worker));
  ASSERT_EQ(cluster.core.Models().size(), 1u);
  EXPECT_EQ(cluster.core.Models()[0]->max_context, kTestContext);
  const RequestUid uid = cluster.Submit(Embedded("abc"));
  ASSERT_EQ(NumOrders("prefill-0", Order::Kind::kEmbedding), 1u);
  cluster.Tokens("prefill-0", {VectorOf(uid)});
  EXPECT_EQ(cluster.sink->embedding, kVector);
  cluster.Submit(cluster.Request("abc"));
  ASSERT_TRUE(cluster.sink->error.has_value()) << "nobody decodes";
  EXPECT_EQ(cluster.sink->error->code, ErrorCode::kNoWorkers);
}

TEST_F(EmbeddingTest, ADecodeWorkerGivesItWhileThePrefillWorkerDrains) {
  Join("decode-0", WorkerRole::kDecode);
  Join("prefill-0", WorkerRole::kPrefill);
  cluster.Report("prefill-0", {}, 0);
  cluster.Submit(Embedded("abc"));
  EXPECT_EQ(NumOrders("decode-0", Order::Kind::kEmbedding), 0u) << "it waits for prefill-0";
  cluster.Report("prefill-0", {}, std::nullopt, /*draining=*/true);
  cluster.core.Tick(cluster.now_us);
  EXPECT_EQ(NumOrders("decode-0", Order::Kind::kEmbedding), 1u) << "nor is it held by the drain";
  const RequestUid uid = cluster.Submit(Embedded("abc"));
  EXPECT_FALSE(cluster.sink->error.has_value());
  ASSERT_EQ(NumOrders("decode-0", Order::Kind::kEmbedding), 2u);
  EXPECT_EQ(NumOrders("prefill-0", Order::Kind::kEmbedding), 0u);
  cluster.Tokens("decode-0", {VectorOf(uid)});
  EXPECT_EQ(cluster.sink->embedding, kVector);
  Join("prefill-1", WorkerRole::kPrefill);
  cluster.Submit(Embedded("abc"));
  EXPECT_EQ(NumOrders("prefill-1", Order::Kind::kEmbedding), 1u);
}

TEST_F(EmbeddingTest, NobodyGivesItWhileTheOnlyWorkerThatCouldDrains) {
  Join("decode-0", WorkerRole::kDecode, /*gives=*/false);
  Join("prefill-0", WorkerRole::kPrefill);
  cluster.Report("prefill-0", {}, std::nullopt, /*draining=*/true);
  cluster.Submit(Embedded("abc"));
  ASSERT_TRUE(cluster.sink->error.has_value());
  EXPECT_EQ(cluster.sink->error->code, ErrorCode::kNoWorkers) << "the next one may come";
}

TEST_F(EmbeddingTest, WhatIsNoVectorOfTheModelFailsTheRequest) {
  Join("decode-0", WorkerRole::kDecode);
  Join("prefill-0", WorkerRole::kPrefill);
  const RequestUid uid = cluster.Submit(Embedded("abc"));
  WorkerToken token = VectorOf(uid);
  token.embedding.pop_back();
  cluster.Tokens("prefill-0", {token});
  ASSERT_TRUE(cluster.sink->error.has_value());
  EXPECT_EQ(cluster.sink->error->code, ErrorCode::kWorkerFailed);
}

}  // namespace
}  // namespace baton::router
