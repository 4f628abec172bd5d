#include "src/model/hf_config.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"

#include "kernels/ops.h"
#include "src/base/quoted_text.h"
#include "src/model/folder_error.h"
#include "src/model/hf_biases.h"
#include "src/model/hf_deepseek.h"
#include "src/model/hf_delta.h"
#include "src/model/hf_json.h"
#include "src/model/hf_keys.h"
#include "src/model/hf_mamba.h"
#include "src/model/hf_mixed_layers.h"
#include "src/model/hf_quantization.h"
#include "src/model/hf_rope.h"
#include "src/model/model_config.h"

namespace baton::model {
namespace {

using Json = nlohmann::json;

constexpr const char* kTextConfig = "config.json: text_config";
// The numbers of the gate of gpt_oss, as its configuration class has them.
constexpr double kAlpha = 1.702;
constexpr double kLimit = 7.0;

absl::StatusOr<const ArchitectureTraits*> ReadModelType(const JsonObject& config) {
  BATON_ASSIGN_OR_RETURN(const std::string type, config.String("model_type"));
  const ArchitectureTraits* traits = FindArchitectureOfHf(type);
  if (traits != nullptr) return traits;
  return FolderError(FolderErrorCode::kUnknownArchitecture,
                     fmt::format("{}: model_type {} is not supported ({} are)", config.where(),
                                 QuotedForMessage(type), ArchitectureHfTypes()));
}

absl::Status CheckActivation(const JsonObject& config, const ArchitectureTraits& traits) {
  const bool gelu = traits.activation == GateActivation::kGeluTanh;
  if (traits.activation == GateActivation::kReluSquared) {
    return config.CheckOneOf("mlp_hidden_act", R"(["relu2"])");
  }
  const char* key = gelu && config.Has("hidden_activation") ? "hidden_activation" : "hidden_act";
  const std::string_view wanted = gelu ? "gelu_pytorch_tanh" : "silu";
  BATON_ASSIGN_OR_RETURN(const std::string activation, config.StringOr(key, wanted));
  const bool is_other_name = !gelu && activation == "swish";
  return activation == wanted || is_other_name ? OkStatus() : config.Unsupported(key, wanted);
}

// Keys whose value, unless it is the neutral one, changes the result in a way that is not computed.
absl::Status CheckNeutral(const JsonObject& config, const ArchitectureTraits& traits) {
  BATON_RETURN_IF_ERROR(CheckHfKeys(config, HfObject::kModel, traits));
  if (!traits.partial_rope) {
    BATON_ASSIGN_OR_RETURN(const double partial, config.DoubleOr("partial_rotary_factor", 1.0));
    if (partial != 1.0) return config.Unsupported("partial_rotary_factor", "1");
  }
  return CheckActivation(config, traits);
}

// Numbers that every architecture has.
absl::Status ReadShape(const JsonObject& config, HfConfig& out) {
  struct Row {
    const char* hf;
    const char* gguf;
    uint32_t min;
    uint32_t max;
  };
  constexpr std::array kRows = {
      Row{"num_hidden_layers", "block_count", 1, kMaxLayers},
      Row{"max_position_embeddings", "context_length", kMinContextTokens, UINT32_MAX},
      Row{"hidden_size", "embedding_length", 1, kMaxHiddenSize},
      Row{"intermediate_size", "feed_forward_length", 0, kMaxFfnSize},  // 0 beside experts
      Row{"vocab_size", "vocab_size", 1, kMaxModelVocab}};
  const std::string arch(out.traits->name);
  const bool has_convs = out.traits->short_convs;
  const bool differ = has_convs || out.traits->mixed_layers || out.traits->mamba;
  for (const Row& row : kRows) {
    // ReadConvolutions, ReadHfMixedLayers and ReadHfMamba read the width, and below the KV heads.
    if (differ && std::string_view(row.hf) == "intermediate_size") continue;
    // Every layer of qwen3_5_moe has experts, whose widths are other keys.
    const bool has_dense_width = !out.traits->gated_shared_expert;
    if (!has_dense_width && std::string_view(row.hf) == "intermediate_size") continue;
    // How many layers of prediction there are besides is seen at their tensors.
    // Folders of nemotron_h need not say how many layers they list.
    const bool says_later = out.traits->delta_nets || out.traits->mamba;
    if (says_later && std::string_view(row.hf) == "num_hidden_layers") continue;
    BATON_ASSIGN_OR_RETURN(const uint32_t value, config.Uint(row.hf));
    if (value < row.min || value > row.max) {
      return config.Bad(row.hf, fmt::format("[{}, {}]", row.min, row.max));
    }
    out.keys.AddU32(fmt::format("{}.{}", arch, row.gguf), value);
  }
  BATON_ASSIGN_OR_RETURN(out.num_heads, config.Uint("num_attention_heads"));
  BATON_ASSIGN_OR_RETURN(out.num_kv_heads, config.UintOr("num_key_value_heads", out.num_heads));
  if (out.num_heads == 0 || out.num_kv_heads == 0) {
    return config.Bad(out.num_heads == 0 ? "num_attention_heads" : "num_key_value_heads",
                      "at least 1");
  }
  const char* eps_key = has_convs           ? "norm_eps"
                        : out.traits->mamba ? "layer_norm_epsilon"
                                            : "rms_norm_eps";
  BATON_ASSIGN_OR_RETURN(const double eps, config.Double(eps_key));
  if (!(eps > 0 && eps <= 1)) return config.Bad(eps_key, "(0, 1]");
  out.keys.AddU32(arch + ".attention.head_count", out.num_heads);
  if (!differ && !out.traits->latent_kv) {
    out.keys.AddU32(arch + ".attention.head_count_kv", out.num_kv_heads);
  }
  out.keys.AddF32(arch + ".attention.layer_norm_rms_epsilon", static_cast<float>(eps));
  return OkStatus();
}

std::string ImpliedDim(uint32_t dim) {
  return fmt::format("; hidden_size / num_attention_heads is {}", dim);
}

// The elements of a head, of which all or the first ones rotate.
absl::StatusOr<uint32_t> ReadHeadDim(const JsonObject& config, HfConfig& out) {
  if (out.traits->latent_kv) return ReadHfLatentHeads(config, out);
  BATON_ASSIGN_OR_RETURN(const uint32_t hidden, config.Uint("hidden_size"));
  BATON_ASSIGN_OR_RETURN(const uint32_t dim, config.UintOr("head_dim", hidden / out.num_heads));
  if (!IsHfHeadDim(dim)) {
    const bool is_given = config.Has("head_dim");
    return config.Bad("head_dim", HfHeadDimRange() + (is_given ? "" : ImpliedDim(dim)));
  }
  const std::string arch(out.traits->name);
  out.keys.AddU32(arch + ".attention.key_length", dim);
  out.keys.AddU32(arch + ".attention.value_length", dim);
  return dim;
}

// transformers 5 renamed num_experts.
absl::StatusOr<uint32_t> ReadNumExperts(const JsonObject& config) {
  constexpr const char* kNewKey = "num_local_experts";
  const char* key = config.Has(kNewKey) ? kNewKey : "num_experts";
  BATON_ASSIGN_OR_RETURN(const uint32_t experts, config.Uint(key));
  BATON_ASSIGN_OR_RETURN(const uint32_t other, config.UintOr("num_experts", experts));
  if (other != experts) {
    return config.Bad(kNewKey, fmt::format("the {} of \"num_experts\"", other));
  }
  if (experts == 0 || experts > kMaxExperts) {
    return config.Bad(key, fmt::format("[1, {}]", kMaxExperts));
  }
  return experts;
}

// The experts of gpt_oss have the width of its feed-forward layers, and its gate has two numbers.
absl::Status ReadBiasedExperts(const JsonObject& config, HfConfig& out) {
  const std::string arch(out.traits->name);
  BATON_ASSIGN_OR_RETURN(out.num_experts, ReadNumExperts(config));
  BATON_ASSIGN_OR_RETURN(const uint32_t used, config.Uint("num_experts_per_tok"));
  BATON_ASSIGN_OR_RETURN(const uint32_t other, config.UintOr("experts_per_token", used));
  if (other != used) {
    return config.Bad("experts_per_token", fmt::format("the {} of \"num_experts_per_tok\"", used));
  }
  BATON_ASSIGN_OR_RETURN(const uint32_t ffn, config.Uint("intermediate_size"));
  BATON_ASSIGN_OR_RETURN(const double alpha, config.DoubleOr("swiglu_alpha", kAlpha));
  BATON_ASSIGN_OR_RETURN(const double limit, config.DoubleOr("swiglu_limit", kLimit));
  if (alpha != kAlpha) return config.Unsupported("swiglu_alpha", fmt::format("{}", kAlpha));
  if (limit != kLimit) return config.Unsupported("swiglu_limit", fmt::format("{}", kLimit));
  out.keys.AddU32(arch + ".expert_count", out.num_experts);
  out.keys.AddU32(arch + ".expert_used_count", used);
  out.keys.AddU32(arch + ".expert_feed_forward_length", ffn);
  return OkStatus();
}

// The experts of lfm2_moe, which sigmoids and a bias choose.
absl::Status ReadHfBiasedChoice(const JsonObject& config, HfConfig& out) {
  const std::string arch(out.traits->name);
  BATON_ASSIGN_OR_RETURN(out.num_experts, ReadNumExperts(config));
  BATON_ASSIGN_OR_RETURN(const uint32_t used, config.UintOr("num_experts_per_tok", 4));
  BATON_ASSIGN_OR_RETURN(const uint32_t ffn, config.Uint("moe_intermediate_size"));
  BATON_ASSIGN_OR_RETURN(const uint32_t layers, config.Uint("num_hidden_layers"));
  BATON_ASSIGN_OR_RETURN(const uint32_t dense, config.UintOr("num_dense_layers", 2));
  BATON_ASSIGN_OR_RETURN(const bool normed, config.BoolOr("norm_topk_prob", true));
  BATON_ASSIGN_OR_RETURN(const bool biased, config.BoolOr("use_expert_bias", true));
  BATON_ASSIGN_OR_RETURN(const double scale, config.DoubleOr("routed_scaling_factor", 1.0));
  out.has_choice_biases = biased;
  if (!(scale >= kMinMultiplier && scale <= kMaxMultiplier)) {
    return config.Bad("routed_scaling_factor",
                      fmt::format("[{}, {}]", kMinMultiplier, kMaxMultiplier));
  }
  out.keys.AddU32(arch + ".expert_count", out.num_experts);
  out.keys.AddU32(arch + ".expert_used_count", used);
  out.keys.AddU32(arch + ".expert_feed_forward_length", ffn);
  out.keys.AddU32(arch + ".leading_dense_block_count", std::min(dense, layers));
  out.keys.AddU32(arch + ".expert_gating_func", 2);
  if (!normed) out.keys.AddBool(arch + ".expert_weights_norm", false);
  // Other programs read no such key of lfm2moe: published models have 1.
  if (scale != 1.0) out.keys.AddF32(arch + ".expert_weights_scale", static_cast<float>(scale));
  return OkStatus();
}

absl::Status ReadExperts(const JsonObject& config, HfConfig& out) {
  if (out.traits->expert_biases) return ReadBiasedExperts(config, out);
  const std::string arch(out.traits->name);
  BATON_ASSIGN_OR_RETURN(out.num_experts, ReadNumExperts(config));
  BATON_ASSIGN_OR_RETURN(const uint32_t used, config.Uint("num_experts_per_tok"));
  BATON_ASSIGN_OR_RETURN(const uint32_t ffn, config.Uint("moe_intermediate_size"));
  const bool is_gated = out.traits->gated_shared_expert;
  // qwen3_5_moe has no such key: its weights always sum to 1.
  BATON_ASSIGN_OR_RETURN(const bool normed, config.BoolOr("norm_topk_prob", is_gated));
  if (is_gated && !normed) return config.Unsupported("norm_topk_prob", "true");
  if (!normed) out.keys.AddBool(arch + ".expert_weights_norm", false);
  if (is_gated) {
    BATON_ASSIGN_OR_RETURN(const uint32_t shared, config.Uint("shared_expert_intermediate_size"));
    out.keys.AddU32(arch + ".expert_shared_feed_forward_length", shared);
  }
  BATON_ASSIGN_OR_RETURN(const uint32_t step, config.UintOr("decoder_sparse_step", 1));
  if (step != 1) return config.Unsupported("decoder_sparse_step", "1");
  const Json* dense = config.Find("mlp_only_layers");
  if (dense != nullptr && !dense->empty()) return config.Unsupported("mlp_only_layers", "[]");
  out.keys.AddU32(arch + ".expert_count", out.num_experts);
  out.keys.AddU32(arch + ".expert_used_count", used);
  out.keys.AddU32(arch + ".expert_feed_forward_length", ffn);
  return OkStatus();
}

// "layer_types": which layers are local, when the files say so one by one. Empty without the key.
absl::StatusOr<std::vector<bool>> ReadLayerTypes(const JsonObject& config) {
  std::vector<bool> local;
  const Json* types = config.Find("layer_types");
  if (types == nullptr) return local;
  BATON_ASSIGN_OR_RETURN(const uint32_t layers, config.Uint("num_hidden_layers"));
  if (!types->is_array() || types->size() != layers) {
    return config.Bad("layer_types", fmt::format("a list of {} texts", layers));
  }
  for (const Json& type : *types) {
    if (type != "sliding_attention" && type != "full_attention") {
      return config.Bad("layer_types", "sliding_attention or full_attention each");
    }
    local.push_back(type == "sliding_attention");
  }
  return local;
}

// Whether some layer of an architecture without windows would have one, by what its class in
// transformers makes of its keys.
absl::StatusOr<bool> HasLocalLayer(const JsonObject& config, std::string_view model_type) {
  BATON_ASSIGN_OR_RETURN(const std::vector<bool> local, ReadLayerTypes(config));
  const bool is_listed_local = std::find(local.begin(), local.end(), true) != local.end();
  BATON_ASSIGN_OR_RETURN(const bool uses, config.BoolOr("use_sliding_window", false));
  const bool always_uses = model_type == "llama" || model_type == "olmo2";
  if (!config.Has("sliding_window") || (!uses && !always_uses)) return is_listed_local;
  const bool reads_first = model_type == "qwen2" || model_type == "qwen3";
  if (!reads_first && model_type != "smollm3") return true;
  if (!local.empty()) return is_listed_local;
  // In smollm3 the layers that do not rotate have it. A model in which all rotate is refused too.
  if (!reads_first) return true;
  constexpr uint32_t kDefaultFirst = 28;
  BATON_ASSIGN_OR_RETURN(const uint32_t first, config.UintOr("max_window_layers", kDefaultFirst));
  BATON_ASSIGN_OR_RETURN(const uint32_t layers, config.Uint("num_hidden_layers"));
  return first < layers;
}

// A window is not computed unless it shows every layer the whole context.
absl::Status CheckNoWindow(const JsonObject& config, std::string_view model_type) {
  BATON_ASSIGN_OR_RETURN(const bool is_local, HasLocalLayer(config, model_type));
  if (!is_local) return OkStatus();
  BATON_ASSIGN_OR_RETURN(const uint32_t context, config.Uint("max_position_embeddings"));
  BATON_ASSIGN_OR_RETURN(const uint32_t window, config.UintOr("sliding_window", 0));
  if (window >= context) return OkStatus();
  if (!config.Has("sliding_window")) {
    return config.Unsupported("layer_types", "full_attention for each layer");
  }
  return config.Unsupported(
      "sliding_window",
      fmt::format("null, a window of the whole context, {} or more, or one that no layer has: "
                  "use_sliding_window false, max_window_layers of all layers, or full_attention "
                  "for each of layer_types",
                  context));
}

// A window of all layers. Such a model knows no keys that choose layers. Of those that are computed
// as llama, mistral has it, and llama itself does not.
absl::Status ReadUniformWindow(const JsonObject& config, std::string_view model_type,
                               HfConfig& out) {
  if (!config.Has("sliding_window") || model_type == "llama") {
    return CheckNoWindow(config, model_type);
  }
  BATON_ASSIGN_OR_RETURN(const uint32_t context, config.Uint("max_position_embeddings"));
  BATON_ASSIGN_OR_RETURN(const uint32_t window, config.Uint("sliding_window"));
  if (window == 0) return config.Bad("sliding_window", "null or at least 1");
  if (window >= context) return OkStatus();
  for (const char* key : {"layer_types", "use_sliding_window", "max_window_layers"}) {
    if (config.Has(key)) return config.Unsupported(key, "null");
  }
  out.keys.AddU32(fmt::format("{}.attention.sliding_window", out.traits->name), window);
  return OkStatus();
}

// Which layers are local: by "layer_types", else all but the last of each pattern. The class of
// gemma3 reads that from sliding_window_pattern alone, and saves it as _sliding_window_pattern
// beside layer_types; the class of gpt_oss reads neither. A name that it passes over may only
// repeat what it computes.
absl::Status ReadPattern(const JsonObject& config, HfConfig& out) {
  constexpr const char* kKey = "sliding_window_pattern";
  const std::string gguf_key = fmt::format("{}.attention.sliding_window_pattern", out.traits->name);
  BATON_ASSIGN_OR_RETURN(const std::vector<bool> local, ReadLayerTypes(config));
  if (!local.empty()) {
    out.keys.AddBools(gguf_key, local);
    return OkStatus();
  }
  uint32_t computed = out.traits->local_step;
  if (!out.traits->one_rope && config.Has(kKey)) {
    BATON_ASSIGN_OR_RETURN(computed, config.Uint(kKey));
    out.keys.AddU32(gguf_key, computed);
  }
  for (const char* key : {kKey, "_sliding_window_pattern"}) {
    BATON_ASSIGN_OR_RETURN(const uint32_t stated, config.UintOr(key, computed));
    if (stated != computed) {
      return config.Unsupported(key, fmt::format("{} without \"layer_types\"", computed));
    }
  }
  return OkStatus();
}

absl::Status ReadWindow(const JsonObject& config, uint32_t head_dim, HfConfig& out) {
  const std::string arch(out.traits->name);
  BATON_ASSIGN_OR_RETURN(const uint32_t window, config.Uint("sliding_window"));
  out.keys.AddU32(arch + ".attention.sliding_window", window);
  // The scale of q follows from the shape; another scale is not supported.
  BATON_ASSIGN_OR_RETURN(const uint32_t scalar, config.UintOr("query_pre_attn_scalar", head_dim));
  BATON_ASSIGN_OR_RETURN(const uint32_t hidden, config.Uint("hidden_size"));
  BATON_ASSIGN_OR_RETURN(const uint32_t layers, config.Uint("num_hidden_layers"));
  const bool by_hidden = layers == kGemma27bLayers && !out.traits->one_rope;
  const uint32_t implied = by_hidden ? hidden / out.num_heads : head_dim;
  if (scalar != implied) {
    return config.Unsupported("query_pre_attn_scalar", fmt::format("{}", implied));
  }
  return ReadPattern(config, out);
}

// "no_rope_layers": 1 for each layer that rotates, 0 for each that does not; without the list, the
// last of each no_rope_layer_interval does not. The key of GGUF is written only where the layers
// are not those that every GGUF file of the architecture has.
absl::Status ReadUnrotated(const JsonObject& config, HfConfig& out) {
  constexpr const char* kInterval = "no_rope_layer_interval";
  constexpr const char* kList = "no_rope_layers";
  const uint32_t usual = out.traits->unrotated_step;
  BATON_ASSIGN_OR_RETURN(const uint32_t step, config.UintOr(kInterval, usual));
  BATON_ASSIGN_OR_RETURN(const uint32_t layers, config.Uint("num_hidden_layers"));
  if (step == 0) return config.Bad(kInterval, "at least 1");
  if (layers > kMaxLayers)
    return config.Bad("num_hidden_layers", fmt::format("[1, {}]", kMaxLayers));
  const Json* list = config.Find(kList);
  const bool fits = list == nullptr || (list->is_array() && list->size() == layers);
  if (!fits) return config.Bad(kList, fmt::format("a list of {} numbers", layers));
  std::vector<bool> unrotated(layers);
  bool is_usual = true;
  for (uint32_t i = 0; i < layers; ++i) {
    unrotated[i] = i % step == step - 1;
    if (list != nullptr) {
      if ((*list)[i] != 0 && (*list)[i] != 1) return config.Bad(kList, "0 or 1 each");
      unrotated[i] = (*list)[i] == 0;
    }
    is_usual = is_usual && unrotated[i] == (i % usual == usual - 1);
  }
  if (is_usual) return OkStatus();
  out.keys.AddBools(fmt::format("{}.rope.unrotated_layers", out.traits->name), unrotated);
  return OkStatus();
}

absl::Status ReadMultipliers(const JsonObject& config, HfConfig& out) {
  struct Row {
    const char* hf;
    const char* gguf;
  };
  constexpr std::array kRows = {Row{"attention_multiplier", "attention.scale"},
                                Row{"embedding_multiplier", "embedding_scale"},
                                Row{"residual_multiplier", "residual_scale"},
                                Row{"logits_scaling", "logit_scale"}};
  for (const Row& row : kRows) {
    BATON_ASSIGN_OR_RETURN(const double value, config.DoubleOr(row.hf, 1.0));
    // GGUF has 0 for "not stated".
    if (!(value >= kMinMultiplier && value <= kMaxMultiplier)) {
      return config.Bad(row.hf, fmt::format("[{}, {}]", kMinMultiplier, kMaxMultiplier));
    }
    out.keys.AddF32(fmt::format("{}.{}", out.traits->name, row.gguf), static_cast<float>(value));
  }
  return OkStatus();
}

// The width of a feed-forward layer of lfm2: two thirds of the one stated, times a factor, rounded
// up, unless the config says that it is the width itself. A factor of null leaves out both.
absl::StatusOr<uint32_t> ReadConvFfn(const JsonObject& config) {
  constexpr const char* kFactor = "block_ffn_dim_multiplier";
  constexpr const char* kMultiple = "block_multiple_of";
  const char* key = config.Has("block_ff_dim") ? "block_ff_dim" : "intermediate_size";
  BATON_ASSIGN_OR_RETURN(const uint32_t stated, config.Uint(key));
  BATON_ASSIGN_OR_RETURN(const bool is_adjusted, config.BoolOr("block_auto_adjust_ff_dim", true));
  if (!is_adjusted) return stated;
  BATON_ASSIGN_OR_RETURN(const double factor, config.DoubleOr(kFactor, 1.0));
  BATON_ASSIGN_OR_RETURN(const uint32_t multiple, config.UintOr(kMultiple, 256));
  if (!(factor > 0.0 && factor <= kMaxFfnSize)) {
    return config.Bad(kFactor, fmt::format("(0, {}]", kMaxFfnSize));
  }
  if (multiple == 0 || multiple > kMaxFfnSize) {
    return config.Bad(kMultiple, fmt::format("[1, {}]", kMaxFfnSize));
  }
  uint64_t width = uint64_t{2} * stated / 3;
  const auto value = config.object().find(kFactor);
  if (value == config.object().end() || !value->is_null()) {
    width = static_cast<uint64_t>(factor * static_cast<double>(width));
    width = (width + multiple - 1) / multiple * multiple;
  }
  if (width >= 1 && width <= kMaxFfnSize) return static_cast<uint32_t>(width);
  return config.Bad(key,
                    fmt::format("one whose adjusted width, {}, is in [1, {}]", width, kMaxFfnSize));
}

// Which of `layers` layers are convolutions: by "layer_types", or all that "full_attn_idxs" does
// not list, or none.
absl::StatusOr<std::vector<bool>> ReadConvLayers(const JsonObject& config, uint32_t layers) {
  std::vector<bool> listed(layers, false);
  const Json* indices = config.Find("full_attn_idxs");
  if (indices != nullptr) {
    listed.assign(layers, true);
    if (!indices->is_array()) return config.Bad("full_attn_idxs", "a list of numbers");
    for (const Json& index : *indices) {
      if (!index.is_number_unsigned() || index >= layers) {
        return config.Bad("full_attn_idxs", fmt::format("numbers in [0, {})", layers));
      }
      listed[index.get<uint32_t>()] = false;
    }
  }
  const Json* types = config.Find("layer_types");
  if (types == nullptr) return listed;
  if (!types->is_array() || types->size() != layers) {
    return config.Bad("layer_types", fmt::format("a list of {} texts", layers));
  }
  std::vector<bool> convs;
  for (const Json& type : *types) {
    if (type != "conv" && type != "full_attention") {
      return config.Bad("layer_types", "conv or full_attention each");
    }
    convs.push_back(type == "conv");
  }
  if (indices == nullptr || convs == listed) return convs;
  return config.Bad("full_attn_idxs", "those layers that are full_attention in \"layer_types\"");
}

// Keys that repeat another one, or that may only have the value of the model that is computed.
absl::Status CheckConvKeys(const JsonObject& config) {
  struct Repeated {
    const char* key;
    const char* of;
  };
  for (const Repeated& row :
       {Repeated{"block_dim", "hidden_size"}, Repeated{"conv_dim", "hidden_size"},
        Repeated{"conv_dim_out", "hidden_size"}, Repeated{"num_heads", "num_attention_heads"},
        Repeated{"block_norm_eps", "norm_eps"}, Repeated{"rms_norm_eps", "norm_eps"}}) {
    BATON_ASSIGN_OR_RETURN(const double wanted, config.Double(row.of));
    BATON_ASSIGN_OR_RETURN(const double value, config.DoubleOr(row.key, wanted));
    if (value != wanted)
      return config.Bad(row.key, fmt::format("the {} of \"{}\"", wanted, row.of));
  }
  struct Only {
    const char* key;
    bool value;
  };
  for (const Only& row :
       {Only{"conv_bias", false}, Only{"block_use_swiglu", true}, Only{"use_pos_enc", true}}) {
    BATON_ASSIGN_OR_RETURN(const bool value, config.BoolOr(row.key, row.value));
    if (value != row.value) return config.Unsupported(row.key, row.value ? "true" : "false");
  }
  return config.Has("sliding_window") ? config.Unsupported("sliding_window", "null") : OkStatus();
}

absl::Status ReadConvolutions(const JsonObject& config, HfConfig& out) {
  BATON_RETURN_IF_ERROR(CheckConvKeys(config));
  const std::string arch(out.traits->name);
  // lfm2_moe states the width itself.
  BATON_ASSIGN_OR_RETURN(const uint32_t ffn, out.traits->scored_experts
                                                 ? config.Uint("intermediate_size")
                                                 : ReadConvFfn(config));
  out.keys.AddU32(arch + ".feed_forward_length", ffn);
  BATON_ASSIGN_OR_RETURN(const uint32_t taps, config.Uint("conv_L_cache"));
  if (taps < kMinConvTaps || taps > kernels::kMaxConvTaps) {
    return config.Bad("conv_L_cache", fmt::format("[{}, {}]", kMinConvTaps, kernels::kMaxConvTaps));
  }
  out.keys.AddU32(arch + ".shortconv.l_cache", taps);
  BATON_ASSIGN_OR_RETURN(const uint32_t layers, config.Uint("num_hidden_layers"));
  if (layers == 0 || layers > kMaxLayers) {
    return config.Bad("num_hidden_layers", fmt::format("[1, {}]", kMaxLayers));
  }
  if (out.num_kv_heads > kMaxHeads) {
    return config.Bad("num_key_value_heads", fmt::format("[1, {}]", kMaxHeads));
  }
  BATON_ASSIGN_OR_RETURN(const std::vector<bool> convs, ReadConvLayers(config, layers));
  std::vector<int32_t> kv_heads;
  for (const bool conv : convs)
    kv_heads.push_back(conv ? 0 : static_cast<int32_t>(out.num_kv_heads));
  out.keys.AddInts(arch + ".attention.head_count_kv", kv_heads);
  return OkStatus();
}

// Where each layer has its own number and all are equal, that number stands for the list.
void JoinEqualNumbers(Json& config) {
  const auto layers = config.find("num_hidden_layers");
  if (layers == config.end()) return;
  for (const char* key : {"intermediate_size", "num_attention_heads", "num_key_value_heads"}) {
    const auto list = config.find(key);
    if (list == config.end() || !list->is_array() || list->empty()) continue;
    if (!list->front().is_number_unsigned() || *layers != list->size()) continue;
    const Json first = list->front();
    const auto is_other = [&first](const Json& number) { return number != first; };
    if (std::none_of(list->begin(), list->end(), is_other)) *list = first;
  }
}

// The model_type of a text part. That of mistral3 has one of two.
absl::StatusOr<std::string> ReadTextType(const JsonObject& inner, const ArchitectureTraits& traits,
                                         bool is_mistral3) {
  const std::string_view usual = is_mistral3 ? "mistral" : traits.hf_type;
  BATON_ASSIGN_OR_RETURN(std::string type, inner.StringOr("model_type", usual));
  if (type == usual || (is_mistral3 && type == traits.hf_type)) return type;
  return inner.Unsupported("model_type", is_mistral3 ? "ministral3 or mistral" : traits.hf_type);
}

// Takes those keys out of the outer config that only say again what the text part says, there or in
// its rope_parameters. Lists and objects stay: nothing here follows their depth.
void DropRepeatedKeys(const Json& text_config, Json& outer) {
  const auto rope = text_config.find("rope_parameters");
  const auto says = [](const Json& object, const std::string& key, const Json& value) {
    const auto member = object.find(key);
    return member != object.end() && member->is_primitive() && *member == value;
  };
  for (auto it = outer.begin(); it != outer.end();) {
    const bool is_own = it.key() == "model_type" || it.key() == "tie_word_embeddings";
    const bool is_said =
        it.value().is_primitive() &&
        (says(text_config, it.key(), it.value()) ||
         (rope != text_config.end() && rope->is_object() && says(*rope, it.key(), it.value())));
    it = is_said && !is_own ? outer.erase(it) : std::next(it);
  }
}

// Puts the text part of a model that reads images too in the place of the whole. Moves it: a copy
// would follow the depth of its values, which the file chooses. Whether mistral3 ties is for its
// outer config to say. Either may have the quantization_config.
absl::Status TakeTextConfig(Json& json, HfConfig& out) {
  const ArchitectureTraits& traits = *out.traits;
  const JsonObject outer(json, "config.json");
  const bool is_mistral3 = json["model_type"] == "mistral3";
  const Json* text_config = outer.Find("text_config");
  if (text_config == nullptr) return outer.Missing("text_config");
  if (!text_config->is_object()) return outer.Bad("text_config", "an object");
  DropRepeatedKeys(*text_config, json);
  BATON_RETURN_IF_ERROR(CheckHfKeys(outer, HfObject::kOuter, traits));
  const JsonObject inner(*text_config, kTextConfig);
  BATON_ASSIGN_OR_RETURN(const HfQuantization of_text, ReadHfQuantization(inner));
  if (of_text.method != HfQuantMethod::kNone) out.quantization = of_text;
  BATON_ASSIGN_OR_RETURN(const std::string type, ReadTextType(inner, traits, is_mistral3));
  BATON_ASSIGN_OR_RETURN(const bool inner_ties,
                         inner.BoolOr("tie_word_embeddings", traits.hf_tied));
  BATON_ASSIGN_OR_RETURN(const bool ties, outer.BoolOr("tie_word_embeddings", inner_ties));
  if (!is_mistral3 && inner.Has("tie_word_embeddings") && ties != inner_ties) {
    return outer.Bad("tie_word_embeddings", "the value that text_config has");
  }
  Json taken = std::move(json["text_config"]);
  taken["model_type"] = type;
  taken["tie_word_embeddings"] = ties;
  json = std::move(taken);
  return OkStatus();
}

// Whether a class of transformers of this name computes the next token's logits. One that ends with
// "Model" alone has no head: the names of its tensors tell whether there is one.
bool IsLanguageModel(std::string_view name) {
  for (const std::string_view part : {"ForCausalLM", "ForConditionalGeneration", "LMHead"}) {
    if (name.find(part) != std::string_view::npos) return true;
  }
  const bool has_other_head =
      name.find("For") != std::string_view::npos || name.find("Reward") != std::string_view::npos;
  return name.ends_with("Model") && !has_other_head;
}

// A classifier or reward model has the layers of a language model, and tied embeddings would stand
// for the head that it lacks.
absl::Status CheckHead(const JsonObject& config) {
  const Json* names = config.Find("architectures");
  if (names == nullptr || names->empty()) return OkStatus();
  if (!names->is_array()) return config.Bad("architectures", "a list of texts");
  for (const Json& name : *names) {
    if (!name.is_string()) return config.Bad("architectures", "a list of texts");
    if (IsLanguageModel(name.get_ref<const std::string&>())) return OkStatus();
  }
  return config.Unsupported("architectures", "language models, as ...ForCausalLM");
}

// lfm2's files also have "tie_embedding".
absl::Status ReadTied(const JsonObject& config, HfConfig& out) {
  constexpr const char* kKey = "tie_word_embeddings";
  BATON_ASSIGN_OR_RETURN(out.tied, config.BoolOr(kKey, out.traits->hf_tied));
  out.says_tied = config.Has(kKey);
  if (!out.traits->short_convs || !config.Has("tie_embedding")) return OkStatus();
  BATON_ASSIGN_OR_RETURN(const bool tied, config.BoolOr("tie_embedding", out.tied));
  if (out.says_tied && tied != out.tied) {
    return config.Bad("tie_embedding", fmt::format("the {} of \"{}\"", out.tied, kKey));
  }
  out.tied = tied;
  out.says_tied = true;
  return OkStatus();
}

// Without parameters of rotation gpt_oss has those of its class. For a null in their older place
// releases of transformers before 5 scale nothing, and later ones take the same parameters.
absl::Status CheckNullScaling(const JsonObject& config) {
  constexpr const char* kKey = "rope_scaling";
  const bool is_gpt_oss = config.object().at("model_type") == "gpt_oss";
  const auto scaling = config.object().find(kKey);
  const bool is_null = scaling != config.object().end() && IsNothing(*scaling);
  if (!is_gpt_oss || !is_null || config.Has("rope_parameters")) return OkStatus();
  return FolderError(FolderErrorCode::kBadValue,
                     fmt::format("{}: \"{}\" is null or empty, and releases of transformers do "
                                 "not agree what that is; wanted an object, or \"rope_parameters\"",
                                 config.where(), kKey));
}

absl::StatusOr<HfConfig> ReadTextConfig(const JsonObject& config, HfConfig out) {
  BATON_ASSIGN_OR_RETURN(const std::string type, config.String("model_type"));
  out.keys.AddString("general.architecture", out.traits->name);
  BATON_RETURN_IF_ERROR(CheckNeutral(config, *out.traits));
  BATON_RETURN_IF_ERROR(ReadHfBiases(config, type, out));
  BATON_RETURN_IF_ERROR(ReadTied(config, out));
  BATON_RETURN_IF_ERROR(ReadShape(config, out));
  if (out.traits->mixed_layers) {
    BATON_RETURN_IF_ERROR(ReadHfMixedLayers(config, out));
    return out;
  }
  if (out.traits->mamba) {
    BATON_RETURN_IF_ERROR(ReadHfMamba(config, out));
    return out;
  }
  BATON_ASSIGN_OR_RETURN(const uint32_t head_dim, ReadHeadDim(config, out));
  BATON_RETURN_IF_ERROR(ReadHfRope(config, head_dim, out));
  if (out.traits->scored_experts && out.traits->shared_experts) {
    BATON_RETURN_IF_ERROR(ReadHfSharedExperts(config, type, out));
  } else if (out.traits->scored_experts) {
    BATON_RETURN_IF_ERROR(ReadHfBiasedChoice(config, out));
  } else if (out.traits->experts) {
    BATON_RETURN_IF_ERROR(ReadExperts(config, out));
  }
  if (out.traits->unrotated_step > 0) BATON_RETURN_IF_ERROR(ReadUnrotated(config, out));
  if (out.traits->multipliers) BATON_RETURN_IF_ERROR(ReadMultipliers(config, out));
  if (out.traits->short_convs) {
    BATON_RETURN_IF_ERROR(ReadConvolutions(config, out));
    return out;
  }
  if (out.traits->delta_nets) {
    BATON_RETURN_IF_ERROR(ReadHfDeltaNets(config, out));
    return out;
  }
  if (out.traits->windowed) {
    BATON_RETURN_IF_ERROR(ReadWindow(config, head_dim, out));
  } else {
    BATON_RETURN_IF_ERROR(out.traits->uniform_window ? ReadUniformWindow(config, type, out)
                                                     : CheckNoWindow(config, type));
  }
  return out;
}

}  // namespace

absl::StatusOr<HfConfig> ReadHfConfig(std::string_view text) {
  BATON_ASSIGN_OR_RETURN(Json json, ParseHfConfigJson(text));
  HfConfig out;
  BATON_ASSIGN_OR_RETURN(out.quantization, ReadHfQuantization(JsonObject(json, "config.json")));
  BATON_ASSIGN_OR_RETURN(out.traits, ReadModelType(JsonObject(json, "config.json")));
  BATON_RETURN_IF_ERROR(CheckHead(JsonObject(json, "config.json")));
  constexpr std::array kWithImages = {"gemma3", "gemma4", "mistral3", "qwen3_5", "qwen3_5_moe"};
  out.has_images = std::ranges::any_of(
      kWithImages, [&json](const char* type) { return json["model_type"] == type; });
  if (out.has_images) {
    BATON_RETURN_IF_ERROR(TakeTextConfig(json, out));
    out.traits = FindArchitectureOfHf(json["model_type"].get_ref<const std::string&>());
  }
  BATON_RETURN_IF_ERROR(CheckNullScaling(JsonObject(json, "config.json")));
  AddHfDefaults(json["model_type"].get_ref<const std::string&>(), json);
  JoinEqualNumbers(json);
  return ReadTextConfig(JsonObject(json, out.has_images ? kTextConfig : "config.json"),
                        std::move(out));
}

bool IsHfHeadDim(uint32_t dim) {
  return dim >= kMinHeadDim && dim <= kMaxHeadDim && dim % kMinHeadDim == 0;
}

std::string HfHeadDimRange() {
  return fmt::format("a multiple of {} in [{}, {}]", kMinHeadDim, kMinHeadDim, kMaxHeadDim);
}

}  // namespace baton::model
