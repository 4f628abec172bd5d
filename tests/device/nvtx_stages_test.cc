// Stages through NVTX, heard by a tool that the process was started under; each case in a process
// of its own, because NVTX looks for a tool once.
#include "src/device/cuda/nvtx_stages.h"

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::device {
namespace {

TEST(NvtxStagesTest, WithoutAToolNobodyListens) {
  EXPECT_EXIT(
      {
        ::unsetenv("NVTX_INJECTION64_PATH");
        std::exit(NvtxStages() == nullptr ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(NvtxStagesTest, AToolHearsEveryStageByItsName) {
  const std::string record = testing::TempDir() + "/nvtx_stages_test.txt";
  EXPECT_EXIT(
      {
        ::setenv("NVTX_INJECTION64_PATH", BATON_NVTX_INJECTION, 1);
        ::setenv("BATON_NVTX_RECORD", record.c_str(), 1);
        StageSink* const stages = NvtxStages();
        if (stages == nullptr || stages != NvtxStages()) std::exit(1);
        {
          const StageRange step(stages, StepStage::kDecodeStep);
          const StageRange wait(stages, StepStage::kWait);
        }
        for (size_t i = 0; i < kStepStageNames.size(); ++i) {
          const StageRange range(stages, static_cast<StepStage>(i));
        }
        std::exit(0);
      },
      testing::ExitedWithCode(0), "");
  std::vector<std::string> lines;
  std::ifstream file(record);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  std::vector<std::string> expected = {"push baton decode step", "push baton wait", "pop", "pop"};
  for (const char* name : kStepStageNames) {
    expected.push_back(std::string("push baton ") + name);
    expected.push_back("pop");
  }
  EXPECT_EQ(lines, expected);
}

}  // namespace
}  // namespace baton::device
