#include "src/model/hf_config.h"

#include <array>
#include <string>
#include <utility>

#include "src/base/quoted_text.h"
#include "src/model/folder_error.h"
#include "src/model/hf_fp8.h"
#include "src/model/hf_json.h"
#include "src/model/hf_rope.h"
#include "src/model/model_config.h"

namespace baton {
namespace {

using Json = nlohmann::json;

absl::StatusOr<const ArchitectureTraits*> ReadModelType(const JsonObject& config) {
  BATON_RETURN_IF_ERROR(CheckHfQuantization(config));
  BATON_ASSIGN_OR_RETURN(const std::string type, config.String("model_type"));
  const ArchitectureTraits* traits = FindArchitectureOfHf(type);
  if (traits != nullptr) return traits;
  return FolderError(FolderErrorCode::kUnknownArchitecture,
                     fmt::format("config.json: model_type {} is not supported ({} are)",
                                 QuotedForMessage(type), ArchitectureHfTypes()));
}

// Keys whose value, unless it is the neutral one, changes the result in a way that is not computed.
absl::Status CheckNeutral(const JsonObject& config, const ArchitectureTraits& traits) {
  for (const char* key : {"mlp_bias", "use_sliding_window", "use_qk_norm"}) {
    BATON_ASSIGN_OR_RETURN(const bool value, config.BoolOr(key, false));
    if (value) return config.Unsupported(key, "false");
  }
  if (!traits.qkv_bias) {
    BATON_ASSIGN_OR_RETURN(const bool bias, config.BoolOr("attention_bias", false));
    if (bias) return config.Unsupported("attention_bias", "false");
  }
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    if (config.Has(key)) return config.Unsupported(key, "null");
  }
  if (traits.name == "llama" && config.Has("sliding_window")) {
    return config.Unsupported("sliding_window", "null");
  }
  BATON_ASSIGN_OR_RETURN(const double partial, config.DoubleOr("partial_rotary_factor", 1.0));
  if (partial != 1.0) return config.Unsupported("partial_rotary_factor", "1");
  const bool gelu = traits.activation == GateActivation::kGeluTanh;
  const char* key = gelu && config.Has("hidden_activation") ? "hidden_activation" : "hidden_act";
  const std::string_view wanted = gelu ? "gelu_pytorch_tanh" : "silu";
  BATON_ASSIGN_OR_RETURN(const std::string activation, config.StringOr(key, wanted));
  if (activation != wanted) return config.Unsupported(key, wanted);
  return OkStatus();
}

// Numbers that every architecture has.
absl::Status ReadShape(const JsonObject& config, HfConfig& out) {
  struct Row {
    const char* hf;
    const char* gguf;
  };
  constexpr std::array kRows = {
      Row{"num_hidden_layers", "block_count"}, Row{"max_position_embeddings", "context_length"},
      Row{"hidden_size", "embedding_length"}, Row{"intermediate_size", "feed_forward_length"},
      Row{"vocab_size", "vocab_size"}};
  const std::string arch(out.traits->name);
  for (const Row& row : kRows) {
    BATON_ASSIGN_OR_RETURN(const uint32_t value, config.Uint(row.hf));
    out.keys.AddU32(fmt::format("{}.{}", arch, row.gguf), value);
  }
  BATON_ASSIGN_OR_RETURN(out.num_heads, config.Uint("num_attention_heads"));
  BATON_ASSIGN_OR_RETURN(out.num_kv_heads, config.UintOr("num_key_value_heads", out.num_heads));
  if (out.num_heads == 0 || out.num_kv_heads == 0) {
    return config.Bad(out.num_heads == 0 ? "num_attention_heads" : "num_key_value_heads",
                      "at least 1");
  }
  BATON_ASSIGN_OR_RETURN(const double eps, config.Double("rms_norm_eps"));
  out.keys.AddU32(arch + ".attention.head_count", out.num_heads);
  out.keys.AddU32(arch + ".attention.head_count_kv", out.num_kv_heads);
  out.keys.AddF32(arch + ".attention.layer_norm_rms_epsilon", static_cast<float>(eps));
  return OkStatus();
}

absl::StatusOr<uint32_t> ReadHeadDim(const JsonObject& config, HfConfig& out) {
  BATON_ASSIGN_OR_RETURN(const uint32_t hidden, config.Uint("hidden_size"));
  BATON_ASSIGN_OR_RETURN(const uint32_t dim, config.UintOr("head_dim", hidden / out.num_heads));
  if (dim == 0 || dim > kMaxHeadDim || dim % 2 != 0) {
    return config.Bad("head_dim", fmt::format("an even number in [2, {}]", kMaxHeadDim));
  }
  const std::string arch(out.traits->name);
  out.keys.AddU32(arch + ".attention.key_length", dim);
  out.keys.AddU32(arch + ".attention.value_length", dim);
  return dim;
}

absl::Status ReadExperts(const JsonObject& config, HfConfig& out) {
  const std::string arch(out.traits->name);
  BATON_ASSIGN_OR_RETURN(out.num_experts, config.Uint("num_experts"));
  BATON_ASSIGN_OR_RETURN(const uint32_t used, config.Uint("num_experts_per_tok"));
  BATON_ASSIGN_OR_RETURN(const uint32_t ffn, config.Uint("moe_intermediate_size"));
  if (out.num_experts == 0 || out.num_experts > kMaxExperts) {
    return config.Bad("num_experts", fmt::format("[1, {}]", kMaxExperts));
  }
  BATON_ASSIGN_OR_RETURN(const bool normed, config.BoolOr("norm_topk_prob", false));
  if (!normed) return config.Unsupported("norm_topk_prob", "true");
  BATON_ASSIGN_OR_RETURN(const uint32_t step, config.UintOr("decoder_sparse_step", 1));
  if (step != 1) return config.Unsupported("decoder_sparse_step", "1");
  const Json* dense = config.Find("mlp_only_layers");
  if (dense != nullptr && !dense->empty()) return config.Unsupported("mlp_only_layers", "[]");
  out.keys.AddU32(arch + ".expert_count", out.num_experts);
  out.keys.AddU32(arch + ".expert_used_count", used);
  out.keys.AddU32(arch + ".expert_feed_forward_length", ffn);
  return OkStatus();
}

// "layer_types": which layers are local, when the files say so one by one.
absl::Status ReadLayerTypes(const JsonObject& config, HfConfig& out) {
  const Json* types = config.Find("layer_types");
  if (types == nullptr) return OkStatus();
  BATON_ASSIGN_OR_RETURN(const uint32_t layers, config.Uint("num_hidden_layers"));
  if (!types->is_array() || types->size() != layers) {
    return config.Bad("layer_types", fmt::format("a list of {} texts", layers));
  }
  std::vector<bool> local;
  for (const Json& type : *types) {
    if (type != "sliding_attention" && type != "full_attention") {
      return config.Bad("layer_types", "sliding_attention or full_attention each");
    }
    local.push_back(type == "sliding_attention");
  }
  out.keys.AddBools(fmt::format("{}.attention.sliding_window_pattern", out.traits->name), local);
  return OkStatus();
}

absl::Status ReadWindow(const JsonObject& config, uint32_t head_dim, HfConfig& out) {
  const std::string arch(out.traits->name);
  BATON_ASSIGN_OR_RETURN(const uint32_t window, config.Uint("sliding_window"));
  out.keys.AddU32(arch + ".attention.sliding_window", window);
  // What q is scaled by follows from the shape; another scale is not supported.
  BATON_ASSIGN_OR_RETURN(const uint32_t scalar, config.UintOr("query_pre_attn_scalar", head_dim));
  BATON_ASSIGN_OR_RETURN(const uint32_t hidden, config.Uint("hidden_size"));
  BATON_ASSIGN_OR_RETURN(const uint32_t layers, config.Uint("num_hidden_layers"));
  const uint32_t implied = layers == kGemma27bLayers ? hidden / out.num_heads : head_dim;
  if (scalar != implied) {
    return config.Unsupported("query_pre_attn_scalar", fmt::format("{}", implied));
  }
  const char* pattern_key =
      config.Has("sliding_window_pattern") ? "sliding_window_pattern" : "_sliding_window_pattern";
  if (!config.Has("layer_types") && config.Has(pattern_key)) {
    BATON_ASSIGN_OR_RETURN(const uint32_t pattern, config.Uint(pattern_key));
    out.keys.AddU32(arch + ".attention.sliding_window_pattern", pattern);
  }
  return ReadLayerTypes(config, out);
}

}  // namespace

absl::StatusOr<HfConfig> ReadHfConfig(std::string_view text) {
  if (text.size() > kMaxHfConfigBytes) {
    return FolderError(
        FolderErrorCode::kFileTooLarge,
        fmt::format("config.json has {} bytes, the limit is {}", text.size(), kMaxHfConfigBytes));
  }
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object()) {
    return FolderError(FolderErrorCode::kBadJson, "config.json is no JSON object");
  }
  const JsonObject config(json, "config.json");
  HfConfig out;
  BATON_ASSIGN_OR_RETURN(out.traits, ReadModelType(config));
  out.keys.AddString("general.architecture", out.traits->name);
  BATON_RETURN_IF_ERROR(CheckNeutral(config, *out.traits));
  // The defaults of the modules: gemma ties, the others do not.
  BATON_ASSIGN_OR_RETURN(out.tied,
                         config.BoolOr("tie_word_embeddings", out.traits->scaled_embedding));
  BATON_RETURN_IF_ERROR(ReadShape(config, out));
  BATON_ASSIGN_OR_RETURN(const uint32_t head_dim, ReadHeadDim(config, out));
  BATON_RETURN_IF_ERROR(ReadHfRope(config, head_dim, out));
  if (out.traits->experts) BATON_RETURN_IF_ERROR(ReadExperts(config, out));
  if (out.traits->windowed) BATON_RETURN_IF_ERROR(ReadWindow(config, head_dim, out));
  return out;
}

}  // namespace baton
