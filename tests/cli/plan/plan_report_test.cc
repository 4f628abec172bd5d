#include "src/cli/plan/plan_report.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "tests/cli/plan/planned_llama.h"
#include "tests/model/test_model.h"

namespace baton::cli {

using model::GgufFile;
using model::GoldenPath;
using model::ModelConfig;
using model::ReadModelConfig;
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
              HasSubstr("architecture gemma4: device cuda has no kernels for layers of different"));
  EXPECT_TRUE(MakePlan(model, Processor(), kSmallLoad, kLoose).ok());
}

PlannedModel GoldenModel(const std::string& name) {
  PlannedModel model{.id = name, .file_name = name, .file_bytes = 1'000'000, .config = {}};
  const auto file = GgufFile::Open(GoldenPath(name));
  EXPECT_TRUE(file.ok()) << file.status();
  if (!file.ok()) return model;
  const auto config = ReadModelConfig(**file);
  EXPECT_TRUE(config.ok()) << config.status();
  if (config.ok()) model.config = *config;
  return model;
}

// The processor after that model was measured on it, a megabyte a second from the next one.
PlannedDevice ProcessorFor(const PlannedModel& model) {
  PlannedDevice device = Processor();
  device.measured->model_name = model.config.name;
  device.link_bytes_per_s = 1e6;
  return device;
}

PlanReport MustPlanOn(const PlannedModel& model, const PlannedDevice& device) {
  StatusOr<PlanReport> report = MakePlan(model, device, kSmallLoad, kLoose);
  EXPECT_TRUE(report.ok()) << report.status();
  return report.ok() ? *std::move(report) : PlanReport();
}

// 64 bytes of KV a token in one layer, and a state of 41 blocks of 1,024 bytes.
TEST(PlanReportTest, AHybridIsPlannedWithTheStateOfItsSequences) {
  for (const char* name : {"tiny_qwen35.gguf", "tiny_qwen35moe.gguf"}) {
    SCOPED_TRACE(name);
    const PlannedModel model = GoldenModel(name);
    const PlanReport report = MustPlanOn(model, ProcessorFor(model));
    const plan::PlanInput& input = report.cautious.input;
    EXPECT_EQ(input.kv_bytes_per_token, 64u);
    EXPECT_EQ(input.memory.state_blocks, 41u);
    EXPECT_EQ(input.memory.kv_block_bytes, 4096u) << "a block's place in the pool";
    EXPECT_EQ(input.num_layers, 1u);
    EXPECT_EQ(input.HandOffBytes(64), (4u + 41) * 1024);
    EXPECT_EQ(report.best.plan->transfer.bytes_per_request, 46'080u);
    // Nobody streams. 32 tokens: 32 ms there < 7/8 of 44 ms by the pair; 48: 48 ms > 7/8 of 45 ms.
    EXPECT_EQ(report.best.split.from_tokens, 48u);
    // Half as fast: 16 tokens take 32 ms < 7/8 of 43 ms, 32 take 64 ms.
    EXPECT_EQ(report.cautious.split.from_tokens, 32u);
    const std::string text = PlanText(report);
    EXPECT_THAT(text, HasSubstr("state: attention 64 bytes a token (bf16), recurrent 41984 bytes "
                                "a sequence (f32)\n"));
    EXPECT_THAT(text, HasSubstr("41 KiB with each sequence, as much as the rows of 656 tokens"));
    EXPECT_THAT(text, HasSubstr("a split pays"));
    EXPECT_THAT(text, HasSubstr("from 48 prompt tokens on"));
    const json page = json::parse(PlanJson(report));
    EXPECT_EQ(page["state"]["pools"][1]["kind"], "fixed state");
    EXPECT_EQ(page["state"]["pools"][1]["bytes_per_sequence"], 41'984);
    EXPECT_EQ(page["ends"][1]["split_pays"]["from_tokens"], 32);
  }
}

TEST(PlanReportTest, ModelsThatDevicesDoNotComputeAreRefusedByName) {
  const auto refusal = [](const std::string& name) {
    return std::string(MakePlan(GoldenModel(name), H200(), {1, 64, 33}, kLoose).status().message());
  };
  EXPECT_THAT(refusal("tiny_qwen35.gguf"), HasSubstr("heads of 16 x 32 of gated delta nets"));
  EXPECT_THAT(refusal("tiny_qwen35moe.gguf"),
              HasSubstr("architecture qwen35moe: device cuda has no kernel for its gated shared "
                        "expert; use --device cpu"));
  EXPECT_THAT(refusal("tiny_deepseek2.gguf"), HasSubstr("no kernel for its latent rows"));
  EXPECT_THAT(refusal("tiny_gptoss.gguf"), HasSubstr("no attention sinks"));
  EXPECT_THAT(refusal("tiny_gemma4.gguf"), HasSubstr("no kernels for layers of different heads"));
  EXPECT_THAT(refusal("tiny_nemotron_h.gguf"), HasSubstr("no kernel for its layers of Mamba-2"));
  for (const char* name : {"tiny_bf16.gguf", "tiny_lfm2.gguf"}) {
    EXPECT_THAT(refusal(name), HasSubstr("take 64, 128 and 256; use --device cpu"));
  }
}

// Its convolutions' inputs cross as K and V do: two slices of 128 elements, and K and V of a layer.
TEST(PlanReportTest, ConvolutionsOnADeviceCrossAsTheyAreStored) {
  const auto report = MakePlan(GoldenModel("tiny_head64_lfm2.gguf"), H200(), {1, 64, 33}, kLoose);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->best.input.kv_bytes_per_token, 3u * 128 * 2);
  EXPECT_EQ(report->best.input.memory.state_blocks, 0u);
}

// A state takes whole blocks, as it does on the processor.
TEST(PlanReportTest, FixedStatesOnADeviceCrossInTheirBlocks) {
  const auto report = MakePlan(GoldenModel("tiny_head64_qwen35.gguf"), H200(), {1, 64, 33}, kLoose);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->best.input.kv_bytes_per_token, 2u * 64 * 2);
  // Two matrices of 64 x 32 and 3 inputs of 192 channels in each of two layers.
  constexpr uint32_t kStateBytes = 2 * (2 * 64 * 32 + 3 * 192) * 4;
  const uint32_t slice_bytes = report->best.input.memory.block_tokens * 2 * 64 * 2;
  EXPECT_EQ(report->best.input.memory.state_blocks, (kStateBytes - 1) / slice_bytes + 1);
}

// K and V cross in whole blocks of 16 tokens, of layers with a window too.
TEST(PlanReportTest, EachKindOfRowsCrossesAsItIsStored) {
  struct Row {
    const char* name;
    uint64_t bytes_per_token;
    uint32_t num_layers;  // that store rows
  };
  for (const Row& row : {Row{"tiny_lfm2.gguf", 448, 6}, Row{"tiny_gemma3.gguf", 448, 7},
                         Row{"tiny_gemma4.gguf", 320, 4}, Row{"tiny_gptoss.gguf", 256, 4},
                         Row{"tiny_deepseek2.gguf", 288, 3}}) {
    SCOPED_TRACE(row.name);
    const PlannedModel model = GoldenModel(row.name);
    const PlanReport report = MustPlanOn(model, ProcessorFor(model));
    EXPECT_EQ(report.best.input.num_layers, row.num_layers);
    EXPECT_EQ(report.best.input.memory.state_blocks, 0u);
    EXPECT_EQ(report.best.plan->transfer.bytes_per_request, 64 * row.bytes_per_token);
    EXPECT_EQ(report.best.input.HandOffBytes(65), 80 * row.bytes_per_token);
    // At a millisecond a token KV crosses in less than half of the time.
    EXPECT_EQ(report.best.split.from_tokens, 16u);
  }
}

// Every layer sees 33 tokens: after 64 the next one sees two blocks of 16.
TEST(PlanReportTest, OfAModelWithWindowsAloneTheWindowCrosses) {
  const PlannedModel model = GoldenModel("tiny_phi3_short.gguf");
  const PlanReport report = MustPlanOn(model, ProcessorFor(model));
  const plan::PlanInput& input = report.best.input;
  EXPECT_EQ(input.memory.window, 33u);
  EXPECT_EQ(report.best.plan->transfer.bytes_per_request, 32 * input.kv_bytes_per_token);
  EXPECT_EQ(GoldenModel("tiny_gemma3.gguf").config.window_of_all(), 0u);
}

TEST(PlanReportTest, LayersWithAWindowAreChargedForIt) {
  const plan::KeyWindow gemma3 = KeyWindowOf(GoldenModel("tiny_gemma3.gguf").config);
  EXPECT_EQ(gemma3.tokens, 33u);
  EXPECT_DOUBLE_EQ(gemma3.share, 6.0 / 7);
  // Seven layers, and all of them read keys: five have a window and heads of 16, two have 32.
  const plan::KeyWindow gemma4 = KeyWindowOf(GoldenModel("tiny_gemma4.gguf").config);
  EXPECT_EQ(gemma4.tokens, 33u);
  EXPECT_DOUBLE_EQ(gemma4.share, 5.0 * 16 / (5 * 16 + 2 * 32));
  EXPECT_EQ(KeyWindowOf(Llama8b().config).tokens, 0u);
  EXPECT_EQ(KeyWindowOf(GoldenModel("tiny_qwen35.gguf").config).tokens, 0u);
}

// 2,048 tokens are 268 MB: 4 of them a second are 1.07 GB.
TEST(PlanReportTest, LinksThatAreTooSlowAreTheVerdict) {
  PlannedDevice device = H200();
  device.link_bytes_per_s = 1e9;
  const PlanReport report = MustPlan(device, kLoad, kObjective);
  const std::string verdict = VerdictText(report, report.best);
  EXPECT_THAT(verdict, StartsWith("do not split: 1.07 GB/s must cross, 107 % of what the links of "
                                  "1 prefill and 1 decode workers carry (80 % at most); "));
  EXPECT_FALSE(report.best.aggregated.split_helps);
  EXPECT_THAT(PlanText(report), HasSubstr("links 107 % busy"));
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
