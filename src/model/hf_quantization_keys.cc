#include "src/model/hf_quantization_keys.h"

#include <algorithm>
#include <string_view>

#include "src/model/hf_names.h"

namespace baton::model {
namespace {

// The lists come from what transformers 5.24, AutoAWQ, AutoGPTQ, GPTQModel, auto-round 0.16,
// compressed-tensors 0.20 and ModelOpt 0.47 write, and from published folders.

// Read by hf_quantization.cc, which checks the values.
constexpr std::string_view kReadOfFp8[] = {"quant_method", "fmt", "weight_block_size"};
constexpr std::string_view kReadOfMxfp4[] = {"quant_method"};
constexpr std::string_view kReadOfAwq[] = {
    "quant_method",      "bits",       "w_bit",        "version", "format",
    "checkpoint_format", "zero_point", "group_size",   "dynamic", "modules_to_not_convert",
    "backend",           "pack_dtype", "q_group_size",
};
constexpr std::string_view kReadOfGptq[] = {
    "quant_method",
    "bits",
    "group_size",
    "format",
    "checkpoint_format",
    "desc_act",
    "pack_dtype",
    "dynamic",
    "adapter",
    "is_marlin_format",
    "modules_to_not_convert",
};
constexpr std::string_view kReadOfRule[] = {"bits", "group_size", "desc_act", "adapter"};
constexpr std::string_view kReadOfCompressed[] = {
    "quant_method",    "format",           "config_groups",   "ignore",
    "kv_cache_scheme", "transform_config", "sparsity_config",
};
constexpr std::string_view kReadOfGroup[] = {"weights", "input_activations", "output_activations",
                                             "format"};
constexpr std::string_view kReadOfWeights[] = {
    "num_bits", "type", "symmetric", "group_size", "strategy", "block_structure", "actorder",
};
constexpr std::string_view kReadOfSparsity[] = {"format"};
constexpr std::string_view kReadOfModelOpt[] = {
    "quant_method", "quant_algo",      "group_size",    "kv_cache_scheme",  "kv_cache_quant_algo",
    "ignore",       "exclude_modules", "config_groups", "quantized_layers",
};
constexpr std::string_view kReadOfLayer[] = {"quant_algo", "group_size"};
constexpr std::string_view kReadOfAutoRound[] = {
    "quant_method",
    "bits",
    "group_size",
    "sym",
    "data_type",
    "act_bits",
    "packing_format",
    "fmt",
    "extra_config",
    "super_bits",
    "static_kv_dtype",
    "static_attention_dtype",
    "modules_to_not_convert",
    "super_group_size",
};
constexpr std::string_view kReadOfAutoRoundRule[] = {"bits",       "group_size",       "sym",
                                                     "super_bits", "super_group_size", "data_type"};
constexpr std::string_view kReadOfModelOptOuter[] = {"quant_method", "quantization"};

// Which modules are packed, which the tensors tell; how activations are quantised, which are
// computed as they are; with which kernels another program computes.
constexpr std::string_view kHarmlessOfFp8[] = {
    "activation_scheme",  "activation_scale_ub", "modules_to_not_convert",
    "modules_to_convert", "ignored_layers",      "kv_cache_scheme",
    "scale_fmt",          "dequantize",
};
constexpr std::string_view kHarmlessOfMxfp4[] = {"modules_to_not_convert", "dequantize"};
// Notes of AutoAWQ, AutoGPTQ and GPTQModel on how codes were found and are computed with. `sym`
// says that all zero points are equal, and they are there.
constexpr std::string_view kHarmlessOfWords[] = {
    "sym",
    "lm_head",
    "meta",
    "tokenizer",
    "damp_percent",
    "damp_auto_increment",
    "static_groups",
    "true_sequential",
    "act_group_aware",
    "hyb_act",
    "mse",
    "max_input_length",
    "model_seqlen",
    "pad_token_id",
    "cache_block_outputs",
    "module_name_preceding_first_block",
    "modules_in_block_to_quantize",
    "model_name_or_path",
    "model_file_base_name",
    "use_cuda_fp16",
    "use_exllama",
    "disable_exllama",
    "exllama_config",
    "do_fuse",
    "modules_to_fuse",
    "fuse_max_seq_len",
    "data_type",
};
// How activations are quantised, and what auto-round notes in its own form alone.
constexpr std::string_view kHarmlessOfAutoRound[] = {
    "act_bits",     "act_data_type",     "act_group_size",        "act_sym",
    "act_dynamic",  "activation_scheme", "static_kv_granularity", "static_attention_granularity",
    "vllm_backend", "quant_block_list",  "supported_types",
};
// Notes of auto-round in its own form, and where it writes the form of another program.
constexpr std::string_view kNotesOfAutoRound[] = {
    "backend",
    "autoround_version",
    "amp",
    "batch_size",
    "block_name_to_quantize",
    "to_quant_block_names",
    "dataset",
    "enable_minmax_tuning",
    "enable_norm_bias_tuning",
    "enable_quanted_input",
    "gradient_accumulate_steps",
    "iters",
    "lr",
    "minmax_lr",
    "low_gpu_mem_usage",
    "nsamples",
    "scale_dtype",
    "seqlen",
    "train_bs",
};
constexpr std::string_view kHarmlessOfRule[] = {
    "sym",           "mse",     "damp_percent",    "damp_auto_increment",
    "static_groups", "hyb_act", "act_group_aware", "true_sequential",
};
constexpr std::string_view kHarmlessOfCompressed[] = {
    "quantization_status", "global_compression_ratio", "version",
    "run_compressed",      "use_optimized_inference",  "dequantize",
};
constexpr std::string_view kHarmlessOfGroup[] = {"targets"};
constexpr std::string_view kHarmlessOfWeights[] = {"observer", "observer_kwargs", "scale_dtype",
                                                   "zp_dtype"};
constexpr std::string_view kHarmlessOfSparsity[] = {"targets", "ignore", "global_sparsity",
                                                    "sparsity_structure"};
constexpr std::string_view kHarmlessOfModelOpt[] = {"producer"};

// The keys of one object that pass.
struct ObjectRow {
  HfQuantObject kind;
  Names read;
  Names harmless;
  Names notes = {};  // harmless too
};
constexpr ObjectRow kObjects[] = {
    {HfQuantObject::kFp8, kReadOfFp8, kHarmlessOfFp8},
    {HfQuantObject::kMxfp4, kReadOfMxfp4, kHarmlessOfMxfp4},
    {HfQuantObject::kAwq, kReadOfAwq, kHarmlessOfWords, kNotesOfAutoRound},
    {HfQuantObject::kGptq, kReadOfGptq, kHarmlessOfWords, kNotesOfAutoRound},
    {HfQuantObject::kRule, kReadOfRule, kHarmlessOfRule},
    {HfQuantObject::kCompressed, kReadOfCompressed, kHarmlessOfCompressed},
    {HfQuantObject::kGroup, kReadOfGroup, kHarmlessOfGroup},
    {HfQuantObject::kWeights, kReadOfWeights, kHarmlessOfWeights},
    {HfQuantObject::kSparsity, kReadOfSparsity, kHarmlessOfSparsity},
    {HfQuantObject::kModelOpt, kReadOfModelOpt, kHarmlessOfModelOpt},
    {HfQuantObject::kModelOptOuter, kReadOfModelOptOuter, kHarmlessOfModelOpt},
    {HfQuantObject::kLayer, kReadOfLayer, {}},
    {HfQuantObject::kAutoRound, kReadOfAutoRound, kHarmlessOfAutoRound, kNotesOfAutoRound},
    {HfQuantObject::kAutoRoundRule, kReadOfAutoRoundRule, kHarmlessOfAutoRound, kNotesOfAutoRound},
};

// Keys that change weights or their products, and the values of theirs that do not, as JSON.
struct NeutralRow {
  HfQuantObject kind;
  std::string_view name;
  std::string_view values;  // a list
};
constexpr NeutralRow kNeutral[] = {
    {HfQuantObject::kFp8, "expert_dtype", R"(["fp8"])"},
    {HfQuantObject::kAwq, "method", R"(["awq"])"},
    {HfQuantObject::kAwq, "desc_act", "[false]"},
    {HfQuantObject::kGptq, "method", R"(["gptq"])"},
    // GPTQModel rotates the input of every mlp.down_proj then.
    {HfQuantObject::kAwq, "rotation", "[]"},
    {HfQuantObject::kGptq, "rotation", "[]"},
    {HfQuantObject::kWeights, "dynamic", "[false]"},
    {HfQuantObject::kModelOpt, "has_zero_point", "[false]"},
    {HfQuantObject::kModelOpt, "pre_quant_scale", "[false]"},
    {HfQuantObject::kLayer, "has_zero_point", "[false]"},
    {HfQuantObject::kLayer, "pre_quant_scale", "[false]"},
};

}  // namespace

absl::Status CheckHfQuantizationKeys(const JsonObject& object, HfQuantObject kind) {
  const ObjectRow& keys =
      *std::ranges::find_if(kObjects, [kind](const ObjectRow& row) { return row.kind == kind; });
  for (const auto& [key, value] : object.object().items()) {
    const bool is_known = IsIn(keys.read, key) || IsIn(keys.harmless, key) || IsIn(keys.notes, key);
    if (is_known || IsNothing(value)) continue;
    const auto is_it = [kind, &name = key](const NeutralRow& row) {
      return row.kind == kind && row.name == name;
    };
    const auto neutral = std::ranges::find_if(kNeutral, is_it);
    if (neutral == std::end(kNeutral)) {
      return object.Unsupported(key, "null, since no such key of it is known");
    }
    BATON_RETURN_IF_ERROR(object.CheckOneOf(key, neutral->values));
  }
  return OkStatus();
}

}  // namespace baton::model
