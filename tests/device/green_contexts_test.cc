// A GPU divided between two workers, by a driver that stands for the real one: what is asked of it,
// in which order it is given back, and what a driver or a GPU that cannot do it leads to.
#include "src/device/cuda/green_contexts.h"

#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

// A GPU and its driver's memory of what exists; the functions below are the driver.
struct FakeGpu {
  unsigned num_sms = 132;
  unsigned min_part = 8;
  unsigned alignment = 8;
  unsigned num_groups = 1;   // that a split gives
  int fails_at_context = 0;  // the n-th creation is refused; 0 = none
  bool refuses_streams = false;
  std::vector<unsigned> parts;  // multiprocessors of the contexts, in order
  std::set<size_t> contexts;    // alive, by number from 1
  std::set<size_t> streams;     // alive
  std::vector<int> priorities;
  std::vector<size_t> streams_of;  // contexts of the streams
  std::vector<std::string> order;
  CUdevResource described{};
};
FakeGpu* gpu = nullptr;

template <typename Handle>
Handle HandleOf(size_t number) {
  return reinterpret_cast<Handle>(number);
}
template <typename Handle>
size_t NumberOf(Handle handle) {
  return reinterpret_cast<size_t>(handle);
}

CUdevResource Sms(unsigned count) {
  CUdevResource resource{};
  resource.type = CU_DEV_RESOURCE_TYPE_SM;
  resource.sm.smCount = count;
  resource.sm.minSmPartitionSize = gpu->min_part;
  resource.sm.smCoscheduledAlignment = gpu->alignment;
  return resource;
}

CUresult GetResource(CUdevice, CUdevResource* resource, CUdevResourceType) {
  *resource = Sms(gpu->num_sms);
  return CUDA_SUCCESS;
}
// Of whole units; what is left is the rest.
CUresult Split(CUdevResource* part, CUdevResource* rest, const CUdevResource& all,
               unsigned min_count) {
  const unsigned unit = gpu->alignment;
  const unsigned count = (min_count + unit - 1) / unit * unit;
  *part = Sms(count);
  *rest = Sms(all.sm.smCount - count);
  return CUDA_SUCCESS;
}
CUresult Describe(CUdevResourceDesc* description, CUdevResource* resources, unsigned) {
  gpu->described = *resources;
  *description = HandleOf<CUdevResourceDesc>(1);
  return CUDA_SUCCESS;
}
CUresult CreateContext(CUgreenCtx* context, CUdevResourceDesc, CUdevice, unsigned flags) {
  if (flags != CU_GREEN_CTX_DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
  gpu->parts.push_back(gpu->described.sm.smCount);
  if (static_cast<int>(gpu->parts.size()) == gpu->fails_at_context) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  gpu->contexts.insert(gpu->parts.size());
  *context = HandleOf<CUgreenCtx>(gpu->parts.size());
  return CUDA_SUCCESS;
}
CUresult DestroyContext(CUgreenCtx context) {
  gpu->order.push_back("context");
  return gpu->contexts.erase(NumberOf(context)) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
CUresult CreateStream(CUstream* stream, CUgreenCtx context, unsigned flags, int priority) {
  if (gpu->refuses_streams) return CUDA_ERROR_OUT_OF_MEMORY;
  if (flags != CU_STREAM_NON_BLOCKING || !gpu->contexts.contains(NumberOf(context))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  gpu->priorities.push_back(priority);
  gpu->streams_of.push_back(NumberOf(context));
  gpu->streams.insert(gpu->priorities.size());
  *stream = HandleOf<CUstream>(gpu->priorities.size());
  return CUDA_SUCCESS;
}
CUresult DestroyStream(CUstream stream) {
  gpu->order.push_back("stream");
  return gpu->streams.erase(NumberOf(stream)) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult ErrorName(CUresult, const char** name) {
  *name = "CUDA_ERROR_OF_THE_FAKE";
  return CUDA_SUCCESS;
}

class GreenContextsTest : public testing::Test {
 protected:
  GreenContextsTest() { gpu = &gpu_; }
  ~GreenContextsTest() override {
    EXPECT_TRUE(gpu_.contexts.empty()) << "nothing is left behind";
    EXPECT_TRUE(gpu_.streams.empty());
    gpu = nullptr;
  }

  static GreenTable Driver() {
    return {.cuDevResourceGenerateDesc = &Describe,
            .cuDevSmResourceSplitByCount =
                [](CUdevResource* result, unsigned* num_groups, const CUdevResource* input,
                   CUdevResource* rest, unsigned, unsigned min_count) {
                  *num_groups = gpu->num_groups;
                  return Split(result, rest, *input, min_count);
                },
            .cuDeviceGetDevResource = &GetResource,
            .cuGetErrorName = &ErrorName,
            .cuGreenCtxCreate = &CreateContext,
            .cuGreenCtxDestroy = &DestroyContext,
            .cuGreenCtxStreamCreate = &CreateStream,
            .cuStreamDestroy = &DestroyStream};
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
}  // namespace baton
