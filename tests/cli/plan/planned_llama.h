// A model, two devices and loads for tests of plans.
#ifndef BATON_TESTS_CLI_PLAN_PLANNED_LLAMA_H_
#define BATON_TESTS_CLI_PLAN_PLANNED_LLAMA_H_

#include <utility>

#include "gtest/gtest.h"

#include "src/cli/plan/plan_report.h"
#include "src/model/architecture.h"

namespace baton::cli {

inline PlannedModel Llama8b() {
  PlannedModel model{
      .id = "llama", .file_name = "llama-8b.gguf", .file_bytes = 16'000'000'000, .config = {}};
  model::ModelConfig& config = model.config;
  config.name = "Llama 8B";
  config.traits = model::FindArchitecture("llama");
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

inline PlannedDevice H200() {
  PlannedDevice device;
  device.name = "NVIDIA H200";
  device.limits = scheduler::FindDevice(device.name);
  device.memory_bytes = device.limits->memory_bytes;
  return device;
}

// 1 ms a prompt token; 4 ms a decode step and 1 ms a row; the slowest repetition took twice that.
inline PlannedDevice Processor() {
  plan::MeasuredWeights fastest = {
      .prefill = {.fixed_us = 0, .prefill_token_us = 1'000, .decode_row_us = 0, .key_us = 0},
      .decode = {.fixed_us = 4'000, .prefill_token_us = 0, .decode_row_us = 1'000, .key_us = 0}};
  plan::MeasuredWeights slowest = {
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

inline constexpr plan::PlanLoad kLoad = {
    .rate_per_s = 4, .input_tokens = 2048, .output_tokens = 256};
inline constexpr plan::PlanObjective kObjective = {.ttft_us = 500'000, .itl_us = 50'000};
inline constexpr plan::PlanLoad kSmallLoad = {
    .rate_per_s = 1, .input_tokens = 64, .output_tokens = 33};
inline constexpr plan::PlanObjective kLoose = {.ttft_us = 2'000'000, .itl_us = 300'000};
// 16 tokens beside a row take 21 ms at best.
inline constexpr plan::PlanObjective kTight = {.ttft_us = 2'000'000, .itl_us = 20'000};

inline PlanReport MustPlan(const PlannedDevice& device, const plan::PlanLoad& load,
                           const plan::PlanObjective& objective) {
  StatusOr<PlanReport> report = MakePlan(Llama8b(), device, load, objective);
  EXPECT_TRUE(report.ok()) << report.status();
  return report.ok() ? *std::move(report) : PlanReport();
}

}  // namespace baton::cli

#endif  // BATON_TESTS_CLI_PLAN_PLANNED_LLAMA_H_
