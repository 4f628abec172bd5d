// Mutation of the kernels of ring_kernels.cu: with any one primitive broken, some order notices.
// So the orders, the landings and the race detector together see what one of them would miss.
#include "tests/kernels/simt/mutation.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/kernels/simt/ring_kernels.h"
#include "tests/kernels/simt/word_buffers.h"

namespace baton::kernels::simt_test {
namespace {

using simt::Mutation;
using testing::IsEmpty;

bool ReducePasses() {
  Words words(3 * kReduceThreads, 3);
  if (!BlockReduce(words.Params(0), 3).ok()) return false;
  for (uint32_t i = 0; i < 3; ++i) {
    if (words.Out(i) != SumOf(i * kReduceThreads, (i + 1) * kReduceThreads)) return false;
  }
  return true;
}

bool PipelinePasses() {
  for (const uint32_t count : {1u, 257u, 1021u}) {
    Words words(count, count);
    if (!AsyncPipeline(words.Params(count)).ok()) return false;
    for (uint32_t i = 0; i < count; ++i) {
      if (words.Out(i) != 3 * InputWord(i)) return false;
    }
  }
  return true;
}

bool RingPasses() {
  constexpr uint32_t kTiles = 5;
  Words words(64 * kTiles, 64 * kTiles);
  if (!BulkRing(words.Params(kTiles)).ok()) return false;
  for (uint32_t i = 0; i < 64 * kTiles; ++i) {
    if (words.Out(i) != InputWord(i) + 1) return false;
  }
  return true;
}

bool CombinePasses() {
  Words words(1009, 1);
  for (int again = 0; again < 2; ++again) {
    if (!LastCtaCombine(words.Params(1009)).ok() || words.Out(0) != SumOf(0, 1009)) return false;
  }
  return true;
}

bool GridPasses() {
  Words words(4, 4);
  if (!GridBarrier(words.Params(0), 4).ok()) return false;
  for (uint32_t i = 0; i < 4; ++i) {
    if (words.Out(i) != SumOf(0, 4)) return false;
  }
  return true;
}

bool ReversePasses() {
  Words words(32, 32);
  if (!WarpReverse(words.Params(0)).ok()) return false;
  for (uint32_t i = 0; i < 32; ++i) {
    if (words.Out(i) != InputWord(31 - i)) return false;
  }
  return true;
}

void ExpectAllNoticed(const Suite& suite, const std::vector<Equivalent>& equivalents = {}) {
  const MutationResult result = RunMutants(suite, equivalents);
  EXPECT_GT(result.num_mutants, 0u);
  EXPECT_THAT(result.survivors, IsEmpty());
  EXPECT_THAT(result.stale, IsEmpty());
}

TEST(Mutants, OfBlockReduceAreNoticed) { ExpectAllNoticed(ReducePasses); }

TEST(Mutants, OfAsyncPipelineAreNoticed) { ExpectAllNoticed(PipelinePasses); }

TEST(Mutants, OfBulkRingAreNoticed) { ExpectAllNoticed(RingPasses); }

TEST(Mutants, OfLastCtaCombineAreNoticed) { ExpectAllNoticed(CombinePasses); }

TEST(Mutants, OfGridBarrierAreNoticed) { ExpectAllNoticed(GridPasses); }

TEST(Mutants, OfWarpReverseAreNoticed) { ExpectAllNoticed(ReversePasses); }

// The harness itself: a suite that looks at nothing notices only what the runner reports.
TEST(Mutants, ASuiteThatLooksAtNothingLetsThemLive) {
  const MutationResult result = RunMutants(
      [] {
        Words words(32, 32);
        return LastCtaCombine(words.Params(32)).ok();
      },
      {});
  EXPECT_FALSE(result.survivors.empty());
}

TEST(Mutants, AStaleExcuseIsAnError) {
  const MutationResult result =
      RunMutants(ReversePasses, {{"sync_warp();", Mutation::kDropSyncWarp, "wrong: it is noticed"},
                                 {"no such line", Mutation::kDropSyncWarp, "wrong: never met"}});
  EXPECT_EQ(result.stale.size(), 2u);
}

}  // namespace
}  // namespace baton::kernels::simt_test
