// How far a prompt is: told by the worker that computes it, and only where it is asked for.

#include "gtest/gtest.h"

#include "tests/engine/hand_rig.h"

namespace baton::engine {

namespace {

RequestSpec Watched(uint64_t number, uint32_t num_tokens) {
  RequestSpec spec = ToyRequest(number, num_tokens, 3);
  spec.reports_progress = true;
  return spec;
}

// It goes forwards, and its last word is the whole prompt.
void ExpectForwards(const Record& record, uint32_t num_tokens) {
  ASSERT_FALSE(record.progress.empty());
  uint32_t before = 0;
  for (const PrefillProgress& progress : record.progress) {
    EXPECT_GT(progress.num_tokens, before);
    EXPECT_LE(progress.num_cached, progress.num_tokens);
    EXPECT_GE(progress.elapsed_us, 0);
    before = progress.num_tokens;
  }
  EXPECT_EQ(before, num_tokens);
}

TEST(EngineProgressTest, APromptOfSeveralChunksIsToldOfAtItsBeginningAndItsEnd) {
  HandRig rig;
  HandWorker* worker = rig.Add({.max_chunk = 8});
  const RequestSpec watched = Watched(1, 90);
  const RequestSpec plain = ToyRequest(2, 90, 3);
  worker->Start(watched);
  worker->Start(plain);
  ASSERT_TRUE(rig.RunUntilQuiet());
  const Record record = worker->recorder().Of(watched.key);
  ExpectForwards(record, 90);
  EXPECT_GE(record.progress.size(), 2u);
  EXPECT_LT(record.progress.front().num_tokens, 90u);
  EXPECT_EQ(IdsOf(record, 0), ExpectedTokens(watched, 0)) << "no token is lost to it";
  EXPECT_TRUE(worker->recorder().Of(plain.key).progress.empty());
}

TEST(EngineProgressTest, WhatTheCacheHasIsTold) {
  HandRig rig;
  HandWorker* worker = rig.Add({.max_chunk = 8});
  const RequestSpec first = Watched(1, 90);
  worker->Start(first);
  ASSERT_TRUE(rig.RunUntilQuiet());
  RequestSpec again = first;
  again.key = Watched(2, 90).key;
  worker->Start(again);
  ASSERT_TRUE(rig.RunUntilQuiet());
  const Record record = worker->recorder().Of(again.key);
  ExpectForwards(record, 90);
  EXPECT_GT(record.cached_tokens, 0u);
  EXPECT_EQ(record.progress.front().num_cached, record.cached_tokens);
}

TEST(EngineProgressTest, ThePrefillWorkerOfAHandOffTells) {
  HandRig rig;
  HandWorker* p = rig.Add({.role = WorkerRole::kPrefill, .max_chunk = 8});
  HandWorker* d = rig.Add({.role = WorkerRole::kDecode});
  const RequestSpec spec = Watched(1, 70);
  d->Start(ForPeer(spec, RequestKind::kDest, *p));
  p->Start(ForPeer(spec, RequestKind::kSource, *d));
  ASSERT_TRUE(rig.RunUntilQuiet());
  ExpectForwards(p->recorder().Of(spec.key), 70);
  EXPECT_TRUE(d->recorder().Of(spec.key).progress.empty());
}

}  // namespace
}  // namespace baton::engine
