// The part of a ModelConfig that describes gated delta nets and layers of Mamba-2, and where their
// fixed states lie.
// Private to src/model; pure; any thread.
#ifndef BATON_MODEL_DELTA_CONFIG_H_
#define BATON_MODEL_DELTA_CONFIG_H_

#include <cstddef>
#include <cstdint>

#include "src/base/status.h"
#include "src/model/gguf.h"
#include "src/model/model_config.h"

namespace baton::model {

// Reads the keys of delta nets (ssm.*, full_attention_interval) and of multi-token prediction
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

// The state of a delta net lies in the slices of the next layer of attention, after those of the
// delta nets between that layer and the one before; there, from byte StateOffset on
// (KvLayout::state_blocks). Delta nets after the last layer of attention share its slices.
uint32_t StateSlice(const ModelConfig& config, uint32_t layer);
size_t StateOffset(const ModelConfig& config, uint32_t layer);

// Slices of all blocks of a sequence that are final once `layer` has stored its part. Any model.
uint32_t NumStoredSlices(const ModelConfig& config, uint32_t layer);

// KvLayout::state_blocks for slices of so many bytes.
uint32_t StateBlocksOf(const ModelConfig& config, size_t slice_bytes);

}  // namespace baton::model

#endif  // BATON_MODEL_DELTA_CONFIG_H_
