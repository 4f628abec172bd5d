// The runner: correct kernels give the right answer in every order with no false report; planted
// faults are named, with the place, and nothing hangs.
#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/simt/arena.h"
#include "kernels/simt/run_options.h"
#include "tests/kernels/simt/faulty_kernels.h"
#include "tests/kernels/simt/ring_kernels.h"
#include "tests/kernels/simt/word_buffers.h"

namespace baton::kernels::simt_test {
namespace {

using simt::AllOrders;
using simt::RunOptions;
using simt::ScopedRunOptions;
using simt::SimBuffer;
using testing::AllOf;
using testing::HasSubstr;

// Every order of three shuffles; the scope names the one that failed.
class EveryOrder : public testing::TestWithParam<RunOptions> {
 protected:
  ScopedRunOptions options_{GetParam()};
};

TEST_P(EveryOrder, BlockReduceAddsUpEachCta) {
  constexpr uint32_t kCtas = 7;
  Words words(kCtas * kReduceThreads, kCtas);
  ASSERT_TRUE(BlockReduce(words.Params(0), kCtas).ok()) << BlockReduce(words.Params(0), kCtas);
  for (uint32_t i = 0; i < kCtas; ++i) {
    EXPECT_EQ(words.Out(i), SumOf(i * kReduceThreads, (i + 1) * kReduceThreads));
  }
}

TEST_P(EveryOrder, AsyncPipelineTriplesEveryWord) {
  for (const uint32_t count : {0u, 1u, 3u, 255u, 256u, 257u, 1021u, 2048u}) {
    Words words(count, count);
    const absl::Status status = AsyncPipeline(words.Params(count));
    ASSERT_TRUE(status.ok()) << status;
    for (uint32_t i = 0; i < count; ++i) ASSERT_EQ(words.Out(i), 3 * (7 * i + 1)) << i;
  }
}

TEST_P(EveryOrder, BulkRingHandsEveryTileOver) {
  for (const uint32_t tiles : {0u, 1u, 2u, 3u, 7u}) {
    Words words(64 * tiles, 64 * tiles);
    const absl::Status status = BulkRing(words.Params(tiles));
    ASSERT_TRUE(status.ok()) << status;
    for (uint32_t i = 0; i < 64 * tiles; ++i) ASSERT_EQ(words.Out(i), 7 * i + 2) << i;
  }
}

TEST_P(EveryOrder, LastCtaSeesAllPartialSums) {
  for (const uint32_t count : {0u, 1u, 31u, 160u, 1009u}) {
    Words words(count, 1);
    for (int again = 0; again < 2; ++again) {
      const absl::Status status = LastCtaCombine(words.Params(count));
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_EQ(words.Out(0), SumOf(0, count));
    }
  }
}

TEST_P(EveryOrder, GridBarrierMeetsWithAllCtasResident) {
  for (const uint32_t ctas : {1u, 2u, 9u}) {
    Words words(ctas, ctas);
    const absl::Status status = GridBarrier(words.Params(0), ctas);
    ASSERT_TRUE(status.ok()) << status;
    for (uint32_t i = 0; i < ctas; ++i) EXPECT_EQ(words.Out(i), SumOf(0, ctas));
  }
}

TEST_P(EveryOrder, SyncWarpOrdersSharedMemory) {
  Words words(32, 32);
  const absl::Status status = WarpReverse(words.Params(0));
  ASSERT_TRUE(status.ok()) << status;
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(words.Out(i), 7 * (31 - i) + 1);
}

TEST_P(EveryOrder, MatricesAreLoadedByRowsAndByColumns) {
  // Element e of the 256 holds e; matrix m has rows of eight from 64 m on.
  Words words(128, 128);
  for (uint32_t i = 0; i < 128; ++i) words.in.as<uint32_t>()[i] = 2 * i | (2 * i + 1) << 16;
  for (const bool transposed : {false, true}) {
    const absl::Status status = WarpLoadMatrices(words.Params(0), transposed);
    ASSERT_TRUE(status.ok()) << status;
    for (uint32_t i = 0; i < 128; ++i) {
      const uint32_t lane = i / 4;
      const uint32_t first = 64 * (i % 4) + (transposed ? 16 * (lane % 4) + lane / 4
                                                        : 8 * (lane / 4) + 2 * (lane % 4));
      const uint32_t second = first + (transposed ? 8 : 1);
      ASSERT_EQ(words.Out(i), first | second << 16) << i << (transposed ? " transposed" : "");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, EveryOrder, testing::ValuesIn(AllOrders(3)));

// The message of a fault, or "OK".
std::string FaultOf(Fault fault, uint32_t bytes = 1024) {
  SimBuffer in(bytes, "in");
  SimBuffer out(bytes, "out");
  std::memset(in.data(), 0, bytes);
  std::memset(out.data(), 0, bytes);
  return std::string(
      RunFaulty(fault, {in.as<unsigned char>(), out.as<unsigned char>(), bytes}).ToString());
}

// A fault and what its report must contain.
struct Case {
  Fault fault;
  std::vector<std::string> words;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.words.front(); }

class PlantedFault : public testing::TestWithParam<Case> {};

TEST_P(PlantedFault, IsNamedInEveryOrder) {
  for (const RunOptions& options : AllOrders(2)) {
    ScopedRunOptions scope(options);
    const std::string report = FaultOf(GetParam().fault);
    for (const std::string& word : GetParam().words) {
      EXPECT_THAT(report, HasSubstr(word)) << Describe(options);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Deadlocks, PlantedFault,
    testing::Values(Case{Fault::kBarrierMissedByWarp,
                         {"deadlock: kernel Faulty",
                          "threads 0..31 wait in sync_block, faulty_kernels.cu:",
                          "threads 32..63 have returned"}},
                    Case{Fault::kShuffleWithoutLane,
                         {"deadlock:", "wait in a shuffle of lanes 0xffffffff, faulty_kernels.cu:",
                          "threads 7..7 have returned"}},
                    Case{Fault::kSpinForever, {"deadlock:", "spin, faulty_kernels.cu:"}},
                    Case{Fault::kLoopForever, {"deadlock:", "no end after", "faulty_kernels.cu:"}},
                    Case{Fault::kMbarrierNeverFull,
                         {"deadlock:", "threads 0..63 wait in mbar_wait, faulty_kernels.cu:"}}));

INSTANTIATE_TEST_SUITE_P(
    Misuse, PlantedFault,
    testing::Values(Case{Fault::kBarriersAtTwoPlaces, {"misuse:", "waits at another sync_block"}},
                    Case{Fault::kTwoWarpOps, {"misuse:", "meets lane", "faulty_kernels.cu:"}},
                    Case{Fault::kTooManyArrivals, {"misuse:", "more than the 1 arrivals"}},
                    Case{Fault::kSharedTooSmall, {"misuse:", "16 were asked for"}},
                    Case{Fault::kCopyNotWaited, {"misuse:", "without waiting for this copy"}},
                    Case{Fault::kCopyMisaligned, {"misuse:", "aligned to 16 bytes"}},
                    Case{Fault::kBulkWithoutFence, {"misuse:", "mbar_fence_init was not called"}}));

INSTANTIATE_TEST_SUITE_P(
    Bounds, PlantedFault,
    testing::Values(
        Case{Fault::kReadPastEnd,
             {"bounds:", "faulty_kernels.cu:", "reads 1 bytes at 0 bytes behind the end of 'in'"}},
        Case{Fault::kWritePastEnd,
             {"bounds:", "writes 1 bytes at 0 bytes behind the end of 'out' (1024 bytes)"}},
        Case{Fault::kReadBeforeBegin, {"bounds:", "reads 1 bytes at 1 bytes before 'in'"}},
        Case{Fault::kCopyPastEnd, {"bounds:", "reads 16 bytes at 0 bytes behind the end of 'in'"}},
        Case{Fault::kHostMemory, {"bounds:", "writes 4 bytes of the host's memory"}},
        Case{Fault::kNullPointer, {"bounds:", "writes 4 bytes of the host's memory, at 0x400"}},
        Case{Fault::kStackOverflow, {"bounds:", "overflows the stack"}},
        Case{Fault::kSharedPastEnd, {"bounds:", "behind the end of 'shared memory'"}}));

INSTANTIATE_TEST_SUITE_P(
    Races, PlantedFault,
    testing::Values(Case{Fault::kRaceShared, {"race:", "'shared memory'", "faulty_kernels.cu:"}},
                    Case{Fault::kRaceSharedRead, {"race:", "'shared memory'"}},
                    Case{Fault::kRaceBetweenCtas, {"race:", "'out'", "of cta 0", "of cta 1"}},
                    Case{Fault::kRaceByte, {"race:", "'shared memory'"}},
                    Case{Fault::kRaceHalf, {"race:", "'shared memory'"}},
                    Case{Fault::kRaceDouble, {"race:", "'shared memory'"}},
                    Case{Fault::kRaceVector, {"race:", "'shared memory'"}},
                    Case{Fault::kRaceStruct, {"race:", "'shared memory'"}},
                    Case{Fault::kRaceWithCopy, {"race:", "an asynchronous copy by thread"}},
                    Case{Fault::kRaceCopySource,
                         {"race:", "byte 3 of 'in'", "the read of an asynchronous copy"}},
                    Case{Fault::kArriveBeforeReads, {"race:", "'shared memory'"}},
                    Case{Fault::kShuffleOrdersNothing, {"race:", "'shared memory'"}},
                    Case{Fault::kRelaxedFlag,
                         {"race:", "byte 4 of 'out'", "write of thread 0 of cta 0"}}));

TEST(Runner, BulkCopyUnderWayAtTheEndIsAFault) {
  RunOptions options;
  options.landing = simt::Landing::kLatest;
  ScopedRunOptions scope(options);
  EXPECT_THAT(FaultOf(Fault::kBulkAtExit), HasSubstr("ended while the bulk copy of"));
}

TEST(Runner, BuffersEndAtTheLastByteForEverySize) {
  for (const uint32_t bytes : {1u, 15u, 16u, 255u, 256u, 257u, 4095u, 4096u, 4097u}) {
    EXPECT_THAT(FaultOf(Fault::kReadPastEnd, bytes),
                HasSubstr("0 bytes behind the end of 'in' (" + std::to_string(bytes)));
  }
}

TEST(Runner, FreedMemoryIsNotReadable) {
  unsigned char* stale = nullptr;
  {
    SimBuffer freed(64, "gone");
    stale = freed.as<unsigned char>();
  }
  SimBuffer out(64, "out");
  const absl::Status status =
      RunFaulty(Fault::kCopyNotWaited, {stale, out.as<unsigned char>(), 64});
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("bounds:"), HasSubstr("'gone', which was freed")));
}

TEST(Runner, GuardPagesStopWhatTheCompilerDidNotInstrument) {
  SimBuffer buffer(4096, "whole page");
  volatile std::byte* end = buffer.data() + buffer.size();
  EXPECT_DEATH(*end = std::byte{1}, "");
}

TEST(Runner, SharedMemoryStartsAsNan) {
  SimBuffer out(12, "out");
  ASSERT_TRUE(ReadFreshShared(out.as<uint32_t>()).ok());
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(out.as<uint32_t>()[i], 0xFFFFFFFFu);
}

TEST(Runner, LaunchesThatNoGpuTakesAreRefused) {
  EXPECT_EQ(LaunchTooManyThreads().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(LaunchEmptyGrid().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Runner, GoesOnAfterAFault) {
  for (int again = 0; again < 50; ++again) {
    ASSERT_THAT(FaultOf(Fault::kBarrierMissedByWarp), HasSubstr("deadlock:"));
    Words words(32, 32);
    ASSERT_TRUE(WarpReverse(words.Params(0)).ok());
  }
}

}  // namespace
}  // namespace baton::kernels::simt_test
