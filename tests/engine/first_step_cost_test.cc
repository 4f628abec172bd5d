#include "src/engine/first_step_cost.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "src/model/architecture.h"

namespace baton::engine {

using model::ModelConfig;
using namespace scheduler;  // NOLINT(google-build-using-namespace)

namespace {

using nlohmann::json;
using ::testing::HasSubstr;

ModelConfig Llama8b() {
  ModelConfig config;
  config.traits = model::FindArchitecture("llama");
  config.num_layers = 32;
  config.hidden_size = 4096;
  config.ffn_size = 14336;
  config.num_heads = 32;
  config.num_kv_heads = 8;
  config.head_dim = 128;
  config.vocab_size = 128'256;
  return config;
}

// All matrices of layers and output; norms are 0.003 % more.
constexpr size_t kStepBytes = size_t{32} * 436'207'616 + 1'050'673'152;

TEST(FirstStepCostTest, CountsBytesAndOperationsOfAModel) {
  const RooflineModel model = RooflineModelOf(Llama8b(), kStepBytes);
  EXPECT_EQ(model.num_layers, 32u);
  EXPECT_EQ(model.layer_weight_bytes, 436'207'616u);
  EXPECT_EQ(model.layer_flops_per_row, 436'207'616u);
  EXPECT_EQ(model.attention_flops_per_key, 16'384u);
  EXPECT_EQ(model.kv_bytes_per_token, 131'072u);
  EXPECT_EQ(model.output_weight_bytes, 1'050'673'152u);
  EXPECT_EQ(model.output_flops_per_row, 1'050'673'152u);
  EXPECT_EQ(model.num_launches, 292u);
}

TEST(FirstStepCostTest, AnOutputRowIsAShareOfATokensWork) {
  // 525,336,576 weights beside 6,979,321,856.
  EXPECT_NEAR(OutputRowTokens(Llama8b()), 0.0753, 1e-4);
}

// A chunk may meet every expert, and a row pays for its own only.
TEST(FirstStepCostTest, AStepReadsAllExpertsAndARowMultipliesItsOwn) {
  ModelConfig config = Llama8b();
  config.num_experts = 64;
  config.num_experts_used = 8;
  config.ffn_size = 1024;
  const uint64_t expert = uint64_t{3} * 4096 * 1024;
  const uint64_t others = uint64_t{4096} * (2 * 4096 + 2 * 1024 + 64);  // attention and router
  const size_t read_by_a_row = 32 * 2 * (others + 8 * expert) + 1'050'673'152u;
  const RooflineModel model = RooflineModelOf(config, read_by_a_row);
  EXPECT_EQ(model.layer_weight_bytes, 2 * (others + 64 * expert));
  EXPECT_EQ(model.layer_flops_per_row, 2 * (others + 8 * expert));
  EXPECT_EQ(model.num_launches, 32u * 13 + 4);
}

TEST(FirstStepCostTest, AKnownDeviceDecodesWithinFourTimesItsLimit) {
  const StatusOr<StepWeights> weights =
      FirstStepCost("NVIDIA H200", RooflineModelOf(Llama8b(), kStepBytes));
  ASSERT_TRUE(weights.ok()) << weights.status();
  StepShape shape;
  shape.AddDecode(1023);
  const int64_t us = StepCost(*weights).PredictUs(shape);
  EXPECT_GT(us, 1e6 / 284);
  EXPECT_LT(us, 4e6 / 284);
}

TEST(FirstStepCostTest, ARankDoesItsShareAndExchangesSums) {
  const RooflineModel whole = RooflineModelOf(Llama8b(), kStepBytes);
  EXPECT_EQ(OfOneRank(whole, Llama8b(), 1).layer_weight_bytes, whole.layer_weight_bytes);
  EXPECT_EQ(OfOneRank(whole, Llama8b(), 1).exchange_bytes_per_row, 0u);
  const RooflineModel rank = OfOneRank(whole, Llama8b(), 4);
  EXPECT_EQ(rank.layer_weight_bytes, whole.layer_weight_bytes / 4);
  EXPECT_EQ(rank.kv_bytes_per_token, whole.kv_bytes_per_token / 4);
  EXPECT_EQ(rank.exchange_bytes_per_row, 2u * 32 * 3 * 1024 * 6);
  EXPECT_EQ(rank.num_launches, whole.num_launches + 65);
  // 2,048 rows: a quarter of 36 ms of products, and 2.4 GB from the others.
  StepShape chunk;
  chunk.AddPrefill(0, 2048);
  const StepTimes times = StepLimit(*FindDevice("NVIDIA H200"), rank, chunk);
  EXPECT_NEAR(times.exchanges_us, 5'369, 1);
  EXPECT_LT(times.layers_us, 0.26 * StepLimit(*FindDevice("NVIDIA H200"), whole, chunk).layers_us);
}

TEST(FirstStepCostTest, AnUnknownDeviceIsNamed) {
  const absl::Status status =
      FirstStepCost("NVIDIA Unheard", RooflineModelOf(Llama8b(), kStepBytes)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"NVIDIA Unheard\""));
}

// ---- Measured steps: what gpu_check's stage "model" wrote on a GPU.

// Copies are what the table's bandwidth was measured by; reading alone may be a little faster.
constexpr double kFastest = 0.85;
// The first estimate may be off by this much before chunks are noticeably too long.
constexpr double kSlowest = 2.0;

RooflineModel ModelOf(const json& model) {
  ModelConfig config;
  config.traits = model::FindArchitecture("llama");
  config.num_layers = model.at("num_layers");
  config.hidden_size = model.at("hidden_size");
  config.ffn_size = model.at("ffn_size");
  config.num_heads = model.at("num_heads");
  config.num_kv_heads = model.at("num_kv_heads");
  config.head_dim = model.at("head_dim");
  config.vocab_size = model.at("vocab_size");
  return RooflineModelOf(config, model.at("step_bytes"));
}

StepShape ShapeOf(const json& step) {
  StepShape shape;
  const uint32_t context = step.at("context");
  const uint32_t prefill_tokens = step.at("prefill_tokens");
  if (prefill_tokens > 0) {
    shape.AddPrefill(context - prefill_tokens, prefill_tokens);
    shape.logit_rows = 1;
  }
  for (uint32_t rows = step.at("decode_rows"); rows > 0; --rows) shape.AddDecode(context - 1);
  return shape;
}

// "" when every measured step of the result lies between the limit and the first estimate.
std::string Disagreement(const json& result, int* num_steps) {
  const DeviceLimits* const device = FindDevice(result.at("product").get<std::string>());
  if (device == nullptr) return "";  // a device that nobody listed predicts nothing
  const RooflineModel model = ModelOf(result.at("model"));
  const StepCost cost(FirstEstimate(*device, model));
  RooflineModel without_launches = model;
  without_launches.num_launches = 0;
  for (const json& check : result.at("checks")) {
    if (!check.contains("step")) continue;
    ++*num_steps;
    const StepShape shape = ShapeOf(check["step"]);
    const double limit_us = StepLimit(*device, without_launches, shape).total_us();
    const auto estimate_us = static_cast<double>(cost.PredictUs(shape));
    const double us = check.at("median_us");
    if (us >= kFastest * limit_us && us <= kSlowest * estimate_us) continue;
    return check.at("name").get<std::string>() + ": " + std::to_string(us) + " us, limit " +
           std::to_string(limit_us) + ", first estimate " + std::to_string(estimate_us);
  }
  return "";
}

json ResultWith(double decode_us) {
  json result = json::parse(R"({"product": "NVIDIA H200", "checks": [{"name": "exact"},
      {"name": "decode 1 x 1k", "step": {"decode_rows": 1, "prefill_tokens": 0, "context": 1024}}],
      "model": {"num_layers": 32, "hidden_size": 4096, "ffn_size": 14336, "num_heads": 32,
      "num_kv_heads": 8, "head_dim": 128, "vocab_size": 128256, "step_bytes": 15009316864}})");
  result["checks"][1]["median_us"] = decode_us;
  return result;
}

TEST(MeasuredStepsTest, StepsOutsideWhatTheDeviceCanDoAreNoticed) {
  int num_steps = 0;
  EXPECT_EQ(Disagreement(ResultWith(4'000), &num_steps), "");
  EXPECT_EQ(num_steps, 1);
  EXPECT_THAT(Disagreement(ResultWith(2'000), &num_steps), HasSubstr("decode 1 x 1k"));
  EXPECT_THAT(Disagreement(ResultWith(50'000), &num_steps), HasSubstr("first estimate"));
}

TEST(MeasuredStepsTest, AgreesWithStepsMeasuredOnGpus) {
  const char* root = std::getenv("BATON_SOURCE_DIR");
  const std::filesystem::path folder =
      std::filesystem::path(root == nullptr ? "." : root) / "benchmarks" / "results";
  int num_steps = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() != ".json" || !name.starts_with("gpu_check_")) continue;
    const json result = json::parse(std::ifstream(entry.path()));
    if (result.value("body", "") != "gpu" || !result.contains("model")) continue;
    EXPECT_EQ(Disagreement(result, &num_steps), "") << name;
  }
  if (num_steps == 0) GTEST_SKIP() << "benchmarks/results holds no step measured on a GPU";
}

}  // namespace
}  // namespace baton::engine
