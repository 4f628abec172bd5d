#include "src/model/hf_keys.h"

#include <algorithm>
#include <span>
#include <string_view>

#include "src/model/hf_names.h"

namespace baton::model {
namespace {

using Json = nlohmann::json;

// Read by hf_config.cc, hf_rope.cc and hf_quantization.cc, which check the values. The order is
// that of transformers' configuration classes.
constexpr std::string_view kRead[] = {
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "max_position_embeddings",
    "rms_norm_eps",
    "tie_word_embeddings",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "partial_rotary_factor",
    "original_max_position_embeddings",
    "attention_bias",
    "mlp_bias",
    "use_sliding_window",
    "sliding_window",
    "max_window_layers",
    "layer_types",
    "quantization_config",
    "compression_config",
};
constexpr std::string_view kReadWithWindow[] = {
    "hidden_activation",      "query_pre_attn_scalar",   "rope_local_base_freq",
    "sliding_window_pattern", "_sliding_window_pattern",
};
// The last three have no effect without enable_moe_block, which is refused.
constexpr std::string_view kReadWithMixedLayers[] = {
    "global_head_dim",
    "num_global_key_value_heads",
    "per_layer_config",
    "attention_k_eq_v",
    "num_kv_shared_layers",
    "use_double_wide_mlp",
    "hidden_size_per_layer_input",
    "vocab_size_per_layer_input",
    "final_logit_softcapping",
    "use_bidirectional_attention",
    "enable_moe_block",
    "num_experts",
    "top_k_experts",
    "moe_intermediate_size",
};
constexpr std::string_view kReadWithExperts[] = {
    "num_experts",    "num_local_experts",   "num_experts_per_tok", "moe_intermediate_size",
    "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers",
};
constexpr std::string_view kReadWithExpertBiases[] = {
    "num_experts",       "num_local_experts", "num_experts_per_tok",
    "experts_per_token", "swiglu_alpha",      "swiglu_limit",
};
constexpr std::string_view kReadWithGatedSharedExpert[] = {"shared_expert_intermediate_size"};
constexpr std::string_view kReadWithSharedExperts[] = {
    "kv_lora_rank",
    "q_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "qk_head_dim",
    "v_head_dim",
    "n_routed_experts",
    "num_experts",
    "num_local_experts",
    "n_shared_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "first_k_dense_replace",
    "norm_topk_prob",
    "routed_scaling_factor",
    "n_group",
    "topk_group",
    "topk_method",
    "scoring_func",
    "moe_layer_freq",
    "rope_interleave",
    "num_nextn_predict_layers",
    "num_mtp_layers",
    // Losses of training.
    "aux_loss_alpha",
    "seq_aux",
};
constexpr std::string_view kReadWithConvsAndExperts[] = {
    "norm_eps",
    "conv_L_cache",
    "conv_bias",
    "full_attn_idxs",
    "conv_dim",
    "conv_dim_out",
    "num_heads",
    "use_pos_enc",
    "tie_embedding",
    "num_experts",
    "num_local_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "num_dense_layers",
    "norm_topk_prob",
    "use_expert_bias",
    "routed_scaling_factor",
};
constexpr std::string_view kReadWithMultipliers[] = {
    "attention_multiplier",
    "embedding_multiplier",
    "residual_multiplier",
    "logits_scaling",
};
constexpr std::string_view kReadUnrotated[] = {"no_rope_layers", "no_rope_layer_interval"};
constexpr std::string_view kReadWithConvs[] = {
    "norm_eps",
    "conv_L_cache",
    "conv_bias",
    "full_attn_idxs",
    "block_ff_dim",
    "block_auto_adjust_ff_dim",
    "block_ffn_dim_multiplier",
    "block_multiple_of",
    "block_dim",
    "block_norm_eps",
    "block_use_swiglu",
    "conv_dim",
    "conv_dim_out",
    "num_heads",
    "use_pos_enc",
    "tie_embedding",
    // How training began.
    "block_mlp_init_scale",
    "block_out_init_scale",
    "block_use_xavier_init",
    "conv_use_xavier_init",
};
constexpr std::string_view kReadWithDeltaNets[] = {
    "linear_conv_kernel_dim",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "full_attention_interval",
    "attn_output_gate",
    "mamba_ssm_dtype",
    // Layers that predict several tokens are not computed.
    "mtp_num_hidden_layers",
    "mtp_use_dedicated_embeddings",
};
constexpr std::string_view kReadWithMamba[] = {
    "hybrid_override_pattern",
    "layers_block_type",
    "attention_head_dim",
    "layer_norm_epsilon",
    "mlp_hidden_act",
    "mamba_num_heads",
    "mamba_head_dim",
    "mamba_hidden_act",
    "mamba_proj_bias",
    "ssm_state_size",
    "n_groups",
    "conv_kernel",
    "use_bias",
    "use_conv_bias",
    "time_step_limit",
    // Sizes that others say too; how a program computes and what it keeps; how training began.
    "expand",
    "time_step_rank",
    "chunk_size",
    "mamba_ssm_dtype",
    "mamba_ssm_cache_dtype",
    "use_mamba_kernels",
    "num_logits_to_keep",
    "residual_in_fp32",
    "rescale_prenorm_residual",
    "time_step_min",
    "time_step_max",
    "time_step_floor",
    // Layers of experts, which no layer may be, and of prediction, of which there are none.
    "n_routed_experts",
    "num_local_experts",
    "n_shared_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "moe_latent_size",
    "moe_shared_expert_overlap",
    "routed_scaling_factor",
    "n_group",
    "topk_group",
    "norm_topk_prob",
    "mtp_layers_block_type",
    "mtp_hybrid_override_pattern",
};
constexpr std::string_view kReadOuter[] = {
    "model_type", "text_config", "tie_word_embeddings", "quantization_config", "compression_config",
};
constexpr std::string_view kReadOfRope[] = {
    "rope_theta",
    "rope_type",
    "type",
    "factor",
    "original_max_position_embeddings",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "truncate",
    "low_freq_factor",
    "high_freq_factor",
    "partial_rotary_factor",
};
// The second is that of the whole config again; transformers does not read it.
constexpr std::string_view kReadOfTemperature[] = {"llama_4_scaling_beta",
                                                   "max_position_embeddings"};
constexpr std::string_view kReadOfLongRope[] = {"short_factor", "long_factor"};
// Which of an image's three positions turns what; the positions of a text are one.
constexpr std::string_view kHarmlessOfTexts[] = {"mrope_section", "mrope_interleaved"};
// Keys of the parts that read images and sound.
constexpr std::string_view kHarmlessOuter[] = {
    "vision_config",        "mm_tokens_per_image",
    "vision_feature_layer", "vision_feature_select_strategy",
    "processor_class",      "projector_hidden_act",
    "spatial_merge_size",   "multimodal_projector_bias",
    "audio_config",         "vision_soft_tokens_per_image",
    "language_model_only",
};

// Names of files, releases and types in memory; training; how a program keeps or shows what it
// computed; how it samples; what other programs noted. PretrainedConfig of transformers 4.40 to
// 5.24 and its generation keys, and what published folders hold besides.
constexpr std::string_view kHarmless[] = {
    "_name_or_path",
    "_model_name_or_path",  // of a GGUF file that transformers has read
    "name_or_path",
    "_commit_hash",
    "_from_model_config",
    "architectures",
    "auto_map",
    "transformers_version",
    "transformers.js_config",
    "torch_dtype",
    "dtype",
    "params_dtype",
    "use_bfloat16",
    "bf16",
    "fp16",
    "fp32",
    "torchscript",
    "tf_legacy_loss",
    "xla_device",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_attn_implementation_internal",
    "attn_implementation",
    "_experts_implementation",
    "_experts_implementation_internal",
    "experts_implementation",
    "_flash_attn_2_enabled",
    "use_flash_attn",
    "use_flash_attention",
    "use_flash_attention_2",
    "flash_attention",
    "use_cache",
    "use_kernel",
    "use_kernels",
    "cache_implementation",
    "cache_config",
    "compile_config",
    "return_dict",
    "use_return_dict",
    "return_dict_in_generate",
    "output_hidden_states",
    "output_attentions",
    "output_scores",
    "output_logits",
    "output_router_logits",
    "tie_last_hidden_states",
    "chunk_size_feed_forward",
    "pretraining_tp",
    "tensor_parallel_size",
    "is_decoder",
    "is_llama_config",
    "tie_encoder_decoder",
    "initializer_range",
    "initializer_factor",
    "init_std",
    "init_method",
    "embedding_initializer_range",
    "gradient_checkpointing",
    "use_gradient_checkpointing",
    "gradient_checkpointing_use_reentrant",
    "neftune_noise_alpha",
    "noisy_embedding_alpha",
    "router_jitter_noise",
    "router_z_loss_coef",
    "z_loss_coefficient",
    "label_smoothing",
    "finetuning_task",
    "task_specific_params",
    "problem_type",
    "id2label",
    "label2id",
    "num_labels",
    "tokenizer_class",
    "tokenizer_model_max_length",
    "tokenizer_padding_side",
    "bos_token",
    "eos_token",
    "pad_token",
    "unk_token",
    "sep_token",
    "cls_token",
    "mask_token",
    "boi_token",
    "eoi_token",
    "image_token",
    "video_token",
    "audio_token",
    "add_bos_token",
    "add_eos_token",
    "padding_side",
    "model_max_length",
    "max_sequence_length",
    "max_seq_length",
    "max_seq_len",
    "seq_length",
    "n_ctx",
    "n_positions",
    "prefix",
    "keys_to_ignore_at_inference",
    "ep_size",
    // gpt_oss says it in its rope parameters too, where transformers reads it.
    "initial_context_length",
    // Qwen2.5 1M: how another program attends beyond 262,144 tokens; transformers does not read it.
    "dual_chunk_attention_config",
    // GenerationConfig
    "max_length",
    "max_new_tokens",
    "min_length",
    "min_new_tokens",
    "max_time",
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "epsilon_cutoff",
    "eta_cutoff",
    "repetition_penalty",
    "encoder_repetition_penalty",
    "diversity_penalty",
    "length_penalty",
    "exponential_decay_length_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "num_beams",
    "num_beam_groups",
    "num_return_sequences",
    "early_stopping",
    "bad_words_ids",
    "force_words_ids",
    "suppress_tokens",
    "begin_suppress_tokens",
    "renormalize_logits",
    "remove_invalid_values",
    // Notes
    "model_name",
    "model_id",
    "base_model",
    "base_model_name_or_path",
    "license",
    "language",
    "version",
    "model_version",
    "description",
};
// Beginnings and ends of names that cannot change numbers either: ids of tokens, chances of
// dropping something in training, weights of losses. Texts of tokens are listed above one by one:
// names such as num_experts_per_token end like them.
constexpr std::string_view kHarmlessBegins[] = {"unsloth_", "summary_"};
constexpr std::string_view kHarmlessEnds[] = {
    "_token_id",  "_token_ids", "_token_index", "dropout",      "_dropout_prob",
    "_dropout_p", "_pdrop",     "_loss_coef",   "_loss_weight",
};
constexpr std::string_view kHarmlessOfRope[] = {"finetuned"};

// Keys that change numbers, and the values of theirs that do not, as JSON.
struct NeutralKey {
  std::string_view name;
  std::string_view values;  // a list
};
constexpr NeutralKey kNeutral[] = {
    {"is_causal", "[true]"},
    {"is_encoder_decoder", "[false]"},
    {"add_cross_attention", "[false]"},
    {"use_parallel_residual", "[false]"},
    {"use_mrope", "[false]"},
    {"rope_interleaved", "[false]"},
    {"rope_traditional", "[false]"},
    {"use_alibi", "[false]"},
    {"alibi", "[false]"},
    {"use_dynamic_ntk", "[false]"},
    {"use_logn_attn", "[false]"},
    {"use_mla", "[false]"},
    {"attn_output_gate", "[false]"},
    {"use_bidirectional_attention", "[false]"},
    {"use_qk_norm", "[false]"},
    {"attn_logit_softcapping", "[]"},
    {"final_logit_softcapping", "[]"},
    {"logit_scale", "[1]"},
    {"logits_scaling", "[1]"},
    {"embedding_multiplier", "[1]"},
    {"residual_multiplier", "[1]"},
    {"attention_chunk_size", "[0]"},
    {"num_kv_shared_layers", "[0]"},
    {"num_nextn_predict_layers", "[0]"},
    {"use_rope", "[true]"},
    {"rotary_pct", "[1]"},
    {"rope_percent", "[1]"},
    // Published phi4-mini.
    {"lm_head_bias", "[false]"},
    {"full_attn_mod", "[1]"},
    {"interpolate_factor", "[1]"},
};

bool IsHarmless(std::string_view key) {
  const auto begins = [key](std::string_view begin) { return key.starts_with(begin); };
  const auto ends = [key](std::string_view end) { return key.ends_with(end); };
  return IsIn(kHarmless, key) || std::ranges::any_of(kHarmlessBegins, begins) ||
         std::ranges::any_of(kHarmlessEnds, ends);
}

// Keys that only some architectures have.
bool IsReadByTraits(std::string_view key, const ArchitectureTraits& traits) {
  const bool has_plain_experts = traits.experts && !traits.expert_biases && !traits.scored_experts;
  const bool has_scored_and_shared = traits.scored_experts && traits.shared_experts;
  const bool has_convs_alone = traits.short_convs && !traits.scored_experts;
  const bool has_convs_and_experts = traits.short_convs && traits.scored_experts;
  return (traits.windowed && IsIn(kReadWithWindow, key)) ||
         (traits.mixed_layers && IsIn(kReadWithMixedLayers, key)) ||
         (has_plain_experts && IsIn(kReadWithExperts, key)) ||
         (has_scored_and_shared && IsIn(kReadWithSharedExperts, key)) ||
         (traits.gated_shared_expert && IsIn(kReadWithGatedSharedExpert, key)) ||
         (traits.expert_biases && IsIn(kReadWithExpertBiases, key)) ||
         (has_convs_alone && IsIn(kReadWithConvs, key)) ||
         (has_convs_and_experts && IsIn(kReadWithConvsAndExperts, key)) ||
         (traits.multipliers && IsIn(kReadWithMultipliers, key)) ||
         (traits.delta_nets && IsIn(kReadWithDeltaNets, key)) ||
         (traits.mamba && IsIn(kReadWithMamba, key)) ||
         (traits.unrotated_step > 0 && IsIn(kReadUnrotated, key));
}

bool IsKnown(std::string_view key, HfObject kind, const ArchitectureTraits& traits) {
  switch (kind) {
    case HfObject::kRope:
      return IsIn(kReadOfRope, key) || IsIn(kHarmlessOfRope, key) ||
             (traits.query_temperature && IsIn(kReadOfTemperature, key)) ||
             (traits.delta_nets && IsIn(kHarmlessOfTexts, key)) ||
             (traits.long_rope && IsIn(kReadOfLongRope, key));
    case HfObject::kOuter:
      return IsIn(kReadOuter, key) || IsIn(kHarmlessOuter, key) || IsHarmless(key);
    case HfObject::kModel:
      return IsIn(kRead, key) || IsReadByTraits(key, traits) || IsHarmless(key);
  }
  return false;
}

constexpr const char* kPartial = "partial_rotary_factor";

// Whether the parameters of rotation say how much of a head turns.
bool HoldsPartial(const Json& config) {
  const auto holds = [&config](const char* key) {
    const auto member = config.find(key);
    if (member == config.end() || !member->is_object()) return false;
    const auto partial = member->find(kPartial);
    return partial != member->end() && !partial->is_null();
  };
  return holds("rope_parameters") || holds("rope_scaling");
}

// Values that the configuration class of a model_type has for keys that are absent.
struct Defaults {
  std::string_view model_type;
  std::string_view values;  // an object
};
constexpr Defaults kDefaults[] = {
    {"mistral", R"({"num_key_value_heads": 8, "sliding_window": 4096})"},
    {"qwen2", R"({"num_key_value_heads": 32, "sliding_window": 4096})"},
    {"qwen3", R"({"num_key_value_heads": 32, "head_dim": 128, "sliding_window": 4096})"},
    {"qwen3_moe", R"({"num_key_value_heads": 4, "sliding_window": 4096})"},
    {"smollm3", R"({"num_key_value_heads": 4})"},
    {"lfm2", R"({"num_key_value_heads": 8, "norm_eps": 1e-5, "conv_L_cache": 3})"},
    {"deepseek_v2",
     R"({"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
         "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64,
         "n_shared_experts": 2, "moe_intermediate_size": 1407, "rms_norm_eps": 1e-6})"},
    {"deepseek_v3",
     R"({"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
         "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256,
         "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
         "first_k_dense_replace": 3, "routed_scaling_factor": 2.5, "n_group": 8,
         "topk_group": 4, "rms_norm_eps": 1e-6})"},
    {"lfm2_moe",
     R"({"num_key_value_heads": 8, "norm_eps": 1e-5, "conv_L_cache": 3, "num_experts": 32,
         "moe_intermediate_size": 1792})"},
    {"ministral3", R"({"num_key_value_heads": 8, "head_dim": 128})"},
    {"gemma3_text",
     R"({"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216,
         "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
         "head_dim": 256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-6,
         "query_pre_attn_scalar": 256, "sliding_window": 4096})"},
    {"gemma4_text",
     R"({"vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216,
         "num_hidden_layers": 30, "num_attention_heads": 8, "num_key_value_heads": 4,
         "head_dim": 256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-6,
         "sliding_window": 512, "hidden_size_per_layer_input": 256,
         "vocab_size_per_layer_input": 262144})"},
    {"qwen3_5_text",
     R"({"vocab_size": 248320, "hidden_size": 4096, "intermediate_size": 12288,
         "num_hidden_layers": 32, "num_attention_heads": 16, "num_key_value_heads": 4,
         "head_dim": 256, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
         "partial_rotary_factor": 0.25, "linear_conv_kernel_dim": 4,
         "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16,
         "linear_num_value_heads": 32})"},
    {"qwen3_5_moe_text",
     R"({"vocab_size": 248320, "hidden_size": 2048, "num_hidden_layers": 40,
         "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
         "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
         "partial_rotary_factor": 0.25, "linear_conv_kernel_dim": 4,
         "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16,
         "linear_num_value_heads": 32, "moe_intermediate_size": 512,
         "shared_expert_intermediate_size": 512, "num_experts_per_tok": 8,
         "num_experts": 256})"},
    {"nemotron_h",
     R"({"vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 21504,
         "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 4096,
         "layer_norm_epsilon": 1e-5, "ssm_state_size": 128, "mamba_num_heads": 128,
         "mamba_head_dim": 64, "n_groups": 8, "conv_kernel": 4})"},
    {"gpt_oss",
     R"({"vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880,
         "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8,
         "head_dim": 64, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
         "num_experts_per_tok": 4,
         "rope_parameters": {"rope_type": "yarn", "factor": 32.0, "truncate": false,
                             "original_max_position_embeddings": 4096}})"},
};

}  // namespace

absl::Status CheckHfKeys(const JsonObject& object, HfObject kind,
                         const ArchitectureTraits& traits) {
  for (const auto& [key, value] : object.object().items()) {
    const auto has_name = [&name = key](const NeutralKey& row) { return row.name == name; };
    const auto row = std::ranges::find_if(kNeutral, has_name);
    if (kind == HfObject::kModel && IsReadByTraits(key, traits)) continue;
    if (row != std::end(kNeutral)) {
      BATON_RETURN_IF_ERROR(object.CheckOneOf(row->name, row->values));
    } else if (!IsKnown(key, kind, traits) && !IsNothing(value)) {
      return object.Unsupported(
          key, fmt::format("null, since a {} model has no such key that is known", traits.hf_type));
    }
  }
  return OkStatus();
}

std::span<const std::string_view> HfRopeKeys() { return kReadOfRope; }

void AddHfDefaults(std::string_view model_type, Json& config) {
  // Only releases from 5 on have this class, and they take the value of rope_parameters first.
  const bool is_of_5 = model_type == "qwen3_5_text" || model_type == "qwen3_5_moe_text";
  if (is_of_5 && HoldsPartial(config)) config.erase(kPartial);
  for (const Defaults& row : kDefaults) {
    if (row.model_type != model_type) continue;
    const Json values = Json::parse(row.values);  // items() refers to it
    for (const auto& [key, value] : values.items()) {
      if (key == "rope_parameters") {
        // Releases before 5 had the parameters of rotation elsewhere. null is as if it were absent.
        const bool is_there = config.contains(key) && !config[key].is_null();
        if (!is_there && !config.contains("rope_scaling")) config[key] = value;
        continue;
      }
      if (key == kPartial && HoldsPartial(config)) continue;
      if (!config.contains(key)) config[key] = value;
    }
  }
}

}  // namespace baton::model
