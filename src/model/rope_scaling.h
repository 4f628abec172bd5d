// RopeScaling: how a model stretches its rotary embedding to contexts longer than it was trained
// on. Pure; any thread.
//
// Linear: every frequency is divided by the factor (Chen et al., "Extending context window of large
// language models via positional interpolation", 2023). YaRN: fast pairs keep their frequency, slow
// ones are divided, a ramp between, and cos and sin grow by 1 + 0.1 ln(factor) (Peng et al., "YaRN:
// efficient context window extension", 2023). Llama 3's scaling comes as frequency factors
// (rope_freqs.weight). LongRoPE has two sets of factors (Ding et al., "LongRoPE: extending LLM
// context window beyond 2 million tokens", 2024): one for contexts up to original_context, one for
// longer ones. The context that a model is loaded for decides, so that keys in the cache never have
// to turn again.
#ifndef BATON_MODEL_ROPE_SCALING_H_
#define BATON_MODEL_ROPE_SCALING_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "src/model/architecture.h"
#include "src/model/gguf.h"

namespace baton::model {

enum class RopeScalingType : uint8_t { kNone = 0, kLinear = 1, kYarn = 2, kLong = 3 };

// The rope.scaling.* keys of a model; every number is finite and within its range.
struct RopeScaling {
  RopeScalingType type = RopeScalingType::kNone;
  double factor = 1.0;            // [1, 1e6]; of kNone 1
  uint32_t original_context = 0;  // of kYarn, kLong: tokens the model was first trained for
  double beta_fast = 32.0;        // of kYarn: turns in original_context above which nothing changes
  double beta_slow = 1.0;         // of kYarn: turns below which all is divided
  // kYarn: cos and sin times this and 1 + 0.1 ln(factor). kLong: times this alone.
  double attention_factor = 1.0;
  bool truncates = true;     // of kYarn: the ramp begins and ends at whole pairs
  double score_scale = 1.0;  // of kYarn over latent rows: of q * k, beside cos and sin
};

// The tensors of the two sets of factors of kLong [rope_dims / 2].
inline constexpr std::string_view kShortFactorsName = "rope_factors_short.weight";
inline constexpr std::string_view kLongFactorsName = "rope_factors_long.weight";

// True for a file of an architecture with LongRoPE that names it or holds one of its tensors.
bool HasLongRope(const GgufFile& file, std::string_view architecture);
// Reads the keys of LongRoPE; errors as ReadRopeScaling's.
absl::StatusOr<RopeScaling> ReadLongRope(const GgufFile& file, std::string_view architecture,
                                         uint32_t context_length);
// Whether a model that is loaded for `max_context` tokens takes the long set.
bool UsesLongFactors(const RopeScaling& scaling, uint32_t max_context);

// Reads ARCH.rope.scaling.*. Unimplemented naming the type or key that is not supported;
// InvalidArgument for a number out of range.
absl::StatusOr<RopeScaling> ReadRopeScaling(const GgufFile& file, const ArchitectureTraits& traits,
                                            uint32_t context_length);

// The divisors of the frequencies of a head [dims / 2]; `factors` (rope_freqs.weight, or the set of
// LongRoPE that holds) may be empty.
std::vector<double> RopeDivisors(const RopeScaling& scaling, uint32_t dims, double base,
                                 std::span<const float> factors);
// The factor of cos and sin by YaRN: 1 + 0.1 * scale * ln(factor); 1 up to a factor of 1.
double AmplitudeOfYarn(double factor, double scale);
// The number that cos and sin are multiplied by.
double RopeAmplitude(const RopeScaling& scaling);

// "yarn:0x...": every field that changes results; "none". Part of weights_id.
std::string CanonicalText(const RopeScaling& scaling);

}  // namespace baton::model

#endif  // BATON_MODEL_ROPE_SCALING_H_
