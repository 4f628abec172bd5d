// The keys of heads over latent rows (deepseek2). Private to src/model; any thread.
#ifndef BATON_MODEL_LATENT_KEYS_H_
#define BATON_MODEL_LATENT_KEYS_H_

#include <string_view>

#include "src/base/status.h"
#include "src/model/architecture_keys.h"
#include "src/model/model_config.h"

namespace baton::model {

// True for the keys below "attention." that only these files have.
bool IsLatentKey(std::string_view name);

// Heads: files of before April 2025 state heads that are not absorbed, newer ones both. Fills
// num_heads, num_kv_heads, head_dim, rope_dims, the sizes of ModelConfig's latent part, and the
// scale of attention without that of YaRN.
absl::Status ReadLatentHeads(const ArchitectureKeys& keys, ModelConfig& config);

}  // namespace baton::model

#endif  // BATON_MODEL_LATENT_KEYS_H_
