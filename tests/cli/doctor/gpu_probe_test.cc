#include "src/cli/doctor/gpu_probe.h"

#include <signal.h>
#include <unistd.h>

#include "gtest/gtest.h"

#include "tests/patience.h"

namespace baton::cli {
namespace {

constexpr int64_t kPatienceMs = 20'000 * kPatienceFactor;

TEST(GpuProbeTest, AReportComesBackAsItWas) {
  GpuFacts facts;
  facts.driver_error = "no \"driver\"";
  facts.cuda_version = 13000;
  facts.gpus = {{"NVIDIA H200", 151397597184, 9, 0, 18}, {"b", 1, 8, 6, 0}};
  facts.nvml_error = "n";
  facts.pairs = {{0, 1, GpuPath::kSystem}};
  facts.nccl_error = "x";
  facts.nccl_version = 22809;
  GpuFacts back;
  ASSERT_TRUE(ReadGpuReport(WriteGpuReport(facts), &back).ok());
  EXPECT_EQ(WriteGpuReport(back), WriteGpuReport(facts));
  EXPECT_EQ(back.gpus[0].memory_bytes, 151397597184u);
  EXPECT_EQ(back.pairs[0].path, GpuPath::kSystem);
}

TEST(GpuProbeTest, ADamagedReportIsAnErrorAndNoCrash) {
  for (const char* text : {"", "{}", "[1]", "{\"driver_error\":1}", "{\"driver_error\":\"\""}) {
    GpuFacts facts;
    EXPECT_EQ(ReadGpuReport(text, &facts).code(), StatusCode::kDataLoss) << text;
  }
}

TEST(GpuProbeTest, WhatAChildFindsOutComesBackWhole) {
  const std::string long_text(300'000, 'x');  // more than a pipe holds
  const StatusOr<std::string> text = RunApart([&] { return long_text; }, kPatienceMs);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, long_text);
}

TEST(GpuProbeTest, ADriverThatHangsIsGivenUp) {
  const StatusOr<std::string> text = RunApart(
      [] {
        for (;;) pause();
        return std::string();
      },
      20);
  EXPECT_EQ(text.status().code(), StatusCode::kDeadlineExceeded) << text.status();
}

TEST(GpuProbeTest, ADriverThatCrashesIsAFinding) {
  const StatusOr<std::string> text = RunApart(
      [] {
        raise(SIGKILL);
        return std::string();
      },
      kPatienceMs);
  EXPECT_EQ(text.status().message(), "it died of signal 9 (SIGKILL)");
  const StatusOr<std::string> code = RunApart([]() -> std::string { _exit(3); }, kPatienceMs);
  EXPECT_EQ(code.status().message(), "it ended with 3");
}

// Whatever is on this machine, each of the three is either there or named.
TEST(GpuProbeTest, TheMachineIsAskedWithoutHarm) {
  GpuFacts facts;
  ProbeGpus(&facts);
  EXPECT_FALSE(facts.program_is_static);
  EXPECT_EQ(facts.driver_error.empty(), facts.cuda_version > 0);
  EXPECT_EQ(facts.nccl_error.empty(), facts.nccl_version > 0);
  if (facts.driver_error.empty()) return;
  EXPECT_TRUE(facts.gpus.empty());
}

}  // namespace
}  // namespace baton::cli
