#include "src/engine/first_step_cost.h"

#include <algorithm>

#include "src/model/device_model.h"

namespace baton {

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
  model.layer_flops_per_row = 2 * config.LayerWeightsPerRow();
  // A score and a weighted value: two operations each for every element of every query head.
  model.attention_flops_per_key = uint64_t{4} * config.q_size();
  model.kv_bytes_per_token = kBytes * 2 * config.num_layers * config.kv_size();
  model.output_flops_per_row = 2 * output_weights;
  model.num_launches = DeviceModel::KernelsAStep(config);
  return model;
}

StatusOr<StepWeights> FirstStepCost(std::string_view device, const RooflineModel& model) {
  const DeviceLimits* const limits = FindDevice(device);
  if (limits == nullptr) return NotFound("the limits of \"{}\" are not known", device);
  return FirstEstimate(*limits, model);
}

}  // namespace baton
