// The keys that may stand in a quantization_config. THE table says of each object which keys are
// read, which cannot change weights, and which may only have their neutral value. Private to the
// folder reader; pure; any thread.
#ifndef BATON_MODEL_HF_QUANTIZATION_KEYS_H_
#define BATON_MODEL_HF_QUANTIZATION_KEYS_H_

#include <cstdint>

#include "src/base/status.h"
#include "src/model/hf_json.h"

namespace baton::model {

// Which object it is: the quantization_config of a method, or one that lies in it.
enum class HfQuantObject : uint8_t {
  kFp8 = 0,
  kMxfp4 = 1,
  kAwq = 2,
  kGptq = 3,
  kRule = 4,        // one of `dynamic`, of awq and gptq
  kCompressed = 5,  // compressed-tensors
  kGroup = 6,       // one of its config_groups, which modelopt has too
  kWeights = 7,     // `weights` of a group
  kSparsity = 8,    // its sparsity_config
  kModelOpt = 9,
  kModelOptOuter = 10,  // around the `quantization` of modelopt's older form
  kLayer = 11,          // one of modelopt's quantized_layers
  kAutoRound = 12,
  kAutoRoundRule = 13,  // one of its extra_config
};

// kUnsupportedValue naming the first refused key of `object`, in the order of names. An unknown key
// is refused unless its value is null or empty. A known key is refused when it has a value other
// than its neutral ones.
absl::Status CheckHfQuantizationKeys(const JsonObject& object, HfQuantObject kind);

}  // namespace baton::model

#endif  // BATON_MODEL_HF_QUANTIZATION_KEYS_H_
