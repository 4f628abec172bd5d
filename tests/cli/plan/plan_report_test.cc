#include "src/cli/plan/plan_report.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <regex>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "yaml-cpp/yaml.h"

namespace baton {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

PlannedModel Llama8b() {
  PlannedModel model{
      .id = "llama", .file_name = "llama-8b.gguf", .file_bytes = 16'000'000'000, .config = {}};
  ModelConfig& config = model.config;
  config.name = "Llama 8B";
  config.num_layers = 32;
  config.hidden_size = 4096;
  config.ffn_size = 14336;
  config.num_heads = 32;
  config.num_kv_heads = 8;
  config.head_dim = 128;
  config.vocab_size = 128'256;
  config.context_length = 131'072;
  config.layer_is_local.assign(32, false);
  return model;
}

PlannedDevice H200() {
  PlannedDevice device;
  device.name = "NVIDIA H200";
  device.limits = FindDevice(device.name);
  device.memory_bytes = device.limits->memory_bytes;
  return device;
}

// 1 ms a prompt token; 4 ms a decode step and 1 ms a row; the slowest repetition took twice that.
PlannedDevice Processor() {
  MeasuredWeights fastest = {
      .prefill = {.fixed_us = 0, .prefill_token_us = 1'000, .decode_row_us = 0, .key_us = 0},
      .decode = {.fixed_us = 4'000, .prefill_token_us = 0, .decode_row_us = 1'000, .key_us = 0}};
  MeasuredWeights slowest = {
      .prefill = {.fixed_us = 0, .prefill_token_us = 2'000, .decode_row_us = 0, .key_us = 0},
      .decode = {.fixed_us = 8'000, .prefill_token_us = 0, .decode_row_us = 2'000, .key_us = 0}};
  PlannedDevice device;
  device.name = "cpu";
  device.measured = MeasuredSteps{.model_name = "Llama 8B",
                                  .processor = "a processor",
                                  .num_threads = 4,
                                  .weight_bytes = 9'000'000'000,
                                  .fastest = fastest,
                                  .slowest = slowest,
                                  .worst_error = 0.07};
  return device;
}

constexpr PlanLoad kLoad = {.rate_per_s = 4, .input_tokens = 2048, .output_tokens = 256};
constexpr PlanObjective kObjective = {.ttft_us = 500'000, .itl_us = 50'000};
constexpr PlanLoad kSmallLoad = {.rate_per_s = 1, .input_tokens = 64, .output_tokens = 33};
constexpr PlanObjective kLoose = {.ttft_us = 2'000'000, .itl_us = 300'000};
// 16 tokens beside a row take 21 ms at best.
constexpr PlanObjective kTight = {.ttft_us = 2'000'000, .itl_us = 20'000};

PlanReport MustPlan(const PlannedDevice& device, const PlanLoad& load,
                    const PlanObjective& objective) {
  StatusOr<PlanReport> report = MakePlan(Llama8b(), device, load, objective);
  EXPECT_TRUE(report.ok()) << report.status();
  return report.ok() ? *std::move(report) : PlanReport();
}

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

// The part of JSON Schema that the chart's schema uses for these values: "" when `node` is right.
std::string Violation(const YAML::Node& node, const json& schema, const json& root) {
  if (schema.contains("$ref")) {
    const std::string name =
        schema["$ref"].get<std::string>().substr(std::string("#/$defs/").size());
    return Violation(node, root["$defs"][name], root);
  }
  if (node.IsMap()) {
    if (schema.value("type", "") != "object") return "is a map";
    for (const auto& entry : node) {
      const std::string key = entry.first.as<std::string>();
      const json properties = schema.value("properties", json::object());
      if (!properties.contains(key)) {
        if (schema.contains("additionalProperties") && schema["additionalProperties"] == false) {
          return key + " is not known";
        }
        continue;
      }
      const std::string below = Violation(entry.second, properties[key], root);
      if (!below.empty()) return key + ": " + below;
    }
    return "";
  }
  if (!node.IsScalar()) return schema.value("type", "") == "array" ? "" : "is a list";
  const std::string text = node.Scalar();
  if (schema.value("type", "") == "integer") {
    const bool is_whole = std::regex_match(text, std::regex("[0-9]+")) && node.Tag() != "!";
    return is_whole ? "" : text + " is no whole number";
  }
  if (schema.contains("pattern") &&
      !std::regex_search(text, std::regex(schema["pattern"].get<std::string>()))) {
    return text + " does not match " + schema["pattern"].get<std::string>();
  }
  if (schema.contains("enum") &&
      std::find(schema["enum"].begin(), schema["enum"].end(), text) == schema["enum"].end()) {
    return text + " is none of " + schema["enum"].dump();
  }
  return "";
}

json ChartSchema() {
  const char* const root = std::getenv("BATON_SOURCE_DIR");
  std::ifstream file(std::string(root != nullptr ? root : ".") +
                     "/deploy/helm/baton/values.schema.json");
  return json::parse(file);
}

YAML::Node MustGiveValues(const PlanReport& report) {
  const StatusOr<std::string> text = PlanValues(report);
  EXPECT_TRUE(text.ok()) << text.status();
  const YAML::Node values = YAML::Load(text.ok() ? *text : "");
  const json schema = ChartSchema();
  EXPECT_EQ(Violation(values, schema, schema), "") << *text;
  return values;
}

TEST(PlanValuesTest, AGpuPlanIsWhatTheChartTakes) {
  const YAML::Node values =
      MustGiveValues(MustPlan(H200(), {.rate_per_s = 8, .input_tokens = 8000, .output_tokens = 256},
                              {.ttft_us = 2'000'000, .itl_us = 12'000}));
  EXPECT_EQ(values["model"]["path"].as<std::string>(), "llama-8b.gguf");
  EXPECT_EQ(values["model"]["size"].as<std::string>(), "15259MiB");
  EXPECT_EQ(values["decode"]["device"].as<std::string>(), "cuda");
  EXPECT_EQ(values["decode"]["gpu"]["count"].as<int>(), 1);
  EXPECT_GE(values["decode"]["replicas"].as<int>(), 1);
}

TEST(PlanValuesTest, ASplitOnProcessorsNamesBothPools) {
  PlannedDevice device = Processor();
  device.memory_bytes = uint64_t{24} << 30;
  const PlanReport report = MustPlan(device, kSmallLoad, kTight);
  const YAML::Node values = MustGiveValues(report);
  EXPECT_EQ(values["prefill"]["replicas"].as<uint32_t>(),
            report.cautious.plan->prefill.num_workers);
  EXPECT_EQ(values["decode"]["threads"].as<int>(), 4);
  EXPECT_EQ(values["prefill"]["device"].as<std::string>(), "cpu");
  // 21.6 GiB less the file leave 7 GiB; 131,072 tokens would need 16.
  EXPECT_EQ(values["decode"]["kvMemory"].as<std::string>(), "6859MiB");
  EXPECT_LT(values["worker"]["maxContext"].as<uint32_t>(), 6859u * 8);
  EXPECT_GT(values["worker"]["maxContext"].as<uint32_t>(), 6859u * 8 - 64);
}

TEST(PlanValuesTest, WhereNoSplitHelpsTheRouterAggregates) {
  const YAML::Node values = MustGiveValues(MustPlan(Processor(), kSmallLoad, kLoose));
  EXPECT_EQ(values["router"]["mode"].as<std::string>(), "aggregated");
  EXPECT_FALSE(values["prefill"].IsDefined());
  EXPECT_EQ(values["decode"]["replicas"].as<int>(), 1);
  EXPECT_FALSE(values["worker"].IsDefined()) << "the whole context fits";
}

TEST(PlanValuesTest, AFileNameThatIsNoPathOfTheChartIsLeftOut) {
  PlannedModel model = Llama8b();
  model.file_name = "my model\": {}.gguf";
  const StatusOr<PlanReport> report = MakePlan(model, Processor(), kSmallLoad, kLoose);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(MustGiveValues(*report)["model"]["path"].as<std::string>(), "");
}

}  // namespace
}  // namespace baton
