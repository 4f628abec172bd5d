// The keys of mixtures whose experts an ExpertRule chooses: leading dense layers, widths, groups,
// scores. Private to src/model; any thread.
#ifndef BATON_MODEL_EXPERT_KEYS_H_
#define BATON_MODEL_EXPERT_KEYS_H_

#include "src/base/status.h"
#include "src/model/architecture_keys.h"
#include "src/model/model_config.h"

namespace baton::model {

// The widths of dense layers, experts and shared experts, and ModelConfig::expert_rule
// (traits->scored_experts).
absl::Status ReadScoredExperts(const ArchitectureKeys& keys, ModelConfig& config);

}  // namespace baton::model

#endif  // BATON_MODEL_EXPERT_KEYS_H_
