#include "src/model/rope_scaling.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/rope_table.h"
#include "src/base/quoted_text.h"
#include "src/model/architecture.h"

namespace baton::model {

using kernels::Logarithm;

namespace {

constexpr double kMaxFactor = 1e6;
constexpr double kPi = 3.14159265358979323846;

// Range of a number of a scaling.
struct DoubleRange {
  double min;
  double max;
};

absl::StatusOr<double> RangedDouble(const GgufFile& file, const std::string& key, double fallback,
                                    DoubleRange range) {
  BATON_ASSIGN_OR_RETURN(const double value, file.DoubleOr(key, fallback));
  if (!(value >= range.min && value <= range.max)) {
    return InvalidArgument("key \"{}\" is {}, supported is [{}, {}]", key, value, range.min,
                           range.max);
  }
  return value;
}

// Some files say 0 where nothing is scaled; llama.cpp reads it as 1.
absl::Status ReadFactor(const GgufFile& file, const std::string& prefix, RopeScaling& out) {
  const std::string key = prefix + "factor";
  BATON_ASSIGN_OR_RETURN(out.factor, file.DoubleOr(key, 1.0));
  if (out.factor == 0.0) out.factor = 1.0;
  if (out.factor >= 1.0 && out.factor <= kMaxFactor) return OkStatus();
  return InvalidArgument("key \"{}\" is {}, supported is [1, {}], and 0 for none", key, out.factor,
                         kMaxFactor);
}

// yarn_attn_factor: llama.cpp's converter writes the attention_factor of a config.json there, which
// is the whole amplitude, also beside mscale_all_dim (yarn_log_multiplier). attn_factor is what the
// usual amplitude is multiplied by.
absl::Status ReadWholeAmplitude(const GgufFile& file, const std::string& prefix, RopeScaling& out) {
  const std::string key = prefix + "yarn_attn_factor";
  if (file.FindValue(key) == nullptr) return OkStatus();
  const DoubleRange range =
      out.type == RopeScalingType::kYarn ? DoubleRange{1e-2, 1e2} : DoubleRange{1.0, 1.0};
  BATON_ASSIGN_OR_RETURN(const double amplitude, RangedDouble(file, key, 1.0, range));
  if (out.type != RopeScalingType::kYarn) return OkStatus();
  const std::string other_key = prefix + "attn_factor";
  BATON_ASSIGN_OR_RETURN(const double other, file.DoubleOr(other_key, 1.0));
  if (other != 1.0) {
    return Unimplemented("key \"{}\" is {} beside \"{}\" {}: only one of them is read", key,
                         amplitude, other_key, other);
  }
  // As a folder gives it, so that both forms have the same weights_id.
  out.attention_factor = static_cast<float>(amplitude / (1.0 + 0.1 * Logarithm(out.factor)));
  return OkStatus();
}

absl::StatusOr<uint32_t> ReadOriginalContext(const GgufFile& file, const std::string& prefix,
                                             uint32_t context_length) {
  const std::string key = prefix + "original_context_length";
  BATON_ASSIGN_OR_RETURN(const uint64_t context, file.UintOr(key, context_length));
  if (context >= 1 && context <= UINT32_MAX) return static_cast<uint32_t>(context);
  return InvalidArgument("key \"{}\" is {}, supported is [1, 2^32)", key, context);
}

absl::Status ReadYarn(const GgufFile& file, const std::string& prefix, uint32_t context_length,
                      RopeScaling& out) {
  BATON_ASSIGN_OR_RETURN(out.original_context, ReadOriginalContext(file, prefix, context_length));
  BATON_ASSIGN_OR_RETURN(out.beta_fast,
                         RangedDouble(file, prefix + "yarn_beta_fast", 32.0, {1e-3, 1e6}));
  BATON_ASSIGN_OR_RETURN(out.beta_slow,
                         RangedDouble(file, prefix + "yarn_beta_slow", 1.0, {1e-3, 1e6}));
  // The neutral value of what other architectures use.
  return RangedDouble(file, prefix + "yarn_ext_factor", 1.0, {1.0, 1.0}).status();
}

// yarn_log_multiplier of deepseek2: a tenth of mscale_all_dim, as its converter writes. Scores grow
// by the square of what the usual amplitude would be with the logarithm times it; cos and sin keep
// their length, unless attn_factor says otherwise, since mscale is the same number.
absl::Status ReadLatentMultiplier(const GgufFile& file, const std::string& prefix,
                                  RopeScaling& out) {
  BATON_ASSIGN_OR_RETURN(const double tenth, RangedDouble(file, prefix + "yarn_log_multiplier", 0.0,
                                                          DoubleRange{0.0, 1.0}));
  if (tenth == 0.0) return OkStatus();
  const double amplitude = AmplitudeOfYarn(out.factor, 10.0 * tenth);
  out.score_scale = amplitude * amplitude;
  if (file.FindValue(prefix + "attn_factor") != nullptr) return OkStatus();
  // As a folder gives it, so that both forms have the same weights_id.
  out.attention_factor = static_cast<float>(1.0 / AmplitudeOfYarn(out.factor, 1.0));
  return OkStatus();
}

// yarn_log_multiplier: mscale_all_dim of a config.json, whose mscale is 1 then. The usual amplitude
// is divided by what the usual one would be with the logarithm times it. Other architectures than
// mistral3 and deepseek2 take only 0.
absl::Status ReadLogMultiplier(const GgufFile& file, const std::string& prefix,
                               const ArchitectureTraits& traits, RopeScaling& out) {
  if (traits.latent_kv) return ReadLatentMultiplier(file, prefix, out);
  BATON_ASSIGN_OR_RETURN(
      const double multiplier,
      RangedDouble(file, prefix + "yarn_log_multiplier", 0.0,
                   traits.query_temperature ? DoubleRange{0.0, 10.0} : DoubleRange{0.0, 0.0}));
  if (multiplier == 0.0) return OkStatus();
  const double usual = AmplitudeOfYarn(out.factor, 1.0);
  // As a folder gives it, so that both forms have the same weights_id.
  out.attention_factor *=
      static_cast<float>(usual / AmplitudeOfYarn(out.factor, multiplier) / usual);
  return OkStatus();
}

// The pair that turns `turns` times within the original context.
double PairOfTurns(const RopeScaling& scaling, uint32_t dims, double base, double turns) {
  return dims * Logarithm(scaling.original_context / (turns * 2.0 * kPi)) / (2.0 * Logarithm(base));
}

std::string_view NameOf(RopeScalingType type) {
  switch (type) {
    case RopeScalingType::kNone:
      return "none";
    case RopeScalingType::kLinear:
      return "linear";
    case RopeScalingType::kYarn:
      return "yarn";
    case RopeScalingType::kLong:
      return "long";
  }
  return "";
}

}  // namespace

bool HasLongRope(const GgufFile& file, std::string_view architecture) {
  const std::string key = fmt::format("{}.rope.scaling.type", architecture);
  return file.FindTensor(kShortFactorsName) != nullptr ||
         file.FindTensor(kLongFactorsName) != nullptr ||
         file.StringOr(key, "").value_or("") == "longrope";
}

absl::StatusOr<RopeScaling> ReadLongRope(const GgufFile& file, std::string_view architecture,
                                         uint32_t context_length) {
  const std::string prefix = fmt::format("{}.rope.scaling.", architecture);
  BATON_ASSIGN_OR_RETURN(const std::string_view type, file.StringOr(prefix + "type", "longrope"));
  if (type != "longrope") {
    return Unimplemented("rope scaling {} beside tensor \"{}\" or \"{}\" (longrope is supported)",
                         QuotedForMessage(type), kShortFactorsName, kLongFactorsName);
  }
  RopeScaling out;
  out.type = RopeScalingType::kLong;
  BATON_ASSIGN_OR_RETURN(out.original_context, ReadOriginalContext(file, prefix, context_length));
  BATON_ASSIGN_OR_RETURN(out.attention_factor,
                         RangedDouble(file, prefix + "attn_factor", 1.0, {1e-2, 1e2}));
  for (const char* name : {"factor", "yarn_attn_factor", "yarn_ext_factor", "yarn_beta_fast",
                           "yarn_beta_slow", "yarn_log_multiplier"}) {
    if (file.FindValue(prefix + name) == nullptr) continue;
    return Unimplemented("key \"{}{}\" is not read beside longrope", prefix, name);
  }
  return out;
}

bool UsesLongFactors(const RopeScaling& scaling, uint32_t max_context) {
  return scaling.type == RopeScalingType::kLong && max_context > scaling.original_context;
}

absl::StatusOr<RopeScaling> ReadRopeScaling(const GgufFile& file, const ArchitectureTraits& traits,
                                            uint32_t context_length) {
  const std::string prefix = fmt::format("{}.rope.scaling.", traits.name);
  // As llama.cpp: a factor without a type is linear; the type "none" switches a factor off.
  BATON_ASSIGN_OR_RETURN(const std::string_view type, file.StringOr(prefix + "type", "linear"));
  if (type != "none" && type != "linear" && type != "yarn") {
    return Unimplemented("rope scaling {} is not supported (none, linear and yarn are)",
                         QuotedForMessage(type));
  }
  RopeScaling out;
  // llama.cpp scales sines and cosines by it whatever the type is.
  const DoubleRange amplitudes = type == "yarn" ? DoubleRange{1e-2, 1e2} : DoubleRange{1.0, 1.0};
  BATON_ASSIGN_OR_RETURN(out.attention_factor,
                         RangedDouble(file, prefix + "attn_factor", 1.0, amplitudes));
  if (type != "none") BATON_RETURN_IF_ERROR(ReadFactor(file, prefix, out));
  if (type == "linear" && out.factor != 1.0) out.type = RopeScalingType::kLinear;
  if (type == "yarn") {
    out.type = RopeScalingType::kYarn;
    BATON_RETURN_IF_ERROR(ReadYarn(file, prefix, context_length, out));
    // Our own key, of folders that do otherwise than their architecture.
    BATON_ASSIGN_OR_RETURN(out.truncates,
                           file.BoolOr(prefix + "yarn_truncate", traits.yarn_truncates));
    BATON_RETURN_IF_ERROR(ReadLogMultiplier(file, prefix, traits, out));
  }
  BATON_RETURN_IF_ERROR(ReadWholeAmplitude(file, prefix, out));
  return out;
}

std::vector<double> RopeDivisors(const RopeScaling& scaling, uint32_t dims, double base,
                                 std::span<const float> factors) {
  std::vector<double> out(dims / 2, 1.0);
  std::copy(factors.begin(), factors.end(), out.begin());
  if (scaling.type == RopeScalingType::kLinear) {
    for (double& divisor : out) divisor *= scaling.factor;
  }
  if (scaling.type != RopeScalingType::kYarn) return out;
  double low = PairOfTurns(scaling, dims, base, scaling.beta_fast);
  double high = PairOfTurns(scaling, dims, base, scaling.beta_slow);
  if (scaling.truncates) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dims - 1.0);
  for (uint32_t i = 0; i < dims / 2; ++i) {
    const double ramp = std::clamp((i - low) / std::max(high - low, 0.001), 0.0, 1.0);
    out[i] /= ramp / scaling.factor + (1.0 - ramp);
  }
  return out;
}

double AmplitudeOfYarn(double factor, double scale) {
  return factor <= 1.0 ? 1.0 : 1.0 + 0.1 * scale * Logarithm(factor);
}

double RopeAmplitude(const RopeScaling& scaling) {
  if (scaling.type == RopeScalingType::kLong) return scaling.attention_factor;
  if (scaling.type != RopeScalingType::kYarn) return 1.0;
  return scaling.attention_factor * (1.0 + 0.1 * Logarithm(scaling.factor));
}

std::string CanonicalText(const RopeScaling& scaling) {
  if (scaling.type == RopeScalingType::kNone) return "none";
  const auto bits = [](double value) { return std::bit_cast<uint64_t>(value); };
  return fmt::format("{}:{:016x}:{}:{:016x}:{:016x}:{:016x}{}", NameOf(scaling.type),
                     bits(scaling.factor), scaling.original_context, bits(scaling.beta_fast),
                     bits(scaling.beta_slow), bits(scaling.attention_factor),
                     scaling.truncates ? "" : ":exact");
}

}  // namespace baton::model
