// Requests whose answer follows a grammar: they go to workers that constrain answers as this router
// means it, and what a grammar ends is no fault of a worker.
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/wire/answer_grammar.h"
#include "tests/router/fake_cluster.h"

namespace baton::router {

using wire::AnswerGrammar;
using wire::GrammarKind;
using wire::kAnswerGrammarVersion;

namespace {

constexpr WorkerRole kDecode = WorkerRole::kDecode;
// Nothing waits for a prefill worker.
RouterCoreConfig Alone() { return {.mode = ServeMode::kAggregated}; }

WorkerDescription Describe(const std::string& id, WorkerRole role, uint32_t grammar_version) {
  WorkerDescription worker = FakeCluster::Describe(id, role);
  worker.grammar_version = grammar_version;
  return worker;
}

GenerateRequest Constrained(FakeCluster& cluster) {
  GenerateRequest request = cluster.Request("prompt");
  request.sampling.grammar =
      std::make_shared<AnswerGrammar>(AnswerGrammar{.kind = GrammarKind::kRegex, .text = "a+"});
  request.fields.grammar = "guided_regex";
  return request;
}

size_t NumDecodes(FakeCluster& cluster, const std::string& id) {
  return cluster.Log(id).Of(Order::Kind::kDecode).size();
}

TEST(GrammarPlacementTest, ItGoesToAWorkerThatConstrains) {
  for (const uint32_t other : {0u, kAnswerGrammarVersion + 1}) {
    FakeCluster cluster(Alone());
    cluster.Join(Describe("decode-0", kDecode, other));
    cluster.Join(Describe("decode-1", kDecode, kAnswerGrammarVersion));
    for (int i = 0; i < 3; ++i) cluster.Submit(Constrained(cluster));
    EXPECT_EQ(NumDecodes(cluster, "decode-0"), 0u);
    EXPECT_EQ(NumDecodes(cluster, "decode-1"), 3u);
  }
}

TEST(GrammarPlacementTest, APrefillWorkerThatDoesNotConstrainIsPassedBy) {
  FakeCluster cluster;
  cluster.Join(Describe("decode-0", kDecode, kAnswerGrammarVersion));
  cluster.Join(Describe("prefill-0", WorkerRole::kPrefill, 0));
  cluster.Report("prefill-0", {"decode-0"});
  cluster.Submit(Constrained(cluster));
  cluster.Advance(5'000'000, {"decode-0", "prefill-0"});
  EXPECT_TRUE(cluster.Log("prefill-0").Of(Order::Kind::kPrefill).empty());
  EXPECT_EQ(NumDecodes(cluster, "decode-0"), 1u);
}

TEST(GrammarPlacementTest, WithoutAnyItIsRefusedByItsField) {
  FakeCluster cluster(Alone());
  cluster.Join(Describe("decode-0", kDecode, 0));
  cluster.Submit(Constrained(cluster));
  ASSERT_TRUE(cluster.sink->error.has_value());
  EXPECT_EQ(cluster.sink->error->code, ErrorCode::kUnsupported);
  EXPECT_EQ(cluster.sink->error->param, "guided_regex");
  cluster.Submit(cluster.Request("free"));
  EXPECT_EQ(NumDecodes(cluster, "decode-0"), 1u) << "others are served";
}

TEST(GrammarPlacementTest, AGrammarThatFailsEndsTheRequestByName) {
  FakeCluster cluster(Alone());
  cluster.Join(Describe("decode-0", kDecode, kAnswerGrammarVersion));
  const RequestUid uid = cluster.Submit(Constrained(cluster));
  WorkerRequestStatus status;
  status.uid = uid;
  status.attempt = 1;
  status.state = WorkerRequestState::kFailed;
  status.code = StatusCode::kFailedPrecondition;
  status.failed_part = FailedPart::kComputation;
  status.message = "no token can follow\n";
  cluster.core.OnSessionStatus(cluster.Session("decode-0"), status, cluster.now_us);
  ASSERT_TRUE(cluster.sink->error.has_value());
  EXPECT_EQ(cluster.sink->error->code, ErrorCode::kGrammarFailed);
  EXPECT_EQ(cluster.sink->error->param, "guided_regex");
  EXPECT_THAT(cluster.sink->error->Message(),
              ::testing::StartsWith("The answer cannot go on in the form that 'guided_regex' asks "
                                    "for: no token can follow"));
  EXPECT_EQ(NumDecodes(cluster, "decode-0"), 1u) << "no other attempt is made";
}

}  // namespace
}  // namespace baton::router
