// The rotary embedding of a config.json: rope_theta, rope_scaling, and rope_parameters, their newer
// form. Private to the folder reader; any thread.
#ifndef BATON_MODEL_HF_ROPE_H_
#define BATON_MODEL_HF_ROPE_H_

#include "src/model/hf_config.h"
#include "src/model/hf_json.h"

namespace baton::model {

// Adds ARCH.rope.* to the keys and fills rope_factors. kUnknownRopeType for a scaling that is not
// default, linear, dynamic, yarn or llama3 (phi3: default, longrope or su; ministral3: yarn);
// kUnsupportedValue for a variant of one that is not computed.
absl::Status ReadHfRope(const JsonObject& config, uint32_t head_dim, HfConfig& out);

}  // namespace baton::model

#endif  // BATON_MODEL_HF_ROPE_H_
