// `baton plan` over model files as they lie on disk.
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "src/cli/commands.h"
#include "src/cli/flags.h"
#include "tests/model/test_model.h"

namespace baton::cli {

using model::GoldenPath;

namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// The exit code and the output of a run.
struct Said {
  int code;
  std::string out;
  std::string error;
};

// A file that devices compute: they take heads of 64.
constexpr const char* kModel = "tiny_head64_llama.gguf";

Said PlanOf(const std::string& model, const std::vector<std::string>& more) {
  std::vector<std::string> args = {
      model, "--device=NVIDIA H200", "--output=16", "--rate=2", "--ttft=1s", "--itl=10ms"};
  args.insert(args.end(), more.begin(), more.end());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const int code = RunPlan(args);
  return {code, testing::internal::GetCapturedStdout(), testing::internal::GetCapturedStderr()};
}

TEST(PlanCommandTest, AFileIsPlannedWithoutItsWeights) {
  const std::string path = GoldenPath(kModel);
  const Said said = PlanOf(path, {"--input=16"});
  EXPECT_EQ(said.code, kExitOk) << said.error;
  EXPECT_THAT(said.out, HasSubstr("2 requests a second of 16 tokens, answers of 16"));
  EXPECT_THAT(said.out, HasSubstr("at half of them: do not split: 1 worker"));
  EXPECT_EQ(said.error, "");
  const Said as_json = PlanOf(path, {"--input=16", "--json"});
  EXPECT_EQ(json::parse(as_json.out)["ends"][1]["split_helps"], false);
  const Said values = PlanOf(path, {"--input=16", "--values"});
  EXPECT_THAT(values.out, HasSubstr("path: \"tiny_"));
}

// As the worker of a device refuses it.
TEST(PlanCommandTest, AFoldersHeadsThatNoKernelTakesAreRefused) {
  for (const char* name : {"tiny_llama_yarn", "tiny_llama_yarn/"}) {
    const Said said = PlanOf(GoldenPath(name), {"--input=16"});
    EXPECT_EQ(said.code, kExitFailure);
    EXPECT_THAT(said.error, HasSubstr("head size 16: the kernels of device cuda take 64, 128 and "
                                      "256; use --device cpu"));
  }
}

TEST(PlanCommandTest, WhatTheModelCannotDoIsOneLineAndAFailure) {
  const std::string path = GoldenPath(kModel);
  Said said = PlanOf(path, {"--input=1000000"});
  EXPECT_EQ(said.code, kExitFailure);
  EXPECT_THAT(said.error, HasSubstr("the model's context has"));
  said = PlanOf(path, {"--input=16", "--memory=64KiB"});
  EXPECT_EQ(said.code, kExitFailure);
  EXPECT_THAT(said.error, HasSubstr("the model does not fit"));
  EXPECT_EQ(said.out, "");
}

TEST(PlanCommandTest, AMeasurementOfAnotherKindIsNamed) {
  const std::string path = testing::TempDir() + "/plan_command_test.json";
  std::ofstream(path) << "{\"chunk\": 512}";
  std::vector<std::string> args = {GoldenPath(kModel), "--device=cpu",      "--input=16",
                                   "--output=16",      "--rate=1",          "--ttft=1s",
                                   "--itl=1s",         "--measured=" + path};
  testing::internal::CaptureStderr();
  EXPECT_EQ(RunPlan(args), kExitFailure);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("--measured " + path + ": this is"));
}

TEST(PlanCommandTest, ASteadyLoadIsSimulatedWhenAsked) {
  const Said said = PlanOf(GoldenPath(kModel), {"--input=16", "--simulate", "--requests=50"});
  EXPECT_EQ(said.code, kExitOk) << said.error;
  EXPECT_THAT(said.out, HasSubstr("simulated with the shipped router and scheduler: 50 requests"));
  EXPECT_THAT(said.error, HasSubstr("simulated no split on"));
}

TEST(PlanCommandTest, ATraceStandsForLengthsAndRate) {
  const std::string trace = testing::TempDir() + "/plan_trace.jsonl";
  std::ofstream file(trace);
  for (int i = 0; i < 40; ++i) {
    file << "{\"timestamp\": " << i * 250
         << ", \"input_length\": 20, \"output_length\": 5, \"hash_ids\": [1]}\n";
  }
  file.close();
  const std::string model = GoldenPath(kModel);
  const std::vector<std::string> args = {model,        "--device=NVIDIA H200", "--ttft=1s",
                                         "--itl=10ms", "--trace=" + trace,     "--json"};
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  EXPECT_EQ(RunPlan(args), kExitOk);
  const json out = json::parse(testing::internal::GetCapturedStdout());
  (void)testing::internal::GetCapturedStderr();
  EXPECT_EQ(out["load"]["input"], 20);
  EXPECT_EQ(out["load"]["rate_per_s"], 4);
  EXPECT_EQ(out["simulated"]["rows"], 40);
  EXPECT_EQ(out["simulated"]["load"], "40 requests of plan_trace.jsonl");
  EXPECT_EQ(PlanOf(model, {"--trace=" + trace}).code, kExitUsage) << "--rate goes not with it";
  EXPECT_EQ(PlanOf(model, {"--input=16", "--prefill=2"}).code, kExitUsage);
  EXPECT_EQ(PlanOf(model, {"--input=16", "--time-scale=2"}).code, kExitUsage);
}

}  // namespace
}  // namespace baton::cli
