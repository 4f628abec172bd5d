#include "src/model/hf_rope.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

#include "kernels/rope_table.h"
#include "src/base/quoted_text.h"
#include "src/model/folder_error.h"
#include "src/model/hf_keys.h"
#include "src/model/model_config.h"
#include "src/model/rope_scaling.h"

namespace baton::model {

using kernels::Logarithm;
using kernels::Power;

namespace {

using Json = nlohmann::json;

constexpr double kPi = 3.14159265358979323846;
constexpr double kDefaultBase = 10000.0;

// Rotation of one head before it is scaled.
struct HeadRope {
  uint32_t dim = 0;
  double base = 0;
};

// Tokens that the model was trained for before its scaling; transformers takes all that it has now
// where the files do not say it.
absl::StatusOr<uint32_t> OriginalContext(const JsonObject& config, const JsonObject& scaling) {
  constexpr const char* kKey = "original_max_position_embeddings";
  BATON_ASSIGN_OR_RETURN(const uint32_t whole, config.Uint("max_position_embeddings"));
  BATON_ASSIGN_OR_RETURN(const uint32_t outside, config.UintOr(kKey, whole));
  BATON_ASSIGN_OR_RETURN(const uint32_t context, scaling.UintOr(kKey, outside));
  if (context == 0) return scaling.Bad(kKey, "at least 1");
  // Releases of transformers do not agree which of the two holds.
  if (config.Has(kKey) && outside != context) {
    return config.Bad(kKey, fmt::format("the {} of {}", context, scaling.where()));
  }
  return context;
}

// Llama 3's scaling as divisors of the frequencies: 1 for wavelengths below context / high,
// `factor` above context / low, smooth between (the model card's code; llama.cpp stores the result
// as rope_freqs.weight).
absl::Status ReadLlama3(const JsonObject& config, const JsonObject& scaling, const HeadRope& head,
                        HfConfig& out) {
  BATON_ASSIGN_OR_RETURN(const double factor, scaling.Double("factor"));
  BATON_ASSIGN_OR_RETURN(const double low, scaling.Double("low_freq_factor"));
  BATON_ASSIGN_OR_RETURN(const double high, scaling.Double("high_freq_factor"));
  BATON_ASSIGN_OR_RETURN(const uint32_t context, OriginalContext(config, scaling));
  if (!(factor >= 1.0 && factor <= 1e6)) return scaling.Bad("factor", "[1, 1e6]");
  if (!(low > 0.0 && low < high && high <= 1e6)) {
    return scaling.Bad("low_freq_factor", "more than 0 and less than high_freq_factor");
  }
  for (uint32_t i = 0; i < head.dim / 2; ++i) {
    const double wavelength = 2.0 * kPi * Power(head.base, 2.0 * i / head.dim);
    double divisor = 1.0;
    if (wavelength > context / low) {
      divisor = factor;
    } else if (wavelength >= context / high) {
      const double smooth = (context / wavelength - low) / (high - low);
      divisor = 1.0 / ((1.0 - smooth) / factor + smooth);
    }
    out.rope_factors.push_back(static_cast<float>(divisor));
  }
  return OkStatus();
}

// The factor of cos and sin, where the files say it: attention_factor, or the quotient of
// what mscale and mscale_all_dim give (both are needed).
absl::StatusOr<std::optional<double>> YarnAmplitude(const JsonObject& scaling, double factor) {
  if (scaling.Has("attention_factor")) {
    BATON_ASSIGN_OR_RETURN(const double amplitude, scaling.Double("attention_factor"));
    return amplitude;
  }
  BATON_ASSIGN_OR_RETURN(const double scale, scaling.DoubleOr("mscale", 0.0));
  BATON_ASSIGN_OR_RETURN(const double all_dim, scaling.DoubleOr("mscale_all_dim", 0.0));
  if (scale == 0.0 || all_dim == 0.0) return std::nullopt;
  return AmplitudeOfYarn(factor, scale) / AmplitudeOfYarn(factor, all_dim);
}

// YaRN multiplies cos and sin by these.
struct YarnLength {
  double factor = 1;
  std::optional<double> amplitude;  // where the file says it
};

// Scores over latent rows grow by mscale_all_dim. A GGUF file has a tenth of it, and then an
// amplitude of 1 unless it says another one.
absl::Status AddLatentYarn(const JsonObject& scaling, const YarnLength& length,
                           const std::string& prefix, HfConfig& out) {
  constexpr const char* kKey = "mscale_all_dim";
  BATON_ASSIGN_OR_RETURN(const double all_dim, scaling.Double(kKey));
  if (!(all_dim >= 0.0 && all_dim <= 10.0)) return scaling.Bad(kKey, "[0, 10]");
  const double usual = AmplitudeOfYarn(length.factor, 1.0);
  const double amplitude = length.amplitude.value_or(usual);
  if (all_dim > 0.0) {
    out.keys.AddF32(prefix + "yarn_log_multiplier", static_cast<float>(0.1 * all_dim));
  }
  const double implied = all_dim > 0.0 ? 1.0 : usual;
  if (amplitude != implied) {
    out.keys.AddF32(prefix + "attn_factor", static_cast<float>(amplitude / usual));
  }
  return OkStatus();
}

// `prefix` of the keys. The factor is optional: the context now over the context before.
absl::Status ReadYarn(const JsonObject& config, const JsonObject& scaling,
                      const std::string& prefix, HfConfig& out) {
  BATON_ASSIGN_OR_RETURN(const bool truncate, scaling.BoolOr("truncate", true));
  if (truncate != out.traits->yarn_truncates) out.keys.AddBool(prefix + "yarn_truncate", truncate);
  BATON_ASSIGN_OR_RETURN(const uint32_t context, OriginalContext(config, scaling));
  BATON_ASSIGN_OR_RETURN(const uint32_t whole, config.Uint("max_position_embeddings"));
  const bool is_implied = !scaling.Has("factor") && context < whole;
  const double ratio = static_cast<double>(whole) / context;
  BATON_ASSIGN_OR_RETURN(const double factor,
                         is_implied ? absl::StatusOr<double>(ratio) : scaling.Double("factor"));
  if (!(factor >= 1.0 && factor <= 1e6)) return scaling.Bad("factor", "[1, 1e6]");
  out.keys.AddF32(prefix + "factor", static_cast<float>(factor));
  out.keys.AddU32(prefix + "original_context_length", context);
  for (const char* key : {"beta_fast", "beta_slow"}) {
    BATON_ASSIGN_OR_RETURN(const double beta, scaling.DoubleOr(key, 0.0));
    if (beta == 0.0) continue;  // the default, as in transformers
    out.keys.AddF32(prefix + "yarn_" + key, static_cast<float>(beta));
  }
  BATON_ASSIGN_OR_RETURN(const std::optional<double> amplitude, YarnAmplitude(scaling, factor));
  if (out.traits->latent_kv && scaling.Has("mscale_all_dim")) {
    return AddLatentYarn(scaling, {factor, amplitude}, prefix, out);
  }
  // There it is the whole amplitude; in GGUF what the usual one is multiplied by.
  if (amplitude.has_value()) {
    out.keys.AddF32(prefix + "attn_factor",
                    static_cast<float>(*amplitude / AmplitudeOfYarn(factor, 1.0)));
  }
  return OkStatus();
}

// "rope_type", which older releases called "type"; some write both.
absl::StatusOr<std::string> TypeOf(const JsonObject& scaling) {
  BATON_ASSIGN_OR_RETURN(const std::string old_type, scaling.StringOr("type", "default"));
  BATON_ASSIGN_OR_RETURN(const std::string type, scaling.StringOr("rope_type", old_type));
  if (scaling.Has("type") && old_type != type) {
    return scaling.Bad("rope_type", fmt::format("the {} of \"type\"", QuotedForMessage(old_type)));
  }
  return type;
}

// One of LongRoPE's lists of divisors.
absl::StatusOr<std::vector<float>> ReadFactors(const JsonObject& scaling, const char* key,
                                               const HeadRope& head) {
  const std::string range = fmt::format("a list of {} numbers above 0", head.dim / 2);
  const Json* list = scaling.Find(key);
  if (list == nullptr) return scaling.Missing(key);
  if (!list->is_array() || list->size() != head.dim / 2) return scaling.Bad(key, range);
  std::vector<float> out;
  for (const Json& number : *list) {
    const float value = number.is_number() ? number.get<float>() : 0.0f;
    if (!(value > 0.0f && std::isfinite(value))) return scaling.Bad(key, range);
    out.push_back(value);
  }
  return out;
}

// LongRoPE as phi3 has it: divisors for each frequency, and cos and sin times
// sqrt(1 + ln(s) / ln(original context)), where s is by how much the context has grown.
absl::Status ReadLongRope(const JsonObject& config, const JsonObject& scaling, const HeadRope& head,
                          HfConfig& out) {
  constexpr const char* kContext = "original_max_position_embeddings";
  if (!config.Has(kContext) && !scaling.Has(kContext)) return scaling.Missing(kContext);
  BATON_ASSIGN_OR_RETURN(const uint32_t context, OriginalContext(config, scaling));
  BATON_ASSIGN_OR_RETURN(const uint32_t whole, config.Uint("max_position_embeddings"));
  const double grown = static_cast<double>(whole) / context;
  BATON_ASSIGN_OR_RETURN(const double factor, scaling.DoubleOr("factor", grown));
  // Releases of transformers do not agree which of the two holds.
  if (factor != grown) return scaling.Bad("factor", fmt::format("absent or {}", grown));
  for (const char* key : {"beta_fast", "beta_slow", "mscale", "mscale_all_dim"}) {
    if (scaling.Has(key)) return scaling.Unsupported(key, "null beside longrope");
  }
  if (grown > 1.0 && context < 2) return scaling.Bad(kContext, "at least 2");
  const double usual = grown <= 1.0 ? 1.0 : std::sqrt(1.0 + Logarithm(grown) / Logarithm(context));
  BATON_ASSIGN_OR_RETURN(const double amplitude, scaling.DoubleOr("attention_factor", usual));
  BATON_ASSIGN_OR_RETURN(out.rope_factors, ReadFactors(scaling, "short_factor", head));
  BATON_ASSIGN_OR_RETURN(out.long_factors, ReadFactors(scaling, "long_factor", head));
  const std::string prefix = fmt::format("{}.rope.scaling.", out.traits->name);
  out.keys.AddString(prefix + "type", "longrope");
  out.keys.AddU32(prefix + "original_context_length", context);
  out.keys.AddF32(prefix + "attn_factor", static_cast<float>(amplitude));
  return OkStatus();
}

absl::Status CheckScaling(const JsonObject& scaling, const HfConfig& out) {
  BATON_RETURN_IF_ERROR(CheckHfKeys(scaling, HfObject::kRope, *out.traits));
  if (out.traits->partial_rope) return OkStatus();  // ReadRopeDims reads it
  BATON_ASSIGN_OR_RETURN(const double partial, scaling.DoubleOr("partial_rotary_factor", 1.0));
  return partial == 1.0 ? OkStatus() : scaling.Unsupported("partial_rotary_factor", "1");
}

absl::Status ReadScaling(const JsonObject& config, const JsonObject& scaling, const HeadRope& head,
                         HfConfig& out) {
  BATON_RETURN_IF_ERROR(CheckScaling(scaling, out));
  BATON_ASSIGN_OR_RETURN(const std::string type, TypeOf(scaling));
  if (out.traits->query_temperature && type != "yarn") {
    return FolderError(FolderErrorCode::kUnknownRopeType,
                       fmt::format("{}: rope type {} is not supported (of a {} model yarn is)",
                                   scaling.where(), QuotedForMessage(type), out.traits->hf_type));
  }
  if (type == "default") return OkStatus();
  if (out.traits->latent_kv && type != "yarn") {
    return FolderError(FolderErrorCode::kUnknownRopeType,
                       fmt::format("{}: rope type {} is not supported (default and yarn are)",
                                   scaling.where(), QuotedForMessage(type)));
  }
  if (out.traits->long_rope) {
    if (type == "longrope" || type == "su") return ReadLongRope(config, scaling, head, out);
    return FolderError(FolderErrorCode::kUnknownRopeType,
                       fmt::format("{}: rope type {} is not supported (default, longrope and its "
                                   "older name su are)",
                                   scaling.where(), QuotedForMessage(type)));
  }
  if (type == "llama3") return ReadLlama3(config, scaling, head, out);
  if (type == "dynamic") {
    // This scaling changes the base beyond max_position_embeddings only, and no sequence is longer
    // here.
    BATON_ASSIGN_OR_RETURN(const double factor, scaling.Double("factor"));
    return factor >= 1.0 ? OkStatus() : scaling.Bad("factor", "at least 1");
  }
  if (type != "linear" && type != "yarn") {
    return FolderError(
        FolderErrorCode::kUnknownRopeType,
        fmt::format("{}: rope type {} is not supported (default, linear, dynamic, yarn and llama3 "
                    "are)",
                    scaling.where(), QuotedForMessage(type)));
  }
  const std::string prefix = fmt::format("{}.rope.scaling.", out.traits->name);
  out.keys.AddString(prefix + "type", type);
  if (type == "yarn") return ReadYarn(config, scaling, prefix, out);
  BATON_ASSIGN_OR_RETURN(const double factor, scaling.Double("factor"));
  if (!(factor >= 1.0 && factor <= 1e6)) return scaling.Bad("factor", "[1, 1e6]");
  out.keys.AddF32(prefix + "factor", static_cast<float>(factor));
  return OkStatus();
}

// The base under `key` of the config, where it was in releases before 5, and "rope_theta" of
// `parameters`, where it is now. Both may be there if they agree.
absl::StatusOr<double> ReadBase(const JsonObject& config, const char* key,
                                const JsonObject& parameters, double fallback) {
  BATON_ASSIGN_OR_RETURN(const double old_base, config.DoubleOr(key, fallback));
  BATON_ASSIGN_OR_RETURN(const double base, parameters.DoubleOr("rope_theta", old_base));
  if (config.Has(key) && base != old_base) {
    return config.Bad(key, fmt::format("the {} of {}", base, parameters.where()));
  }
  if (base >= 1.0 && base <= 1e12) return base;
  const bool is_old = !parameters.Has("rope_theta");
  return is_old ? config.Bad(key, "[1, 1e12]") : parameters.Bad("rope_theta", "[1, 1e12]");
}

// The member `key` of `object` as an object; an empty one when it is absent.
absl::StatusOr<const Json*> ObjectOr(const JsonObject& object, const char* key) {
  static const Json kEmpty = Json::object();
  const Json* member = object.Find(key);
  if (member == nullptr) return &kEmpty;
  if (!member->is_object()) return object.Bad(key, "an object or null");
  return member;
}

// Local layers are not scaled.
absl::Status ReadLocalRope(const JsonObject& config, const JsonObject& local, HfConfig& out) {
  BATON_RETURN_IF_ERROR(CheckScaling(local, out));
  BATON_ASSIGN_OR_RETURN(const double base,
                         ReadBase(config, "rope_local_base_freq", local, kDefaultBase));
  BATON_ASSIGN_OR_RETURN(const std::string type, TypeOf(local));
  if (type != "default") return local.Unsupported("rope_type", "default");
  out.keys.AddF32(fmt::format("{}.rope.freq_base_swa", out.traits->name), static_cast<float>(base));
  return OkStatus();
}

// rope_parameters of an architecture whose layers differ: an object for each kind of layer.
absl::Status CheckKinds(const JsonObject& kinds) {
  for (const auto& [key, value] : kinds.object().items()) {
    if (key == "full_attention" || key == "sliding_attention" || value.is_null()) continue;
    return kinds.Unsupported(key, "null beside full_attention and sliding_attention");
  }
  return OkStatus();
}

// The value of a key of kRope as a number; of an absent one what it then stands for.
absl::StatusOr<double> NumberOr(const JsonObject& rope, std::string_view key) {
  if (key == "truncate") {
    BATON_ASSIGN_OR_RETURN(const bool truncate, rope.BoolOr(key, true));
    return truncate ? 1.0 : 0.0;
  }
  return rope.DoubleOr(key, key == "partial_rotary_factor" ? 1.0 : 0.0);
}

// Two lists of the same numbers. Lists within lists are not: nothing here follows their depth.
bool SameNumbers(const nlohmann::json& a, const nlohmann::json& b) {
  const bool are_lists = a.is_array() && b.is_array() && a.size() == b.size();
  return are_lists && std::equal(a.begin(), a.end(), b.begin(),
                                 [](const nlohmann::json& x, const nlohmann::json& y) {
                                   return x.is_number() && y.is_number() && x == y;
                                 });
}

// The scaling of releases before 5, and the parameters that it became a part of: one of them may
// have a type of its own, or both the same.
absl::Status CheckAgree(const JsonObject& scaling, const JsonObject& parameters) {
  BATON_ASSIGN_OR_RETURN(const std::string old_type, TypeOf(scaling));
  BATON_ASSIGN_OR_RETURN(const std::string type, TypeOf(parameters));
  if (type == "default") return OkStatus();
  for (const std::string_view key : HfRopeKeys()) {
    // The caller compares the base, and this function the types at its end.
    if (key == "rope_theta" || key == "rope_type" || key == "type") continue;
    BATON_ASSIGN_OR_RETURN(const double old_value, NumberOr(scaling, key));
    BATON_ASSIGN_OR_RETURN(const double value, NumberOr(parameters, key));
    if (old_value != value) return scaling.Bad(key, "the value of rope_parameters");
  }
  for (const char* key : {"short_factor", "long_factor"}) {
    const bool same = scaling.Has(key) == parameters.Has(key) &&
                      (!scaling.Has(key) || SameNumbers(*scaling.Find(key), *parameters.Find(key)));
    if (!same) return scaling.Bad(key, "the value of rope_parameters");
  }
  return old_type == type ? OkStatus() : scaling.Bad("rope_type", "the type of rope_parameters");
}

// How far positions scale q. One of the objects has the factor, or both the same.
absl::Status ReadTemperature(const JsonObject& parameters, const JsonObject& scaling,
                             HfConfig& out) {
  constexpr const char* kKey = "llama_4_scaling_beta";
  const JsonObject& holder = parameters.Has(kKey) ? parameters : scaling;
  if (!holder.Has(kKey)) return parameters.Missing(kKey);
  BATON_ASSIGN_OR_RETURN(const double beta, holder.Double(kKey));
  BATON_ASSIGN_OR_RETURN(const double other, scaling.DoubleOr(kKey, beta));
  if (other != beta) return scaling.Bad(kKey, "the value of rope_parameters");
  if (!(beta >= 0.0 && beta <= kMaxTemperatureBeta)) {
    return holder.Bad(kKey, fmt::format("[0, {}]", kMaxTemperatureBeta));
  }
  out.keys.AddF32(fmt::format("{}.attention.temperature_scale", out.traits->name),
                  static_cast<float>(beta));
  return OkStatus();
}

// The elements of a head that rotate. partial_rotary_factor stands beside rope_theta, in
// rope_parameters since release 5.
absl::StatusOr<uint32_t> ReadRopeDims(const JsonObject& config, const JsonObject& parameters,
                                      const JsonObject& scaling, uint32_t head_dim) {
  constexpr const char* kKey = "partial_rotary_factor";
  double partial = 1.0;
  const JsonObject* found = nullptr;
  for (const JsonObject* object : {&config, &parameters, &scaling}) {
    if (!object->Has(kKey)) continue;
    BATON_ASSIGN_OR_RETURN(const double value, object->Double(kKey));
    if (found != nullptr && value != partial) {
      return object->Bad(kKey, fmt::format("the {} of {}", partial, found->where()));
    }
    partial = value;
    found = object;
  }
  const double dims = std::floor(head_dim * partial);
  if (found == nullptr) return head_dim;
  if (partial > 0.0 && partial <= 1.0 && dims >= 2 && static_cast<uint32_t>(dims) % 2 == 0) {
    return static_cast<uint32_t>(dims);
  }
  return found->Bad(kKey, fmt::format("in (0, 1] and leave an even number of the {} elements of a "
                                      "head, at least 2",
                                      head_dim));
}

}  // namespace

absl::Status ReadHfRope(const JsonObject& config, uint32_t head_dim, HfConfig& out) {
  constexpr const char* kParameters = "config.json: rope_parameters";
  BATON_ASSIGN_OR_RETURN(const Json* parameters, ObjectOr(config, "rope_parameters"));
  BATON_ASSIGN_OR_RETURN(const Json* old_scaling, ObjectOr(config, "rope_scaling"));
  const Json* global = parameters;
  if (out.traits->windowed && !out.traits->one_rope) {
    const JsonObject kinds(*parameters, kParameters);
    BATON_RETURN_IF_ERROR(CheckKinds(kinds));
    BATON_ASSIGN_OR_RETURN(global, ObjectOr(kinds, "full_attention"));
    BATON_ASSIGN_OR_RETURN(const Json* local, ObjectOr(kinds, "sliding_attention"));
    BATON_RETURN_IF_ERROR(ReadLocalRope(
        config, JsonObject(*local, "config.json: rope_parameters.sliding_attention"), out));
  }
  const JsonObject object(*global, kParameters);
  const JsonObject scaling(*old_scaling, "config.json: rope_scaling");
  const JsonObject& holder = scaling.Has("rope_theta") ? scaling : object;
  BATON_ASSIGN_OR_RETURN(const double base,
                         ReadBase(config, "rope_theta", holder, out.traits->hf_rope_base));
  BATON_ASSIGN_OR_RETURN(const double other, object.DoubleOr("rope_theta", base));
  if (other != base) return object.Bad("rope_theta", "the value of rope_scaling");
  out.keys.AddF32(fmt::format("{}.rope.freq_base", out.traits->name), static_cast<float>(base));
  HeadRope head = {.dim = head_dim, .base = base};
  if (out.traits->partial_rope) {
    BATON_ASSIGN_OR_RETURN(head.dim, ReadRopeDims(config, object, scaling, head_dim));
    out.keys.AddU32(fmt::format("{}.rope.dimension_count", out.traits->name), head.dim);
  }
  if (out.traits->query_temperature) {
    BATON_RETURN_IF_ERROR(ReadTemperature(object, scaling, out));
  }
  if (old_scaling->empty()) return ReadScaling(config, object, head, out);
  BATON_RETURN_IF_ERROR(CheckScaling(object, out));
  BATON_RETURN_IF_ERROR(CheckAgree(scaling, object));
  return ReadScaling(config, scaling, head, out);
}

}  // namespace baton::model
