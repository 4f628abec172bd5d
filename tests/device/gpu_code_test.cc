#include "src/device/gpu_code.h"

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "gtest/gtest.h"

namespace baton::device {
namespace {

// `baton doctor` names the preset to those whose build lacks code for their GPU.
TEST(GpuCodeTest, ThePresetCompilesForWhatIsServed) {
  const char* root = std::getenv("BATON_SOURCE_DIR");
  std::ifstream file(std::string(root == nullptr ? "." : root) + "/CMakePresets.json");
  std::stringstream text;
  text << file.rdbuf();
  std::string list(kMostGpuCode);
  for (size_t at = list.find(", "); at != std::string::npos; at = list.find(", ")) {
    list.replace(at, 2, ";");
  }
  const std::string line = "\"BATON_CUDA_ARCHITECTURES\": \"" + list + "\"";
  EXPECT_NE(text.str().find(line), std::string::npos) << line;
}

TEST(GpuCodeTest, MachineCodeServesItsMajorVersionAndPtxWhatCameLater) {
  struct Row {
    const char* architectures;
    ComputeCapability gpu;
    bool serves;
  };
  constexpr const char* kAll = kMostGpuCode.data();
  const Row rows[] = {{kAll, {8, 0}, true},          {kAll, {8, 6}, true},
                      {kAll, {8, 9}, true},          {kAll, {9, 0}, true},
                      {kAll, {10, 0}, true},         {kAll, {12, 1}, true},
                      {kAll, {10, 7}, true},         {kAll, {11, 0}, true},
                      {kAll, {7, 5}, false},         {"90a-real", {9, 0}, true},
                      {"90a-real", {8, 0}, false},   {"90a-real", {10, 0}, false},
                      {"80-real", {9, 0}, false},    {"86-real", {8, 0}, false},
                      {"90-virtual", {8, 9}, false}, {"90a-virtual", {10, 0}, false},
                      {"80", {9, 0}, false},         {"80", {7, 5}, false},
                      {"80", {8, 9}, true},          {"90", {10, 0}, true},
                      {"100f-real", {10, 3}, true},  {"100f-real", {9, 0}, false},
                      {"100f", {11, 0}, false},      {"100f-virtual", {12, 0}, false},
                      {"103f", {10, 0}, false},      {"120f-real", {12, 1}, true},
                      {"", {9, 0}, false},           {"native", {9, 0}, false}};
  for (const Row& row : rows) {
    EXPECT_EQ(GpuCodeServes(row.architectures, row.gpu), row.serves)
        << row.architectures << " on " << row.gpu.major << "." << row.gpu.minor;
  }
}

TEST(GpuCodeTest, OneKindOfGpuHasBeenChecked) {
  EXPECT_TRUE(HasBeenChecked({9, 0}));
  for (const ComputeCapability& gpu : {ComputeCapability{8, 0}, {8, 9}, {10, 0}, {12, 0}}) {
    EXPECT_FALSE(HasBeenChecked(gpu)) << gpu.major << "." << gpu.minor;
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
}  // namespace baton::device
