// Vectors of texts: the bits of a slow reference at workers of every role, alone and beside others,
// in one chunk and in several, with a filled cache and after a preemption; nothing is held after.
#include <vector>

#include "gtest/gtest.h"

#include "src/model/row_pool.h"
#include "tests/engine/hand_rig.h"

namespace baton::engine {

using model::Pooling;
using model::RowPool;
using scheduler::FinishReason;

namespace {

constexpr Pooling kPoolings[] = {Pooling::kLast, Pooling::kMean};

RequestSpec Embedded(uint64_t number, uint32_t num_tokens) {
  RequestSpec spec = ToyRequest(number, num_tokens, 1);
  spec.kind = RequestKind::kEmbed;
  return spec;
}

// The vector that a model without KV gives.
std::vector<float> ExpectedVector(const RequestSpec& spec, Pooling pooling) {
  RowPool pool(pooling, kToyHidden);
  for (uint32_t pos = 0; pos < spec.num_prompt_tokens; ++pos) {
    const std::vector<float> logits =
        ToyModel::LogitsAfter(std::span<const TokenId>(spec.tokens).first(pos + 1));
    pool.Add(pos, std::span(logits).first(kToyHidden));
  }
  return *pool.Vector();
}

void ExpectEmbedded(HandWorker* worker, const RequestSpec& spec, Pooling pooling) {
  const Record record = worker->recorder().Of(spec.key);
  EXPECT_EQ(record.last(), RequestState::kFinished) << record.status;
  EXPECT_EQ(record.num_terminal, 1u);
  EXPECT_EQ(record.embedding, ExpectedVector(spec, pooling)) << spec.tokens.size() << " tokens";
  ASSERT_EQ(record.Tokens(0).size(), 1u);
  EXPECT_EQ(record.Tokens(0)[0].finish, FinishReason::kLength);
}

TEST(EngineEmbedTest, ChunksBatchesRolesAndAFilledCacheChangeNoBit) {
  for (const Pooling pooling : kPoolings) {
    for (const WorkerRole role : {WorkerRole::kPrefill, WorkerRole::kDecode}) {
      for (const uint32_t max_chunk : {4u, 12u, 100u}) {
        HandRig rig;
        HandWorker* worker = rig.Add({.role = role, .max_chunk = max_chunk, .pooling = pooling});
        const RequestSpec first = Embedded(1, 90);
        worker->Start(first);
        ASSERT_TRUE(rig.RunUntilQuiet());
        RequestSpec again = first;  // the cache has its blocks
        again.key = Embedded(2, 90).key;
        std::vector<RequestSpec> specs = {again, Embedded(3, 1), Embedded(4, 2), Embedded(5, 41)};
        for (const RequestSpec& spec : specs) worker->Start(spec);
        ASSERT_TRUE(rig.RunUntilQuiet());
        specs.push_back(first);
        for (const RequestSpec& spec : specs) ExpectEmbedded(worker, spec, pooling);
        const uint32_t num_cached = worker->recorder().Of(again.key).cached_tokens;
        EXPECT_EQ(num_cached > 0, pooling == Pooling::kLast) << "a mean sees all rows";
        EXPECT_TRUE(worker->AllFree()) << "blocks are free at once";
      }
    }
  }
}

TEST(EngineEmbedTest, AnswersBesideThemKeepTheirTokens) {
  for (const Pooling pooling : kPoolings) {
    for (const bool overlaps : {false, true}) {
      HandRig rig;
      HandWorker* worker = rig.Add({.max_chunk = 8, .pooling = pooling});
      HandWorker* other = rig.Add({.overlaps_steps = overlaps});
      const RequestSpec plain = ToyRequest(9, 30, 20);
      other->Start(plain);
      worker->Start(plain);
      ASSERT_TRUE(rig.RunUntilQuiet());
      RequestSpec again = plain;
      again.key = ToyRequest(10, 30, 20).key;
      worker->Start(again);
      const RequestSpec embedded = Embedded(1, 50);
      worker->Start(embedded);
      ASSERT_TRUE(rig.RunUntilQuiet());
      ExpectEmbedded(worker, embedded, pooling);
      EXPECT_EQ(IdsOf(worker->recorder().Of(again.key), 0), ExpectedTokens(again, 0));
      EXPECT_TRUE(worker->recorder().Of(again.key).embedding.empty());
    }
  }
}

TEST(EngineEmbedTest, WhatMakesNoSenseIsRefused) {
  HandRig rig;
  HandWorker* worker = rig.Add({.pooling = Pooling::kRank});
  const RequestSpec spec = Embedded(1, 5);
  worker->Start(spec);
  ASSERT_TRUE(rig.RunUntilQuiet());
  const Record record = worker->recorder().Of(spec.key);
  EXPECT_EQ(record.last(), RequestState::kRejected);
  EXPECT_EQ(record.status.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(record.status.ToString().find("rank"), std::string::npos) << record.status;

  HandWorker* last = rig.Add({});
  RequestSpec two = Embedded(2, 5);
  two.num_choices = 2;
  last->Start(two);
  ASSERT_TRUE(rig.RunUntilQuiet());
  EXPECT_EQ(last->recorder().Of(two.key).status.code(), StatusCode::kInvalidArgument);
}

TEST(EngineEmbedTest, ACancelFreesItsBlocks) {
  HandRig rig;
  HandWorker* worker =
      rig.Add({.role = WorkerRole::kPrefill, .max_chunk = 4, .pooling = Pooling::kMean});
  const RequestSpec spec = Embedded(1, 100);
  worker->Start(spec);
  for (int i = 0; i < 3; ++i) worker->Turn();
  EXPECT_FALSE(worker->AllFree());
  worker->Cancel(spec.key);
  ASSERT_TRUE(rig.RunUntilQuiet());
  EXPECT_EQ(worker->recorder().Of(spec.key).last(), RequestState::kCancelled);
  EXPECT_TRUE(worker->recorder().Of(spec.key).embedding.empty());
  EXPECT_TRUE(worker->AllFree());
}

}  // namespace
}  // namespace baton::engine
