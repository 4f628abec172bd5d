// Values of a plan against the schema of the chart that takes them.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <regex>
#include <string>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "yaml-cpp/yaml.h"

#include "tests/cli/plan/planned_llama.h"

namespace baton::cli {
namespace {

using nlohmann::json;

std::string Violation(const YAML::Node& node, const json& schema, const json& root);

std::string MapViolation(const YAML::Node& node, const json& schema, const json& root) {
  if (schema.value("type", "") != "object") return "is a map";
  const json properties = schema.value("properties", json::object());
  const bool is_closed =
      schema.contains("additionalProperties") && schema["additionalProperties"] == false;
  for (const auto& entry : node) {
    const std::string key = entry.first.as<std::string>();
    if (!properties.contains(key) && is_closed) return key + " is not known";
    if (!properties.contains(key)) continue;
    const std::string below = Violation(entry.second, properties[key], root);
    if (!below.empty()) return key + ": " + below;
  }
  return "";
}

std::string ScalarViolation(const YAML::Node& node, const json& schema) {
  const std::string& text = node.Scalar();
  if (schema.value("type", "") == "integer") {
    const bool is_whole = std::regex_match(text, std::regex("[0-9]+")) && node.Tag() != "!";
    return is_whole ? "" : text + " is no whole number";
  }
  if (schema.contains("pattern") &&
      !std::regex_search(text, std::regex(schema["pattern"].get<std::string>()))) {
    return text + " does not match " + schema["pattern"].get<std::string>();
  }
  const json choices = schema.value("enum", json::array());
  const bool is_one =
      choices.empty() || std::find(choices.begin(), choices.end(), text) != choices.end();
  return is_one ? "" : text + " is none of " + choices.dump();
}

// The part of JSON Schema that the chart's schema uses for these values: "" when `node` is right.
std::string Violation(const YAML::Node& node, const json& schema, const json& root) {
  if (schema.contains("$ref")) {
    const std::string name = schema["$ref"].get<std::string>().substr(sizeof("#/$defs/") - 1);
    return Violation(node, root["$defs"][name], root);
  }
  if (node.IsMap()) return MapViolation(node, schema, root);
  if (node.IsScalar()) return ScalarViolation(node, schema);
  return schema.value("type", "") == "array" ? "" : "is a list";
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

TEST(PlanValuesTest, TheTypeOfKAndVIsThatOfTheMeasurement) {
  const PlanReport bf16 = MustPlan(Processor(), kSmallLoad, kLoose);
  PlannedDevice device = Processor();
  device.measured->kv_dtype = kv::KvDtype::kQ8;
  const PlanReport q8 = MustPlan(device, kSmallLoad, kLoose);
  EXPECT_EQ(MustGiveValues(q8)["worker"]["kvDtype"].as<std::string>(), "q8");
  // 128 elements a head, each a byte, and four scales of two.
  EXPECT_EQ(q8.cautious.input.kv_bytes_per_token * 256,
            bf16.cautious.input.kv_bytes_per_token * 136);
}

TEST(PlanValuesTest, AFileNameThatIsNoPathOfTheChartIsLeftOut) {
  PlannedModel model = Llama8b();
  model.file_name = "my model\": {}.gguf";
  const StatusOr<PlanReport> report = MakePlan(model, Processor(), kSmallLoad, kLoose);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(MustGiveValues(*report)["model"]["path"].as<std::string>(), "");
}

}  // namespace
}  // namespace baton::cli
