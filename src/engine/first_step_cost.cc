#include "src/engine/first_step_cost.h"

#include <algorithm>

#include "src/model/device_model.h"

namespace baton::engine {

using model::DeviceModel;
using model::ModelConfig;
using scheduler::DeviceLimits;
using scheduler::FindDevice;
using scheduler::FirstEstimate;
using scheduler::RooflineModel;
using scheduler::StepWeights;

RooflineModel RooflineModelOf(const ModelConfig& config, size_t step_bytes) {
  constexpr uint64_t kBytes = 2;  // of a bf16
  const uint64_t output_weights = uint64_t{config.vocab_size} * config.hidden_size;
  RooflineModel model;
  model.num_layers = config.num_layers;
  model.output_weight_bytes = std::min<uint64_t>(step_bytes, kBytes * output_weights);
  // One row reads its own experts only, but a chunk meets most of the others too.
  const uint64_t other_experts =
      uint64_t{3} * (config.num_experts - config.num_experts_used) * config.hidden_size;
  model.layer_weight_bytes = (step_bytes - model.output_weight_bytes) / config.num_layers +
                             kBytes * other_experts * config.ffn_size;
  model.layer_flops_per_row = 2 * config.WeightsPerRow() / config.num_layers;
  uint64_t products_per_key = 0;
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    if (!config.IsAttention(layer)) continue;
    products_per_key += config.ProductsPerKey(layer);
    if (!config.SharesKv(layer)) model.kv_bytes_per_token += kBytes * config.KvElements(layer);
  }
  // A product and a sum for each element of a score and of a weighted value.
  model.attention_flops_per_key = 2 * products_per_key / config.num_layers;
  model.output_flops_per_row = 2 * output_weights;
  model.num_launches = DeviceModel::KernelsAStep(config, model::StepKernels::kApart);
  return model;
}

double OutputRowTokens(const ModelConfig& config) {
  const double output_weights = static_cast<double>(config.vocab_size) * config.hidden_size;
  return output_weights / static_cast<double>(config.WeightsPerRow());
}

RooflineModel OfOneRank(const RooflineModel& whole, const ModelConfig& config, uint32_t num_ranks) {
  if (num_ranks == 1) return whole;
  RooflineModel out = whole;
  for (uint64_t* divided :
       {&out.layer_weight_bytes, &out.layer_flops_per_row, &out.attention_flops_per_key,
        &out.kv_bytes_per_token, &out.output_weight_bytes, &out.output_flops_per_row}) {
    *divided /= num_ranks;
  }
  // Twice a layer, in slices: the others' fp32 parts of the rank's slice, and their slices of the
  // sum in bf16.
  constexpr uint64_t kSliceBytes = 4 + 2;
  out.exchange_bytes_per_row = uint64_t{2} * config.num_layers * (num_ranks - 1) *
                               config.hidden_size * kSliceBytes / num_ranks;
  out.num_launches += 2 * config.num_layers + 1;
  return out;
}

StatusOr<StepWeights> FirstStepCost(std::string_view device, const RooflineModel& model) {
  const DeviceLimits* const limits = FindDevice(device);
  if (limits == nullptr) return NotFound("the limits of \"{}\" are not known", device);
  return FirstEstimate(*limits, model);
}

}  // namespace baton::engine
