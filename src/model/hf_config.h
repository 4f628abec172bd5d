// HfConfig: the config.json of a Hugging Face model folder, turned into the metadata keys that the
// same model has in a GGUF file (names and meanings: llama.cpp's converter). Pure; any thread.
#ifndef BATON_MODEL_HF_CONFIG_H_
#define BATON_MODEL_HF_CONFIG_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/delta_shape.h"
#include "src/base/status.h"
#include "src/model/architecture.h"
#include "src/model/gguf_writer.h"
#include "src/model/hf_quantization.h"

namespace baton::model {

// Sizes of kv_b_proj [heads * (nope + value), latent].
struct HfLatentShape {
  uint32_t heads = 0;
  uint32_t nope = 0;
  uint32_t value = 0;
  uint32_t latent = 0;
};

// Layers [begin, end); none at first.
struct HfLayerRange {
  uint32_t begin = 0;
  uint32_t end = 0;
};

// The values that the tensors of the folder must agree with, and the keys.
struct HfConfig {
  const ArchitectureTraits* traits = nullptr;  // constant data
  bool tied = false;                           // tie_word_embeddings
  bool says_tied = false;                      // the key is there
  bool has_images = false;                     // of a model that reads images: the text part
  uint32_t num_heads = 0;
  uint32_t num_kv_heads = 0;
  uint32_t num_experts = 0;  // 0: no mixture
  HfQuantization quantization;
  HfLatentShape latent;             // of traits->latent_kv
  HfLayerRange prediction_layers;   // left out: they predict tokens further ahead
  uint32_t num_layers = 0;          // of a model with gated delta nets, where no key has it yet
  std::vector<bool> delta_layers;   // which those are, where no interval of attention says it
  kernels::DeltaShape delta;        // of those, or of Mamba-2
  uint32_t num_conv_biases = 0;     // layers of Mamba-2 whose convolution has a bias
  std::vector<float> rope_factors;  // llama 3's scaling, LongRoPE's short set, or empty
  std::vector<float> long_factors;  // LongRoPE's long set, or empty
  GgufWriter keys;                  // general.architecture and ARCH.*
  // Biases that the folder has (hf_biases.h).
  bool has_qkv_biases = false;
  bool has_output_biases = false;  // of o_proj
  bool has_mlp_biases = false;
  bool has_choice_biases = true;  // of routers whose scores choose
};

// Reads `text`. Fails with a FolderErrorCode: kBadJson, kMissingKey, kBadValue,
// kUnknownArchitecture, kUnknownRopeType, kUnsupportedValue or kQuantized. A value that changes the
// result and is not computed is refused by name, never ignored, and so is a key that is not known
// (hf_keys.h).
absl::StatusOr<HfConfig> ReadHfConfig(std::string_view text);

// True if the attention kernels compute heads of `dim` elements.
bool IsHfHeadDim(uint32_t dim);

// The sizes of heads that they compute, as the end of an error's sentence.
std::string HfHeadDimRange();

}  // namespace baton::model

#endif  // BATON_MODEL_HF_CONFIG_H_
