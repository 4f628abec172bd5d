// The ids of everything that decides the bits of a model's answers, and the context that a model is
// loaded for. The rules are the same for every device. Pure; private to src/model.
#ifndef BATON_MODEL_NUMERICS_H_
#define BATON_MODEL_NUMERICS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "kvcache/kv_layout.h"
#include "src/base/status.h"
#include "src/model/model_config.h"

namespace baton::model {

// The parts of a numerics id.
struct NumericsParts {
  std::string_view weights_id;
  uint64_t tokenizer_id;
  std::string_view arithmetic;  // order and rounding of every operation
  kv::KvDtype kv_dtype;
  const ModelConfig* config;
  uint32_t num_ranks = 1;    // whose parts of sums are added in their order
  uint32_t max_context = 0;  // that the model is loaded for; matters with LongRoPE alone
  std::string fast;          // FastProducts::NumericsText; "": equal bits whatever the batch
};

// "weights=... tokenizer=... arithmetic=... sampling=... rope=... kv=... deterministic=...".
std::string NumericsText(const NumericsParts& parts);
// Its hash, 32 hex digits.
std::string NumericsId(std::string_view text);

// `wanted` tokens, 0 = the model's. InvalidArgument when that is more than the model's.
absl::StatusOr<uint32_t> ContextFor(const ModelConfig& config, uint32_t wanted);

}  // namespace baton::model

#endif  // BATON_MODEL_NUMERICS_H_
