#include "src/cli/plan/plan_report.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "tests/cli/plan/planned_llama.h"

namespace baton::cli {

using model::ModelConfig;
using plan::PlanLoad;

namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(PlanReportTest, WeightsAndKvOfTheModelAreCounted) {
  // 8.03 billion weights.
  EXPECT_EQ(DeviceWeightBytes(Llama8b().config),
            uint64_t{32} * 436'207'616 + 2 * uint64_t{1'050'673'152});
  ModelConfig tied = Llama8b().config;
  tied.tied_output = true;
  EXPECT_EQ(DeviceWeightBytes(tied), uint64_t{32} * 436'207'616 + 1'050'673'152);
  const PlanReport report = MustPlan(H200(), kLoad, kObjective);
  EXPECT_EQ(report.best.input.kv_bytes_per_token, 131'072u);
  EXPECT_EQ(report.best.input.memory.block_tokens, 64u);
  EXPECT_EQ(report.best.input.link_bytes_per_s, 450e9);
  EXPECT_EQ(report.cautious.input.link_bytes_per_s, 225e9);
  PlannedDevice measured_link = H200();
  measured_link.link_bytes_per_s = 10e9;
  EXPECT_EQ(MustPlan(measured_link, kLoad, kObjective).cautious.input.link_bytes_per_s, 10e9);
}

TEST(PlanReportTest, TheTextSaysWhatIsABoundAndShowsBothEnds) {
  const std::string text = PlanText(MustPlan(H200(), kLoad, kObjective));
  EXPECT_THAT(text, HasSubstr("A bound, nothing measured: no build is faster"));
  EXPECT_THAT(text, HasSubstr("at the limits"));
  EXPECT_THAT(text, HasSubstr("at half of them"));
  EXPECT_THAT(text, HasSubstr("link: 0.268 GB of KV a request, 1.07 GB/s in all"));
  EXPECT_THAT(text, Not(HasSubstr("cost")));
  EXPECT_THAT(text, Not(HasSubstr("energy")));
  const std::string measured = PlanText(MustPlan(Processor(), kSmallLoad, kLoose));
  EXPECT_THAT(measured, HasSubstr("Measured on a processor, 4 threads a worker"));
  EXPECT_THAT(measured, HasSubstr("misses a case's median by 7 % at most"));
  EXPECT_THAT(measured, HasSubstr("not known: give --link"));
}

TEST(PlanReportTest, TheVerdictFlipsWithTheObjective) {
  const PlanReport loose = MustPlan(Processor(), kSmallLoad, kLoose);
  EXPECT_THAT(VerdictText(loose, loose.best), StartsWith("do not split: 1 worker without a split"));
  const PlanReport tight = MustPlan(Processor(), kSmallLoad, kTight);
  EXPECT_THAT(VerdictText(tight, tight.best), StartsWith("split helps: the same 2 workers"));
}

TEST(PlanReportTest, CostAndEnergyFollowFromWhatWasGiven) {
  PlannedDevice device = H200();
  device.cost_per_hour = 3.6;
  device.watts = 1000;
  const PlanReport report = MustPlan(device, kLoad, kObjective);
  // Two workers for 7.2 an hour make 4 * 256 * 3600 = 3.6864 million tokens; 9 of all for each.
  const PlanCost cost = CostOf(report, 2);
  EXPECT_NEAR(cost.cost_per_million_output, 7.2 / 3.6864, 1e-9);
  EXPECT_NEAR(cost.cost_per_million_tokens, 7.2 / 3.6864 / 9, 1e-9);
  EXPECT_NEAR(cost.kwh_per_million_output, 2.0 / 3.6864, 1e-9);
  EXPECT_THAT(PlanText(report), HasSubstr("cost at the limits: 1.953 a million answer tokens"));
  EXPECT_THAT(PlanText(report), HasSubstr("energy at half of them: "));
}

TEST(PlanReportTest, TheJsonHasTheNumbersOfTheText) {
  const PlanReport report = MustPlan(H200(), kLoad, kObjective);
  const json page = json::parse(PlanJson(report));
  EXPECT_EQ(page["device"], "NVIDIA H200");
  EXPECT_EQ(page["basis"], "limits");
  ASSERT_EQ(page["ends"].size(), 2u);
  EXPECT_EQ(page["ends"][1]["plan"]["prefill"]["workers"],
            report.cautious.plan->prefill.num_workers);
  EXPECT_EQ(page["ends"][0]["plan"]["transfer"]["bytes_per_request"], 2048u * 131'072);
  EXPECT_EQ(page["ends"][0]["verdict"], VerdictText(report, report.best));
  EXPECT_FALSE(page["ends"][0].contains("cost"));
}

TEST(PlanReportTest, WhatDoesNotFitIsOneError) {
  const auto error = [](const PlannedDevice& device, const PlanLoad& load) {
    return std::string(MakePlan(Llama8b(), device, load, kObjective).status().message());
  };
  EXPECT_THAT(error(H200(), {.rate_per_s = 1, .input_tokens = 131'072, .output_tokens = 1}),
              HasSubstr("131073 tokens, the model's context has 131072"));
  PlannedDevice small = H200();
  small.memory_bytes = 16'000'000'000;
  EXPECT_THAT(error(small, kLoad), HasSubstr("the model does not fit: weights of 15 GiB"));
  PlannedDevice other = Processor();
  other.measured->model_name = "a toy";
  EXPECT_THAT(error(other, kLoad), HasSubstr("of the model \"a toy\", not of \"Llama 8B\""));
}

TEST(PlanReportTest, LayersThatDifferArePlannedOnTheProcessorAlone) {
  PlannedModel model = Llama8b();
  model.config.architecture = "gemma4";
  model.config.local_head_dim = 128;
  model.config.local_kv_heads = 8;
  EXPECT_THAT(std::string(MakePlan(model, H200(), kLoad, kObjective).status().message()),
              HasSubstr("architecture gemma4: devices have no kernels for its layers"));
  EXPECT_TRUE(MakePlan(model, Processor(), kSmallLoad, kLoose).ok());
}

TEST(PlanReportTest, ACautiousEndWithoutAPlanIsSaidAndGivesNoValues) {
  // A prompt of 64 tokens takes 64 ms at best and 128 ms at worst.
  const PlanReport report =
      MustPlan(Processor(), kSmallLoad, {.ttft_us = 100'000, .itl_us = 300'000});
  EXPECT_FALSE(report.cautious.plan.ok());
  EXPECT_THAT(PlanText(report), HasSubstr("slowest measured: TTFT 100 ms cannot be met"));
  EXPECT_THAT(json::parse(PlanJson(report))["ends"][1]["error"].get<std::string>(),
              HasSubstr("TTFT 100 ms cannot be met"));
  EXPECT_THAT(std::string(PlanValues(report).status().message()),
              StartsWith("slowest measured: TTFT 100 ms"));
}

}  // namespace
}  // namespace baton::cli
