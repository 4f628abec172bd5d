// A GPU divided between two workers, by a driver that stands for the real one: what is asked of it,
// in which order it is given back, and what a driver or a GPU that cannot do it leads to.
#include "src/device/cuda/green_contexts.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/device/fake_green_driver.h"

namespace baton::device {
namespace {

using fake_green::Driver;
using fake_green::FakeGpu;
using fake_green::gpu;

using ::testing::HasSubstr;

class GreenContextsTest : public testing::Test {
 protected:
  GreenContextsTest() { gpu = &gpu_; }
  ~GreenContextsTest() override {
    EXPECT_TRUE(gpu_.contexts.empty()) << "nothing is left behind";
    EXPECT_TRUE(gpu_.streams.empty());
    gpu = nullptr;
  }

  static void ExpectRefusal(const GreenTable& driver, const std::string& words) {
    const auto split = SmSplit::Create(driver, 0);
    EXPECT_EQ(split.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(split.status().message()), HasSubstr(words));
  }

  FakeGpu gpu_;
};

TEST_F(GreenContextsTest, EachPartHasMultiprocessorsAndStreamsOfItsOwn) {
  {
    auto split = SmSplit::Create(Driver(), 0);
    ASSERT_TRUE(split.ok()) << split.status();
    EXPECT_EQ(split->num_sms, 132u);
    EXPECT_EQ(split->most->num_sms(), 100u);
    EXPECT_EQ(split->quarter->num_sms(), 32u);
    EXPECT_EQ(gpu_.parts, (std::vector<unsigned>{100, 32}));
    const auto most = split->most->CreateStream();
    const auto quarter = split->quarter->CreateStream();
    ASSERT_TRUE(most.ok() && quarter.ok());
    EXPECT_EQ(gpu_.streams_of, (std::vector<size_t>{1, 2}));
    EXPECT_LT(gpu_.priorities[1], gpu_.priorities[0]) << "smaller is more urgent";
    split->most->DestroyStream(*most);
    split->quarter->DestroyStream(*quarter);
  }
  EXPECT_EQ(gpu_.order, (std::vector<std::string>{"stream", "stream", "context", "context"}));
}

TEST_F(GreenContextsTest, AQuarterIsWholeUnitsAndLeavesTheOtherEnough) {
  EXPECT_EQ(QuarterOf(132, 8, 8), 32u);
  EXPECT_EQ(QuarterOf(114, 8, 8), 24u);  // an H100 of PCIe
  EXPECT_EQ(QuarterOf(108, 4, 2), 26u);
  EXPECT_EQ(QuarterOf(20, 8, 8), 8u);
  EXPECT_EQ(QuarterOf(16, 8, 8), 8u);
  EXPECT_EQ(QuarterOf(15, 8, 8), 0u);
  EXPECT_EQ(QuarterOf(0, 8, 8), 0u);
  EXPECT_EQ(QuarterOf(8, 0, 0), 2u);
}

TEST_F(GreenContextsTest, AFunctionThatAnOlderDriverLacksIsNamed) {
  GreenTable driver = Driver();
  driver.cuGreenCtxStreamCreate = nullptr;
  ExpectRefusal(driver, "the CUDA driver has no cuGreenCtxStreamCreate");
  ExpectRefusal(GreenTable{}, "the CUDA driver has no ");
}

TEST_F(GreenContextsTest, AGpuThatCannotBeDividedIsNoFault) {
  gpu_.num_sms = 14;
  ExpectRefusal(Driver(), "14 multiprocessors are too few for two parts of at least 8");
  gpu_.num_sms = 132;
  gpu_.num_groups = 0;
  ExpectRefusal(Driver(), "no 32 can be a part");
}

TEST_F(GreenContextsTest, WhatTheDriverRefusesHalfWayIsGivenBack) {
  for (const int fails_at : {1, 2}) {
    gpu_.parts.clear();
    gpu_.fails_at_context = fails_at;
    ExpectRefusal(Driver(), "cuGreenCtxCreate: CUDA_ERROR_OF_THE_FAKE");
    EXPECT_TRUE(gpu_.contexts.empty());
  }
}

TEST_F(GreenContextsTest, AStreamThatIsRefusedIsAnError) {
  const auto split = SmSplit::Create(Driver(), 0);
  ASSERT_TRUE(split.ok());
  gpu_.refuses_streams = true;
  EXPECT_EQ(split->most->CreateStream().status().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace baton::device
