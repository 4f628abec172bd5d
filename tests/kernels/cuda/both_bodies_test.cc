// One program with both bodies of every kernel: the GPU's is linked and refuses politely where
// there is no driver, the runner's computes.
#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/kernel_table.h"
#include "kernels/simt/arena.h"

namespace baton::kernels::cuda {
namespace {

using testing::HasSubstr;

TEST(BothBodies, AreTwoTablesOfTheSameKernels) {
  const KernelTable& gpu_table = gpu::Kernels();
  const KernelTable& runner_table = runner::Kernels();
  EXPECT_NE(gpu_table.gemm_bf16, runner_table.gemm_bf16);
  ASSERT_EQ(gpu_table.num_infos, runner_table.num_infos);
  for (uint32_t i = 0; i < gpu_table.num_infos; ++i) {
    EXPECT_STREQ(gpu_table.infos[i]->name, runner_table.infos[i]->name);
    EXPECT_EQ(gpu_table.infos[i]->shared_bytes, runner_table.infos[i]->shared_bytes);
  }
}

TEST(BothBodies, TheGpuBodyChecksShapesBeforeItLaunches) {
  EXPECT_EQ(gpu::Kernels().rms_norm({.dim = 12}, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(BothBodies, WithoutADriverTheGpuLaunchFailsAndTheRunnerGoesOn) {
  if (std::filesystem::exists("/dev/nvidiactl")) GTEST_SKIP() << "there is a driver here";
  const absl::Status refused = gpu::Kernels().embed(
      {.table = nullptr, .ids = nullptr, .out = nullptr, .num_rows = 1, .num_ids = 1, .dim = 8},
      nullptr);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("kernel Embed: cudaError"));

  simt::SimBuffer table(16, "table");
  simt::SimBuffer ids(4, "ids");
  simt::SimBuffer out(16, "out");
  ids.as<uint32_t>()[0] = 0;
  table.as<uint16_t>()[7] = 0x1234;
  ASSERT_TRUE(runner::Kernels()
                  .embed({table.as<Bf16>(), ids.as<uint32_t>(), out.as<Bf16>(), 1, 1, 8}, nullptr)
                  .ok());
  EXPECT_EQ(out.as<uint16_t>()[7], 0x1234);
}

}  // namespace
}  // namespace baton::kernels::cuda
