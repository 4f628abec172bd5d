// The part of a ModelConfig that describes gated delta nets and layers of Mamba-2.
// Private to src/model; pure; any thread.
#ifndef BATON_MODEL_DELTA_CONFIG_H_
#define BATON_MODEL_DELTA_CONFIG_H_

#include <cstdint>
#include <string_view>

#include "src/base/status.h"
#include "src/model/gguf.h"
#include "src/model/model_config.h"

namespace baton::model {

// Which blocks are gated delta nets, one by one. Files without it have full_attention_interval.
inline constexpr std::string_view kDeltaLayersKey = "attention.recurrent_layers";

// Reads the keys of delta nets (ssm.*, kDeltaLayersKey) and of multi-token prediction
// (nextn_predict_layers). On entry num_layers is block_count; the layers of prediction are taken
// off. Errors as ReadModelConfig.
absl::Status ReadDeltaNets(const GgufFile& file, ModelConfig& config);

// Reads the keys of models whose layers are of Mamba-2, of attention, or feed-forward layers alone:
// ssm.*, feed_forward_length and attention.head_count_kv, whose numbers say which layer is what.
// Errors as ReadModelConfig.
absl::Status ReadMambaLayers(const GgufFile& file, ModelConfig& config);

// ModelConfig::WeightsPerRow of such a model.
uint64_t MambaWeightsPerRow(const ModelConfig& config);

// Unimplemented when the state of one sequence takes more blocks than a layout may have.
absl::Status CheckState(const ModelConfig& config);

}  // namespace baton::model

#endif  // BATON_MODEL_DELTA_CONFIG_H_
