// Parts that only folders of nemotron_h have: the keys of its layers, each of one kind, and the
// names of its tensors. Private to the folder reader; pure; any thread.
#ifndef BATON_MODEL_HF_MAMBA_H_
#define BATON_MODEL_HF_MAMBA_H_

#include <string>
#include <string_view>

#include "src/base/status.h"
#include "src/model/hf_json.h"

namespace baton::model {

struct HfConfig;

// Reads which layer is what (hybrid_override_pattern, layers_block_type), the shape of Mamba-2, of
// heads and of feed-forward layers, and what may only have one value. Errors as ReadHfConfig.
absl::Status ReadHfMamba(const JsonObject& config, HfConfig& out);

// The name that another model has for a tensor "backbone.X", or "model.X" as transformers 5 has it
// in memory; of any other tensor its own.
std::string NameOfBackbone(std::string_view name);

}  // namespace baton::model

#endif  // BATON_MODEL_HF_MAMBA_H_
