#include "src/model/hf_tensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <limits>

#include "kernels/math.h"
#include "src/model/hf_deepseek.h"
#include "src/model/hf_fp8.h"
#include "src/model/model_config.h"

namespace baton::model {

using kernels::FloatFromBf16;
using kernels::FloatFromE4m3;
using kernels::FloatFromHalf;

namespace {

// 2^(e - 127), of which the smallest is subnormal; 255 is NaN.
float FloatFromE8m0(std::byte code) {
  const auto e = static_cast<uint32_t>(code);
  if (e == 255) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(e == 0 ? 0x00400000u : e << 23);
}

// A name of a layer's tensor: after "model.layers.N.", and after "blk.N.".
struct PartName {
  std::string_view hf;
  std::string_view gguf;
};
constexpr std::array kWholeNames = {
    PartName{"model.embed_tokens.weight", "token_embd.weight"},
    PartName{"model.norm.weight", "output_norm.weight"},
    PartName{"lm_head.weight", "output.weight"},
};
constexpr std::array kLayerNames = {
    PartName{"input_layernorm", "attn_norm"},    PartName{"self_attn.o_proj", "attn_output"},
    PartName{"self_attn.q_norm", "attn_q_norm"}, PartName{"self_attn.k_norm", "attn_k_norm"},
    PartName{"mlp.down_proj", "ffn_down"},       PartName{"mlp.gate", "ffn_gate_inp"},
};
constexpr std::array kApartNames = {
    PartName{"self_attn.q_proj", "attn_q"}, PartName{"self_attn.k_proj", "attn_k"},
    PartName{"self_attn.v_proj", "attn_v"}, PartName{"mlp.gate_proj", "ffn_gate"},
    PartName{"mlp.up_proj", "ffn_up"},
};
constexpr std::array kFusedNames = {
    PartName{"self_attn.qkv_proj", "attn_qkv"},
    PartName{"mlp.gate_up_proj", "ffn_up"},
};
constexpr std::array kGptOssNames = {
    PartName{"mlp.router", "ffn_gate_inp"},
    PartName{"post_attention_layernorm", "post_attention_norm"},
};
// The norm after attention has one name and two places.
constexpr std::array kTwoNormNames = {PartName{"post_attention_layernorm", "ffn_norm"}};
constexpr std::array kFourNormNames = {
    PartName{"post_attention_layernorm", "post_attention_norm"},
    PartName{"pre_feedforward_layernorm", "ffn_norm"},
    PartName{"post_feedforward_layernorm", "post_ffw_norm"},
};
// lfm2's, instead of those above.
constexpr std::array kConvNames = {
    PartName{"operator_norm", "attn_norm"},
    PartName{"self_attn.q_proj", "attn_q"},
    PartName{"self_attn.k_proj", "attn_k"},
    PartName{"self_attn.v_proj", "attn_v"},
    PartName{"self_attn.out_proj", "attn_output"},
    PartName{"self_attn.q_layernorm", "attn_q_norm"},
    PartName{"self_attn.k_layernorm", "attn_k_norm"},
    PartName{"conv.in_proj", "shortconv.in_proj"},
    PartName{"conv.conv", "shortconv.conv"},
    PartName{"conv.out_proj", "shortconv.out_proj"},
    PartName{"ffn_norm", "ffn_norm"},
    PartName{"feed_forward.w1", "ffn_gate"},
    PartName{"feed_forward.w3", "ffn_up"},
    PartName{"feed_forward.w2", "ffn_down"},
    PartName{"feed_forward.gate", "ffn_gate_inp"},
};
// gemma4's, beside the others.
constexpr std::array kWholeMixedNames = {
    PartName{"model.embed_tokens_per_layer.weight", "per_layer_token_embd.weight"},
    PartName{"model.per_layer_model_projection.weight", "per_layer_model_proj.weight"},
    PartName{"model.per_layer_projection_norm.weight", "per_layer_proj_norm.weight"},
};
constexpr std::array kMixedNames = {
    PartName{"per_layer_input_gate", "inp_gate"},
    PartName{"per_layer_projection", "proj"},
    PartName{"post_per_layer_input_norm", "post_norm"},
};
// qwen3_5's, besides those of attention and of the feed-forward layer.
constexpr std::array kDeltaNames = {
    PartName{"post_attention_layernorm", "post_attention_norm"},
    PartName{"linear_attn.in_proj_qkv", "attn_qkv"},
    PartName{"linear_attn.in_proj_z", "attn_gate"},
    PartName{"linear_attn.in_proj_b", "ssm_beta"},
    PartName{"linear_attn.in_proj_a", "ssm_alpha"},
    PartName{"linear_attn.conv1d", "ssm_conv1d"},
    PartName{"linear_attn.norm", "ssm_norm"},
    PartName{"linear_attn.out_proj", "ssm_out"},
    // Tensors of layers that predict several tokens (NameOfPrediction).
    PartName{"nextn.fc", "nextn.eh_proj"},
    PartName{"nextn.embed_tokens", "nextn.embed_tokens"},
    PartName{"nextn.pre_fc_norm_embedding", "nextn.enorm"},
    PartName{"nextn.pre_fc_norm_hidden", "nextn.hnorm"},
    PartName{"nextn.norm", "nextn.shared_head_norm"},
};
// nemotron_h's, instead of those above: a layer has one mixer, of three kinds.
constexpr std::array kMambaNames = {
    PartName{"norm", "attn_norm"},           PartName{"mixer.q_proj", "attn_q"},
    PartName{"mixer.k_proj", "attn_k"},      PartName{"mixer.v_proj", "attn_v"},
    PartName{"mixer.o_proj", "attn_output"}, PartName{"mixer.up_proj", "ffn_up"},
    PartName{"mixer.down_proj", "ffn_down"}, PartName{"mixer.in_proj", "ssm_in"},
    PartName{"mixer.conv1d", "ssm_conv1d"},  PartName{"mixer.norm", "ssm_norm"},
    PartName{"mixer.out_proj", "ssm_out"},
};
// The expert that serves every row, and what weighs it (qwen3_5_moe).
constexpr std::array kGatedExpertNames = {
    PartName{"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
    PartName{"mlp.shared_expert.up_proj", "ffn_up_shexp"},
    PartName{"mlp.shared_expert.down_proj", "ffn_down_shexp"},
    PartName{"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
};
constexpr std::array kExpertNames = {
    PartName{"gate_proj", "ffn_gate_exps"}, PartName{"up_proj", "ffn_up_exps"},
    PartName{"down_proj", "ffn_down_exps"}, PartName{"w1", "ffn_gate_exps"},
    PartName{"w3", "ffn_up_exps"},          PartName{"w2", "ffn_down_exps"},
};

std::string_view FindPart(std::span<const PartName> names, std::string_view hf) {
  for (const PartName& row : names) {
    if (row.hf == hf) return row.gguf;
  }
  return "";
}

// Takes `prefix`, a number below `limit` in decimal without leading zeros, and a dot from `text`.
std::optional<uint32_t> TakeNumber(std::string_view prefix, uint32_t limit,
                                   std::string_view& text) {
  if (!text.starts_with(prefix)) return std::nullopt;
  const std::string_view rest = text.substr(prefix.size());
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  const size_t length = static_cast<size_t>(end - rest.data());
  const bool ugly = length == 0 || (length > 1 && rest[0] == '0');
  if (error != std::errc() || ugly || number >= limit) return std::nullopt;
  if (length >= rest.size() || rest[length] != '.') return std::nullopt;
  text = rest.substr(length + 1);
  return number;
}

// The bias that an ExpertRule adds to choose.
bool IsChoiceBias(const ArchitectureTraits& traits, std::string_view name) {
  return name ==
         (traits.shared_experts ? "mlp.gate.e_score_correction_bias" : "feed_forward.expert_bias");
}

// The experts' matrices as transformers 5 holds them: one tensor for all, the gates above the ups.
bool PlanAllExperts(std::string_view name, uint32_t layer, HfTensorPlan& out) {
  if (name == "mlp.experts.down_proj" || name == "feed_forward.experts.down_proj") {
    out.gguf_name = fmt::format("blk.{}.ffn_down_exps.weight", layer);
  } else if (name == "mlp.experts.gate_up_proj" || name == "feed_forward.experts.gate_up_proj") {
    out.gguf_name = fmt::format("blk.{}.ffn_gate_exps.weight", layer);
    out.second_gguf_name = fmt::format("blk.{}.ffn_up_exps.weight", layer);
  } else {
    return false;
  }
  out.all_experts = true;
  return true;
}

// Tensors of gpt_oss that hold something of all experts.
bool PlanExpertForm(std::string_view name, uint32_t layer, HfTensorPlan& out) {
  struct Form {
    std::string_view suffix;
    HfExpertForm form;
    std::string_view kind;
  };
  constexpr Form kForms[] = {{"", HfExpertForm::kTransposed, "weight"},
                             {"_bias", HfExpertForm::kBias, "bias"},
                             {"_blocks", HfExpertForm::kMxfp4, "weight"},
                             {"_scales", HfExpertForm::kMxfp4Scales, "weight"}};
  for (const std::string_view part : {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"}) {
    if (!name.starts_with(part)) continue;
    for (const Form& row : kForms) {
      if (name.substr(part.size()) != row.suffix) continue;
      const auto gguf = [&](std::string_view matrix) {
        return fmt::format("blk.{}.ffn_{}_exps.{}", layer, matrix, row.kind);
      };
      const bool is_down = part.ends_with("down_proj");
      out.gguf_name = gguf(is_down ? "down" : "gate");
      if (!is_down) out.second_gguf_name = gguf("up");
      out.expert_form = row.form;
      return true;
    }
  }
  return false;
}

// Vectors of a gated delta net whose names have no kind.
bool PlanHfDelta(std::string_view name, uint32_t layer, HfTensorPlan& out) {
  out.is_log = name == "linear_attn.A_log";
  if (!out.is_log && name != "linear_attn.dt_bias") return false;
  out.gguf_name = fmt::format("blk.{}.{}", layer, out.is_log ? "ssm_a" : "ssm_dt.bias");
  out.v_heads = HfVHeads::kOneEach;
  return true;
}

// Vectors of Mamba-2 whose names have no kind.
bool PlanHfMamba(std::string_view name, uint32_t layer, HfTensorPlan& out) {
  constexpr std::array kNames = {PartName{"mixer.A_log", "ssm_a"}, PartName{"mixer.D", "ssm_d"},
                                 PartName{"mixer.dt_bias", "ssm_dt.bias"}};
  const std::string_view gguf = FindPart(kNames, name);
  if (gguf.empty()) return false;
  out.gguf_name = fmt::format("blk.{}.{}", layer, gguf);
  out.is_log = gguf == "ssm_a";
  out.is_column = gguf != "ssm_dt.bias";
  return true;
}

// How a tensor of a gated delta net holds the heads of v.
HfVHeads VHeadsOf(std::string_view gguf) {
  if (gguf == "attn_qkv" || gguf == "ssm_conv1d") return HfVHeads::kAfterKeys;
  if (gguf == "attn_gate") return HfVHeads::kRows;
  if (gguf == "ssm_beta" || gguf == "ssm_alpha") return HfVHeads::kOneEach;
  return gguf == "ssm_out" ? HfVHeads::kColumns : HfVHeads::kNone;
}

// The name in GGUF of a part of a layer that has no convolution; empty where it has no such part.
std::string_view PartOfLayer(const ArchitectureTraits& traits, std::string_view part) {
  if (traits.mamba) return FindPart(kMambaNames, part);
  std::string_view gguf;
  if (traits.expert_biases) gguf = FindPart(kGptOssNames, part);
  if (traits.latent_kv) gguf = LatentPartOfHf(part);
  if (traits.delta_nets) gguf = FindPart(kDeltaNames, part);
  if (gguf.empty() && traits.gated_shared_expert) gguf = FindPart(kGatedExpertNames, part);
  if (gguf.empty()) gguf = FindPart(kLayerNames, part);
  if (gguf.empty()) {
    gguf = traits.fused_projections ? FindPart(kFusedNames, part) : FindPart(kApartNames, part);
  }
  if (gguf.empty() && traits.mixed_layers) gguf = FindPart(kMixedNames, part);
  if (gguf.empty() && traits.post_norms) gguf = FindPart(kFourNormNames, part);
  if (gguf.empty() && !traits.post_norms) gguf = FindPart(kTwoNormNames, part);
  return gguf;
}

}  // namespace

std::string TextNameOfHfTensor(std::string_view name) {
  struct Prefix {
    std::string_view is;
    std::string_view becomes;
  };
  constexpr Prefix kPrefixes[] = {{"language_model.model.", "model."},
                                  {"language_model.lm_head.", "lm_head."},
                                  {"model.language_model.", "model."},
                                  {"lm_head.", "lm_head."}};
  for (const Prefix& prefix : kPrefixes) {
    if (!name.starts_with(prefix.is)) continue;
    return std::string(prefix.becomes) + std::string(name.substr(prefix.is.size()));
  }
  constexpr std::string_view kImages[] = {
      "vision_tower.",       "multi_modal_projector.",       "visual.",
      "model.vision_tower.", "model.embed_vision.",          "model.audio_tower.",
      "model.embed_audio.",  "model.multi_modal_projector.", "model.visual."};
  const auto begins = [name](std::string_view image) { return name.starts_with(image); };
  // Any other tensor keeps its name, which no text model has.
  return std::ranges::any_of(kImages, begins) ? std::string() : std::string(name);
}

std::optional<HfTensorPlan> PlanHfTensor(const ArchitectureTraits& traits, std::string_view name,
                                         size_t num_dims) {
  HfTensorPlan out;
  out.as_f32 = num_dims == 1;
  const bool is_norm = name.ends_with("norm.weight") || name.find(".pre_fc_norm_") != name.npos;
  const bool gemma_norm =
      traits.hf_norms_minus_one && is_norm && !name.ends_with("linear_attn.norm.weight");
  out.plus_one = gemma_norm;
  if (const std::string_view whole = FindPart(kWholeNames, name); !whole.empty()) {
    out.gguf_name = std::string(whole);
    return out;
  }
  if (const std::string_view whole = FindPart(kWholeMixedNames, name);
      traits.mixed_layers && !whole.empty()) {
    out.gguf_name = std::string(whole);
    return out;
  }
  if (traits.short_convs && name == "model.embedding_norm.weight") {
    out.gguf_name = "token_embd_norm.weight";
    return out;
  }
  if (IsHfActivationScale(name)) return out;
  const std::optional<uint32_t> layer = TakeNumber("model.layers.", kMaxLayers, name);
  if (!layer.has_value()) return std::nullopt;
  if (name == "self_attn.rotary_emb.inv_freq") return out;
  if (traits.expert_biases && PlanExpertForm(name, *layer, out)) return out;
  if (traits.experts && !traits.expert_biases && PlanAllExperts(name, *layer, out)) return out;
  if (traits.delta_nets && PlanHfDelta(name, *layer, out)) return out;
  if (traits.mamba && PlanHfMamba(name, *layer, out)) return out;
  if (traits.sinks && name == "self_attn.sinks") {
    out.gguf_name = fmt::format("blk.{}.attn_sinks.weight", *layer);
    return out;
  }
  if (traits.mixed_layers && name == "layer_scalar") {
    out.gguf_name = fmt::format("blk.{}.layer_output_scale.weight", *layer);
    return out;
  }
  if (traits.scored_experts && IsChoiceBias(traits, name)) {
    out.gguf_name = fmt::format("blk.{}.exp_probs_b.bias", *layer);
    return out;
  }
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view kind = name.substr(dot + 1);
  std::string_view part = name.substr(0, dot);
  std::string_view gguf;
  const std::string_view experts = traits.short_convs ? "feed_forward.experts." : "mlp.experts.";
  if (traits.experts && part.starts_with(experts)) {
    out.expert = TakeNumber(experts, kMaxExperts, part);
    if (out.expert.has_value()) gguf = FindPart(kExpertNames, part);
  } else if (traits.short_convs) {
    gguf = FindPart(kConvNames, part);
  } else {
    gguf = PartOfLayer(traits, part);
  }
  if (gguf.empty() || (kind != "weight" && kind != "bias")) return std::nullopt;
  out.is_conv = (gguf == "shortconv.conv" || gguf == "ssm_conv1d") && kind == "weight";
  if (traits.delta_nets) out.v_heads = VHeadsOf(gguf);
  out.is_row = gguf == "ffn_gate_inp_shexp" && kind == "weight";
  out.is_grouped = traits.mamba && gguf == "ssm_norm";
  out.as_f32 = out.as_f32 || gguf == "ffn_gate_inp" || out.is_conv || out.is_row;
  out.permuted_q = traits.rope_interleaved && !traits.latent_kv && gguf == "attn_q";
  out.permuted_k = traits.rope_interleaved && gguf == "attn_k";
  out.gguf_name = fmt::format("blk.{}.{}.{}", *layer, gguf, kind);
  out.is_kv_b = gguf == "attn_k_b" && kind == "weight";
  if (out.is_kv_b) out.second_gguf_name = fmt::format("blk.{}.attn_v_b.weight", *layer);
  return out;
}

void PermuteRows(const PermuteShape& shape, std::span<const std::byte> in, std::byte* out) {
  const uint64_t head_bytes = 2 * shape.half * shape.row_bytes;
  for (uint64_t head = 0; head < shape.heads; ++head) {
    const std::byte* head_in = in.data() + head * head_bytes;
    for (uint64_t i = 0; i < shape.half; ++i) {
      for (uint64_t pair = 0; pair < 2; ++pair, out += shape.row_bytes) {
        std::memcpy(out, head_in + (pair * shape.half + i) * shape.row_bytes, shape.row_bytes);
      }
    }
  }
}

void ToF32(SafetensorsType type, std::span<const std::byte> in, float added, float* out) {
  const size_t size = BytesOf(type);
  for (size_t i = 0; i < in.size() / size; ++i) {
    uint16_t half = 0;
    float value = 0;
    switch (type) {
      case SafetensorsType::kF8E4M3:
        value = FloatFromE4m3(static_cast<uint8_t>(in[i]));
        break;
      case SafetensorsType::kF8E8M0:
        value = FloatFromE8m0(in[i]);
        break;
      case SafetensorsType::kU8:  // no numbers: the caller has refused them
      case SafetensorsType::kI8:
      case SafetensorsType::kI32:
      case SafetensorsType::kI64:
        break;
      case SafetensorsType::kF32:
        std::memcpy(&value, in.data() + i * size, size);
        break;
      case SafetensorsType::kF16:
        std::memcpy(&half, in.data() + i * size, size);
        value = FloatFromHalf(half);
        break;
      case SafetensorsType::kBf16:
        std::memcpy(&half, in.data() + i * size, size);
        value = FloatFromBf16(half);
        break;
    }
    out[i] = added == 0.0f ? value : value + added;
  }
}

}  // namespace baton::model
