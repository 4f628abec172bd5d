#include "src/device/gpu_code.h"

#include <set>
#include <string>

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(GpuCodeTest, MachineCodeServesItsMajorVersionAndPtxWhatCameLater) {
  struct Row {
    const char* architectures;
    ComputeCapability gpu;
    bool serves;
  };
  constexpr const char* kAll = "80-real, 90a-real, 90-virtual";
  const Row rows[] = {{kAll, {8, 0}, true},          {kAll, {8, 6}, true},
                      {kAll, {8, 9}, true},          {kAll, {9, 0}, true},
                      {kAll, {10, 0}, true},         {kAll, {12, 0}, true},
                      {kAll, {7, 5}, false},         {"90a-real", {9, 0}, true},
                      {"90a-real", {8, 0}, false},   {"90a-real", {10, 0}, false},
                      {"80-real", {9, 0}, false},    {"86-real", {8, 0}, false},
                      {"90-virtual", {8, 9}, false}, {"90a-virtual", {10, 0}, false},
                      {"80", {9, 0}, false},         {"80", {7, 5}, false},
                      {"80", {8, 9}, true},          {"90", {10, 0}, true},
                      {"", {9, 0}, false},           {"native", {9, 0}, false}};
  for (const Row& row : rows) {
    EXPECT_EQ(GpuCodeServes(row.architectures, row.gpu), row.serves)
        << row.architectures << " on " << row.gpu.major << "." << row.gpu.minor;
  }
}

// Two generations never meet under one name, whatever code they run.
TEST(GpuCodeTest, EveryGenerationHasAnArithmeticOfItsOwn) {
  const ComputeCapability gpus[] = {{8, 0}, {8, 6}, {8, 9}, {9, 0}, {10, 0}, {10, 3}, {12, 0}};
  std::set<std::string> names;
  for (const ComputeCapability& gpu : gpus) names.insert(GpuArithmetic(gpu));
  EXPECT_EQ(names.size(), std::size(gpus));
  EXPECT_EQ(GpuArithmetic({9, 0}), "bf16.sm90.1");
}

}  // namespace
}  // namespace baton
