// The cost that a scheduler may expect of a GPU before the first step was measured: the model's
// bytes and operations over the device's limits (scheduler/roofline.h). Pure; any thread.
#ifndef BATON_ENGINE_FIRST_STEP_COST_H_
#define BATON_ENGINE_FIRST_STEP_COST_H_

#include <cstddef>
#include <string_view>

#include "scheduler/roofline.h"
#include "src/base/status.h"
#include "src/model/model_config.h"

namespace baton::engine {

// A model as its device computes it. `step_bytes` are the weights that a step with logits reads
// (ForwardModel::bytes_read_per_step). The output layer, and the experts that a row does not
// choose, count as bf16: where they are packed the estimate is too slow, and first chunks are
// smaller. So does KV, which a caller that stores another type sets.
scheduler::RooflineModel RooflineModelOf(const model::ModelConfig& config, size_t step_bytes);

// The work of one row of the output layer, in rows of all other layers but their attention.
double OutputRowTokens(const model::ModelConfig& config);

// The share of one of `num_ranks` devices in such a step; several ranks on one device do all of it.
scheduler::RooflineModel OfOneRank(const scheduler::RooflineModel& whole,
                                   const model::ModelConfig& config, uint32_t num_ranks);

// NotFound naming the device when its limits are not known.
StatusOr<scheduler::StepWeights> FirstStepCost(std::string_view device,
                                               const scheduler::RooflineModel& model);

}  // namespace baton::engine

#endif  // BATON_ENGINE_FIRST_STEP_COST_H_
