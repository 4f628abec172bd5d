// The keys of a config.json whose layers differ in shape (gemma4_text). Private to the folder
// reader; pure; any thread.
#ifndef BATON_MODEL_HF_MIXED_LAYERS_H_
#define BATON_MODEL_HF_MIXED_LAYERS_H_

#include "src/base/status.h"
#include "src/model/hf_config.h"
#include "src/model/hf_json.h"

namespace baton::model {

// Adds what ReadMixedHeads and its neighbours (mixed_layers.h) and the window and rotation of such
// a model are read from. Fails as ReadHfConfig does. Both forms of the heads are read:
// global_head_dim and num_global_key_value_heads of published files, and per_layer_config, which
// transformers 5.24 writes.
absl::Status ReadHfMixedLayers(const JsonObject& config, HfConfig& out);

}  // namespace baton::model

#endif  // BATON_MODEL_HF_MIXED_LAYERS_H_
