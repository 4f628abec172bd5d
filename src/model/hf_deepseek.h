// Parts that deepseek_v2 and deepseek_v3 folders alone have: keys of config.json, names of
// tensors, and the tensor that GGUF holds as two. Private to the folder reader; pure; any thread.
#ifndef BATON_MODEL_HF_DEEPSEEK_H_
#define BATON_MODEL_HF_DEEPSEEK_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "src/base/status.h"
#include "src/model/hf_config.h"
#include "src/model/hf_json.h"

namespace baton::model {

// Reads the sizes of heads and latents. Returns how many elements of a head rotate; out.latent gets
// the sizes that the tensors must have.
absl::StatusOr<uint32_t> ReadHfLatentHeads(const JsonObject& config, HfConfig& out);

// Reads the experts of `model_type` and how they are chosen.
absl::Status ReadHfSharedExperts(const JsonObject& config, std::string_view model_type,
                                 HfConfig& out);

// The part of a tensor's name in GGUF ("attn_q_a") for that after "model.layers.N." and before
// ".weight"; empty for another.
std::string_view LatentPartOfHf(std::string_view part);

// Whether a tensor "model.layers.N..." belongs to one of `layers`.
bool IsPredictionTensor(std::string_view name, const HfLayerRange& layers);

// kv_b_proj [heads, nope + value, latent] taken apart into what GGUF has: the keys' rows of each
// head transposed, k_b [heads, latent, nope], and the others, v_b [heads, value, latent].
// `element_bytes` each; the sizes of the outputs follow.
void SplitKvB(const HfLatentShape& shape, size_t element_bytes, std::span<const std::byte> kv_b,
              std::byte* k_b, std::byte* v_b);

}  // namespace baton::model

#endif  // BATON_MODEL_HF_DEEPSEEK_H_
