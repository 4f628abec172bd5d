#include "src/model/hf_rope.h"

#include <string>

#include "kernels/rope_table.h"
#include "src/base/quoted_text.h"
#include "src/model/folder_error.h"

namespace baton {
namespace {

using Json = nlohmann::json;

constexpr double kPi = 3.14159265358979323846;
constexpr double kDefaultBase = 10000.0;

// Llama 3's scaling as divisors of the frequencies: 1 for wavelengths below context / high,
// `factor` above context / low, smooth between (the model card's code; llama.cpp stores the result
// as rope_freqs.weight).
absl::Status ReadLlama3(const JsonObject& scaling, uint32_t head_dim, double base, HfConfig& out) {
  BATON_ASSIGN_OR_RETURN(const double factor, scaling.Double("factor"));
  BATON_ASSIGN_OR_RETURN(const double low, scaling.Double("low_freq_factor"));
  BATON_ASSIGN_OR_RETURN(const double high, scaling.Double("high_freq_factor"));
  BATON_ASSIGN_OR_RETURN(const uint32_t context, scaling.Uint("original_max_position_embeddings"));
  if (!(factor >= 1.0 && factor <= 1e6)) return scaling.Bad("factor", "[1, 1e6]");
  if (!(low > 0.0 && low < high && high <= 1e6)) {
    return scaling.Bad("low_freq_factor", "more than 0 and less than high_freq_factor");
  }
  if (context == 0) return scaling.Bad("original_max_position_embeddings", "at least 1");
  for (uint32_t i = 0; i < head_dim / 2; ++i) {
    const double wavelength = 2.0 * kPi * Power(base, 2.0 * i / head_dim);
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

absl::Status ReadYarn(const JsonObject& config, const JsonObject& scaling,
                      const std::string& prefix, HfConfig& out) {
  for (const char* key : {"mscale", "mscale_all_dim"}) {
    if (scaling.Has(key)) return scaling.Unsupported(key, "null");
  }
  BATON_ASSIGN_OR_RETURN(const bool truncate, scaling.BoolOr("truncate", true));
  if (!truncate) return scaling.Unsupported("truncate", "true");
  BATON_ASSIGN_OR_RETURN(const uint32_t whole, config.Uint("max_position_embeddings"));
  BATON_ASSIGN_OR_RETURN(const uint32_t context,
                         scaling.UintOr("original_max_position_embeddings", whole));
  out.keys.AddU32(prefix + "original_context_length", context);
  for (const char* key : {"beta_fast", "beta_slow"}) {
    if (!scaling.Has(key)) continue;
    BATON_ASSIGN_OR_RETURN(const double beta, scaling.Double(key));
    out.keys.AddF32(prefix + "yarn_" + key, static_cast<float>(beta));
  }
  if (!scaling.Has("attention_factor")) return OkStatus();
  // There it is the whole amplitude; in GGUF what the usual one is multiplied by.
  BATON_ASSIGN_OR_RETURN(const double amplitude, scaling.Double("attention_factor"));
  BATON_ASSIGN_OR_RETURN(const double factor, scaling.Double("factor"));
  if (!(factor >= 1.0 && factor <= 1e6)) return scaling.Bad("factor", "[1, 1e6]");
  out.keys.AddF32(prefix + "attn_factor",
                  static_cast<float>(amplitude / (1.0 + 0.1 * Logarithm(factor))));
  return OkStatus();
}

absl::Status ReadScaling(const JsonObject& config, const JsonObject& scaling, uint32_t head_dim,
                         double base, HfConfig& out) {
  const char* type_key = scaling.Has("rope_type") ? "rope_type" : "type";
  BATON_ASSIGN_OR_RETURN(const std::string type, scaling.StringOr(type_key, "default"));
  if (type == "default") return OkStatus();
  if (type == "llama3") return ReadLlama3(scaling, head_dim, base, out);
  if (type != "linear" && type != "yarn") {
    return FolderError(
        FolderErrorCode::kUnknownRopeType,
        fmt::format("config.json: rope scaling {} is not supported (default, linear, yarn and "
                    "llama3 are)",
                    QuotedForMessage(type)));
  }
  const std::string prefix = fmt::format("{}.rope.scaling.", out.traits->name);
  BATON_ASSIGN_OR_RETURN(const double factor, scaling.Double("factor"));
  out.keys.AddString(prefix + "type", type);
  out.keys.AddF32(prefix + "factor", static_cast<float>(factor));
  if (type == "linear") return OkStatus();
  return ReadYarn(config, scaling, prefix, out);
}

absl::Status CheckBase(const JsonObject& config, double base) {
  if (base >= 1.0 && base <= 1e12) return OkStatus();
  return config.Bad("rope_theta", "[1, 1e12]");
}

// The newer form: {"rope_theta": .., "rope_type": ..}, one for each kind of layer where they
// differ.
absl::Status ReadParameters(const JsonObject& config, const Json& parameters, uint32_t head_dim,
                            HfConfig& out) {
  if (!parameters.is_object()) return config.Bad("rope_parameters", "an object");
  const std::string arch(out.traits->name);
  const Json* global = &parameters;
  if (out.traits->windowed && parameters.contains("full_attention")) {
    global = &parameters["full_attention"];
    const Json local = parameters.value("sliding_attention", Json::object());
    if (!global->is_object() || !local.is_object()) return config.Bad("rope_parameters", "objects");
    const JsonObject local_object(local, "config.json: rope_parameters.sliding_attention");
    BATON_ASSIGN_OR_RETURN(const double base, local_object.DoubleOr("rope_theta", kDefaultBase));
    BATON_ASSIGN_OR_RETURN(const std::string type, local_object.StringOr("rope_type", "default"));
    if (type != "default") return local_object.Unsupported("rope_type", "default");
    out.keys.AddF32(arch + ".rope.freq_base_swa", static_cast<float>(base));
  }
  const JsonObject object(*global, "config.json: rope_parameters");
  BATON_ASSIGN_OR_RETURN(const double base, object.Double("rope_theta"));
  BATON_RETURN_IF_ERROR(CheckBase(object, base));
  out.keys.AddF32(arch + ".rope.freq_base", static_cast<float>(base));
  return ReadScaling(config, object, head_dim, base, out);
}

}  // namespace

absl::Status ReadHfRope(const JsonObject& config, uint32_t head_dim, HfConfig& out) {
  if (const Json* parameters = config.Find("rope_parameters"); parameters != nullptr) {
    return ReadParameters(config, *parameters, head_dim, out);
  }
  const std::string arch(out.traits->name);
  const double fallback = out.traits->windowed ? 1e6 : kDefaultBase;  // the modules' defaults
  BATON_ASSIGN_OR_RETURN(const double base, config.DoubleOr("rope_theta", fallback));
  BATON_RETURN_IF_ERROR(CheckBase(config, base));
  out.keys.AddF32(arch + ".rope.freq_base", static_cast<float>(base));
  if (out.traits->windowed) {
    BATON_ASSIGN_OR_RETURN(const double local,
                           config.DoubleOr("rope_local_base_freq", kDefaultBase));
    out.keys.AddF32(arch + ".rope.freq_base_swa", static_cast<float>(local));
  }
  const Json* scaling = config.Find("rope_scaling");
  if (scaling == nullptr) return OkStatus();
  if (!scaling->is_object()) return config.Bad("rope_scaling", "an object or null");
  return ReadScaling(config, JsonObject(*scaling, "config.json: rope_scaling"), head_dim, base,
                     out);
}

}  // namespace baton
