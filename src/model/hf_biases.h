// Biases of the matrices that every layer has: which of them config.json wants, and which a folder
// holds. Private to the folder reader; pure; any thread.
#ifndef BATON_MODEL_HF_BIASES_H_
#define BATON_MODEL_HF_BIASES_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "src/model/gguf.h"
#include "src/model/hf_config.h"
#include "src/model/hf_json.h"

namespace baton::model {

// Reads attention_bias and mlp_bias. `model_type`: of a class that may be computed as another one
// (mistral as llama) and has none of its biases. kUnsupportedValue where no such bias is computed.
absl::Status ReadHfBiases(const JsonObject& config, std::string_view model_type, HfConfig& out);

// Whether the model has the bias that is called `gguf_name` in GGUF.
bool WantsHfBias(const HfConfig& config, std::string_view gguf_name);

// kUnknownTensor for such a bias of attention or of a feed-forward layer that the model does not
// want: its class in transformers would pass over it. OK for every other tensor.
absl::Status CheckHfBias(const HfConfig& config, const GgufTensor& tensor);

// kBadValue where no layer has a bias that the model wants: the model would run without. Where one
// layer has it, ReadModelConfig wants it in all. Convolutions of Mamba-2 are counted.
absl::Status CheckHfBiasesAreThere(const HfConfig& config, std::span<const GgufTensor> tensors);

// A vector of zeros, with its name in GGUF.
struct HfZeroBias {
  std::string name;
  uint64_t size = 0;
};
// Biases that every GGUF file of the architecture has and this folder, as its config.json says, has
// not: those of gpt_oss's attention and of lfm2_moe's routers.
std::vector<HfZeroBias> HfZeroBiasesOf(const HfConfig& config, std::span<const GgufTensor> tensors);

}  // namespace baton::model

#endif  // BATON_MODEL_HF_BIASES_H_
