// Launches that may begin while the kernel before them runs: what they may do before they wait.
#include <cstdint>
#include <cstring>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/simt/arena.h"
#include "kernels/simt/mutant.h"
#include "kernels/simt/run_options.h"
#include "kernels/simt/simt_device.h"
#include "tests/kernels/simt/overlap_kernels.h"

namespace baton::kernels::simt_test {

using device::DeviceBuffer;

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint32_t kCtas = 3;
constexpr uint32_t kWords = kCtas * kOverlapThreads;

// Constants that count up, and sums of zero.
struct OverlapBuffers {
  OverlapBuffers() : constants(4 * kWords, "constants"), sums(4 * kWords, "sums") {
    for (uint32_t i = 0; i < kWords; ++i) constants.as<uint32_t>()[i] = i + 1;
    std::memset(sums.data(), 0, sums.size());
  }
  absl::Status Run(Early early, uint32_t times) {
    return runner::AddAgainAndAgain({constants.as<uint32_t>(), sums.as<uint32_t>(), early}, kCtas,
                                    times, nullptr);
  }

  simt::SimBuffer constants;
  simt::SimBuffer sums;
};

TEST(Overlap, ReadsConstantsEarlyAndTheRestAfterTheWait) {
  for (const simt::RunOptions& options : simt::AllOrders(2)) {
    const simt::ScopedRunOptions scoped(options);
    OverlapBuffers buffers;
    ASSERT_TRUE(buffers.Run(Early::kCopiesConstants, 4).ok()) << Describe(options);
    for (uint32_t i = 0; i < kWords; ++i) ASSERT_EQ(buffers.sums.as<uint32_t>()[i], 4 * (i + 1));
  }
}

TEST(Overlap, WhatKernelsWriteIsNotTouchedBeforeTheWait) {
  for (const Early early : {Early::kReads, Early::kCopies}) {
    OverlapBuffers buffers;
    const absl::Status status = buffers.Run(early, 2);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("overlap:"), HasSubstr("reads"), HasSubstr("'sums'"),
                      HasSubstr("before wait_for_previous")));
  }
  OverlapBuffers buffers;
  EXPECT_THAT(std::string(buffers.Run(Early::kWrites, 1).message()),
              AllOf(HasSubstr("overlap:"), HasSubstr("writes"), HasSubstr("'sums'")));
}

// A prefetch reads nothing.
TEST(Overlap, APrefetchMayComeBeforeTheWaitButNotOutsideOfBuffers) {
  OverlapBuffers buffers;
  ASSERT_TRUE(buffers.Run(Early::kPrefetches, 2).ok());
  EXPECT_EQ(buffers.sums.as<uint32_t>()[5], 2 * 6u);
  EXPECT_THAT(std::string(buffers.Run(Early::kPrefetchesOutside, 1).message()),
              AllOf(HasSubstr("misuse:"), HasSubstr("no buffer"), HasSubstr("overlap_kernels.cu")));
}

// After a wait of the host, the work that it waited for is no longer under way.
TEST(Overlap, AWaitOfTheHostSettlesWhatKernelsWrote) {
  simt::SimtDevice device{simt::RunOptions{}};
  device.MakeCurrent();
  const DeviceBuffer constants = *DeviceBuffer::Create(&device, 4 * kOverlapThreads, "constants");
  const DeviceBuffer sums = *DeviceBuffer::Create(&device, 4 * kOverlapThreads, "sums");
  const auto run = [&](Early early) {
    return runner::AddAgainAndAgain({constants.as<uint32_t>(), sums.as<uint32_t>(), early}, 1, 1,
                                    device.stream());
  };
  ASSERT_TRUE(run(Early::kCopiesConstants).ok());
  EXPECT_FALSE(run(Early::kReads).ok());
  ASSERT_TRUE(device.Wait().ok());
  EXPECT_TRUE(run(Early::kReads).ok());
}

TEST(Overlap, EveryThreadWaits) {
  OverlapBuffers buffers;
  EXPECT_THAT(std::string(buffers.Run(Early::kReturns, 1).message()),
              AllOf(HasSubstr("overlap:"), HasSubstr("thread 0"),
                    HasSubstr("returned without wait_for_previous")));
}

TEST(Overlap, AWaitThatIsLeftOutIsNoticed) {
  simt::MutantRecorder recorder;
  OverlapBuffers buffers;
  ASSERT_TRUE(buffers.Run(Early::kCopiesConstants, 1).ok());
  uint32_t num_waits = 0;
  for (const simt::Mutant& mutant : recorder.Found()) {
    if (mutant.mutation != simt::Mutation::kSkipWait) continue;
    ++num_waits;
    const simt::ScopedMutant scoped(mutant);
    EXPECT_FALSE(buffers.Run(Early::kCopiesConstants, 1).ok());
  }
  EXPECT_EQ(num_waits, 1u);
}

}  // namespace
}  // namespace baton::kernels::simt_test
