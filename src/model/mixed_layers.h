// The reader of ModelConfig for models whose layers differ in shape
// (ArchitectureTraits::mixed_layers: gemma4): heads of local layers, layers that share another
// layer's K and V, feed-forward sizes, the vectors that a token gives each layer, the cap of
// logits. Pure; private to src/model; any thread.
#ifndef BATON_MODEL_MIXED_LAYERS_H_
#define BATON_MODEL_MIXED_LAYERS_H_

#include <cstdint>
#include <string>

#include "src/base/status.h"
#include "src/model/architecture_keys.h"
#include "src/model/model_config.h"

namespace baton::model {

// Elements of a token's vector of one layer; published models have 256.
inline constexpr uint32_t kMaxPerLayerSize = 4096;
// Cap of the logits. Published models have 30.
inline constexpr double kMinSoftcap = 1e-3;
inline constexpr double kMaxSoftcap = 1e6;

// Each fails as ReadModelConfig does. Head sizes, and the number of heads, before the layers' kinds
// are known.
absl::Status ReadMixedHeads(const ArchitectureKeys& keys, ModelConfig& config);
// feed_forward_length: a number, or one for each layer.
absl::Status ReadMixedFeedForward(const ArchitectureKeys& keys, ModelConfig& config);
// Reads all other keys. ModelConfig::layer_is_local is filled in before.
absl::Status ReadMixedLayers(const ArchitectureKeys& keys, ModelConfig& config);

// The fields that the three functions above fill in, as text; part of CanonicalText.
std::string CanonicalMixedLayers(const ModelConfig& config);

// ModelConfig::WeightsPerRow of such a model.
uint64_t MixedWeightsPerRow(const ModelConfig& config);

}  // namespace baton::model

#endif  // BATON_MODEL_MIXED_LAYERS_H_
