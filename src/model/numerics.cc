#include "src/model/numerics.h"

#include "kernels/kv_q8.h"
#include "kernels/sampling.h"
#include "src/base/hex.h"
#include "src/base/xxh3.h"

namespace baton::model {

using kernels::kQ8Numerics;
using kernels::kSamplingRules;
using kv::KvDtype;
using kv::KvDtypeName;

std::string NumericsText(const NumericsParts& parts) {
  std::string text = fmt::format(
      "weights={} tokenizer={} arithmetic={} sampling={} rope={} kv={} deterministic={}",
      parts.weights_id, HexFromU64(parts.tokenizer_id), parts.arithmetic, kSamplingRules,
      parts.config->rope_interleaved ? "interleaved" : "halves",
      parts.kv_dtype == KvDtype::kQ8 ? kQ8Numerics : KvDtypeName(parts.kv_dtype),
      parts.fast.empty() ? 1 : 0);
  if (!parts.fast.empty()) text += " " + parts.fast;
  const RopeScaling& scaling = parts.config->rope_scaling;
  if (scaling.type == RopeScalingType::kLong) {
    const bool is_long = UsesLongFactors(scaling, parts.max_context);
    text += fmt::format(" rope_factors={}", is_long ? "long" : "short");
  }
  if (parts.num_ranks > 1) text += fmt::format(" ranks={}", parts.num_ranks);
  return text;
}

std::string NumericsId(std::string_view text) {
  const Hash128 digest = Xxh3Hash128(text);
  return HexFromU64(digest.hi) + HexFromU64(digest.lo);
}

absl::StatusOr<uint32_t> ContextFor(const ModelConfig& config, uint32_t wanted) {
  if (wanted == 0) return config.context_length;
  if (wanted > config.context_length) {
    return InvalidArgument("--max-context {} is beyond the model's context of {} tokens", wanted,
                           config.context_length);
  }
  return wanted;
}

}  // namespace baton::model
