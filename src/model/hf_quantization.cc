#include "src/model/hf_quantization.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>

#include "src/base/quoted_text.h"
#include "src/model/folder_error.h"
#include "src/model/hf_fp8.h"
#include "src/model/hf_quantization_keys.h"

namespace baton::model {
namespace {

using Json = nlohmann::json;

constexpr uint32_t kNvfp4Group = 16;

// Each quant_algo of ModelOpt, and how it keeps weights. Those that scale activations by a vector
// first (AWQ, SVD) are refused.
struct ModelOptRow {
  std::string_view name;
  HfWeightKind kind;
};
constexpr HfWeightKind kE4m3Kind = {.bits = 8, .is_float = true};
constexpr HfWeightKind kMxfp8Kind = {.bits = 8, .group = kHfMxGroup, .is_float = true};
constexpr HfWeightKind kNvfp4Kind = {.bits = 4, .group = kNvfp4Group, .is_float = true};
constexpr ModelOptRow kModelOptRows[] = {
    {"FP8", kE4m3Kind},          {"FP8_PER_CHANNEL_PER_TOKEN", kE4m3Kind},
    {"FP8_PB_WO", kE4m3Kind},    {"FP8_BLOCK_SCALES", kE4m3Kind},
    {"MXFP8", kMxfp8Kind},       {"NVFP4", kNvfp4Kind},
    {"W4A16_NVFP4", kNvfp4Kind}, {"W4A8_NVFP4_FP8", kNvfp4Kind},
};
constexpr std::string_view kMixed = "MIXED_PRECISION";

// Where auto-round puts integer codes, by its packing_format, which may end with a kernel's name.
struct AutoRoundRow {
  std::string_view packing;
  HfQuantMethod method;
  bool zeros_less_one = false;
};
constexpr AutoRoundRow kAutoRoundRows[] = {
    {"auto_round:auto_gptq", HfQuantMethod::kGptq, true},
    {"auto_round:auto_gptq:exllamav2", HfQuantMethod::kGptq, true},
    {"auto_round:gptq", HfQuantMethod::kGptq, true},
    {"auto_round:gptq:exllamav2", HfQuantMethod::kGptq, true},
    {"auto_round", HfQuantMethod::kGptq},
    {"auto_round:exllamav2", HfQuantMethod::kGptq},
    {"auto_round:gptqmodel", HfQuantMethod::kGptq},
    {"auto_round:auto_awq", HfQuantMethod::kAwq},
    {"auto_round:awq", HfQuantMethod::kAwq},
};

absl::Status CheckIsAbsent(const JsonObject& object, const char* key) {
  const Json* value = object.Find(key);
  const bool is_empty = value == nullptr || *value == false || value->empty();
  return is_empty ? OkStatus() : object.Unsupported(key, "none");
}

// Blocks of another size than 128 x 128 are refused.
absl::Status CheckBlock(const JsonObject& object, const char* key) {
  const Json* block = object.Find(key);
  if (block == nullptr || *block == Json({kHfFp8Block, kHfFp8Block})) return OkStatus();
  return object.Unsupported(key, "[128, 128]");
}

// 0 for -1, the whole row.
absl::StatusOr<uint32_t> GroupOr(const JsonObject& object, const char* key, uint32_t fallback) {
  const Json* value = object.Find(key);
  if (value == nullptr) return fallback;
  if (*value == -1) return 0u;
  BATON_ASSIGN_OR_RETURN(const uint32_t group, object.Uint(key));
  if (group == 0) return object.Bad(key, "-1 or a number of at least 1");
  return group;
}

absl::Status ReadNames(const JsonObject& object, const char* key, HfQuantization& out) {
  const Json* names = object.Find(key);
  if (names == nullptr) return OkStatus();
  if (!names->is_array()) return object.Bad(key, "a list of texts");
  for (const Json& name : *names) {
    if (!name.is_string()) return object.Bad(key, "a list of texts");
    const auto& text = name.get_ref<const std::string&>();
    if (text.ends_with("*")) {
      out.plain_prefixes.insert(text.substr(0, text.size() - 1));
    } else {
      out.plain_modules.insert(text);
    }
  }
  return OkStatus();
}

// The first of the keys that is there: programs have renamed some.
const char* FirstOf(const JsonObject& object, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    if (object.Has(key)) return key;
  }
  return *keys.begin();
}

absl::StatusOr<HfWeightKind> ReadGptqKind(const JsonObject& rule, const HfWeightKind& base) {
  HfWeightKind kind = base;
  BATON_ASSIGN_OR_RETURN(kind.bits, rule.UintOr("bits", base.bits));
  if (kind.bits != 4 && kind.bits != 8) return rule.Unsupported("bits", "4, 8");
  BATON_ASSIGN_OR_RETURN(kind.group, GroupOr(rule, "group_size", base.group));
  BATON_ASSIGN_OR_RETURN(kind.has_order, rule.BoolOr("desc_act", base.has_order));
  BATON_RETURN_IF_ERROR(CheckIsAbsent(rule, "adapter"));
  return kind;
}

// Rules of GPTQModel for modules by regular expression: "-:..." keeps them as they are, another
// gives them other numbers. The tensors tell which module has which.
absl::Status ReadRules(const JsonObject& config, HfQuantization& out) {
  const Json* rules = config.Find("dynamic");
  if (rules == nullptr || *rules == false) return OkStatus();
  if (!rules->is_object()) return config.Bad("dynamic", "an object");
  for (const auto& [pattern, rule] : rules->items()) {
    if (!rule.is_object()) return config.Bad("dynamic", "an object of objects");
    const JsonObject object(
        rule, fmt::format("{}: dynamic: {}", config.where(), QuotedForMessage(pattern)));
    for (const auto& [key, value] : rule.items()) {
      const bool is_format = key == "method" || key == "quant_method" || key == "format" ||
                             key == "checkpoint_format" || key == "pack_dtype";
      if (is_format) return object.Unsupported(key, "the one of all modules");
    }
    BATON_ASSIGN_OR_RETURN(const HfWeightKind kind, ReadGptqKind(object, out.kinds[0]));
    BATON_RETURN_IF_ERROR(CheckHfQuantizationKeys(object, HfQuantObject::kRule));
    out.kinds.push_back(kind);
  }
  return OkStatus();
}

absl::Status ReadAwq(const JsonObject& config, HfQuantization& out) {
  const char* bits_key = FirstOf(config, {"bits", "w_bit"});
  BATON_ASSIGN_OR_RETURN(const uint32_t bits, config.Uint(bits_key));
  if (bits != 4) return config.Unsupported(bits_key, "4");
  for (const char* key : {"version", "format", "checkpoint_format"}) {
    BATON_ASSIGN_OR_RETURN(std::string version, config.StringOr(key, "gemm"));
    std::transform(version.begin(), version.end(), version.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    if (version != "gemm") return config.Unsupported(key, "gemm");
  }
  // Kernels that read this layout; "llm-awq" has another.
  BATON_RETURN_IF_ERROR(config.CheckOneOf(
      "backend", R"(["autoawq", "auto", "auto_trainable", "gemm", "gemm_triton", "machete",
          "marlin", "exllama_v1", "exllama_v2", "torch_awq", "torch_fused_awq"])"));
  BATON_RETURN_IF_ERROR(config.CheckText("pack_dtype", "int32"));
  // False where all zero points are 8, GPTQModel's default; the tensors have them all the same.
  BATON_RETURN_IF_ERROR(config.BoolOr("zero_point", true).status());
  const char* group_key = FirstOf(config, {"group_size", "q_group_size"});
  BATON_ASSIGN_OR_RETURN(const uint32_t group, GroupOr(config, group_key, 128));
  out.method = HfQuantMethod::kAwq;
  out.kinds = {{.bits = 4, .group = group, .has_zeros = true}};
  BATON_RETURN_IF_ERROR(ReadNames(config, "modules_to_not_convert", out));
  BATON_RETURN_IF_ERROR(ReadRules(config, out));
  return CheckHfQuantizationKeys(config, HfQuantObject::kAwq);
}

absl::Status ReadGptq(const JsonObject& config, HfQuantization& out) {
  out.method = HfQuantMethod::kGptq;
  if (!config.Has("bits")) return config.Missing("bits");
  BATON_ASSIGN_OR_RETURN(const HfWeightKind kind,
                         ReadGptqKind(config, {.group = 128, .has_zeros = true}));
  out.kinds = {kind};
  std::string format = "gptq";
  for (const char* key : {"format", "checkpoint_format"}) {
    BATON_ASSIGN_OR_RETURN(const std::string text, config.StringOr(key, format));
    if (text != "gptq" && text != "gptq_v2") return config.Unsupported(key, "gptq, gptq_v2");
    const bool differs =
        key == std::string_view("checkpoint_format") && config.Has("format") && text != format;
    if (differs) return config.Bad(key, fmt::format("the {} of \"format\"", format));
    format = text;
  }
  out.zeros_less_one = format == "gptq";
  BATON_RETURN_IF_ERROR(CheckIsAbsent(config, "is_marlin_format"));
  BATON_RETURN_IF_ERROR(config.CheckText("pack_dtype", "int32"));
  BATON_RETURN_IF_ERROR(ReadNames(config, "modules_to_not_convert", out));
  BATON_RETURN_IF_ERROR(ReadRules(config, out));
  return CheckHfQuantizationKeys(config, HfQuantObject::kGptq);
}

// Whether groups are made of columns that lie anywhere. "weight" and its older name "static" only
// say in which order the columns were quantised.
absl::StatusOr<bool> ReadHasOrder(const JsonObject& weights) {
  const Json* order = weights.Find("actorder");
  if (order == nullptr || *order == false || *order == "weight" || *order == "static") return false;
  if (*order == true || *order == "group" || *order == "dynamic") return true;
  return weights.Unsupported("actorder", "null, weight, static, group, dynamic");
}

// The weights of one group of compressed-tensors.
absl::StatusOr<HfWeightKind> ReadCompressedKind(const JsonObject& weights) {
  BATON_ASSIGN_OR_RETURN(const std::string type, weights.StringOr("type", "int"));
  if (type != "int" && type != "float") return weights.Unsupported("type", "int, float");
  HfWeightKind kind = {.is_float = type == "float"};
  BATON_ASSIGN_OR_RETURN(kind.bits, weights.UintOr("num_bits", 8));
  if (kind.bits != 4 && kind.bits != 8) return weights.Unsupported("num_bits", "4, 8");
  BATON_ASSIGN_OR_RETURN(kind.group, GroupOr(weights, "group_size", 0));
  BATON_ASSIGN_OR_RETURN(const bool symmetric, weights.BoolOr("symmetric", true));
  kind.has_zeros = !symmetric;
  BATON_ASSIGN_OR_RETURN(kind.has_order, ReadHasOrder(weights));
  BATON_RETURN_IF_ERROR(CheckHfQuantizationKeys(weights, HfQuantObject::kWeights));
  if (!kind.is_float) {
    BATON_ASSIGN_OR_RETURN(const std::string strategy, weights.StringOr("strategy", "channel"));
    const bool known = strategy == "tensor" || strategy == "channel" || strategy == "group";
    return known ? absl::StatusOr<HfWeightKind>(kind)
                 : weights.Unsupported("strategy", "tensor, channel, group");
  }
  if (!symmetric) return weights.Unsupported("symmetric", "true");
  if (kind.bits == 8) {
    BATON_RETURN_IF_ERROR(CheckBlock(weights, "block_structure"));
  } else if (kind.group != kNvfp4Group && kind.group != kHfMxGroup) {
    return weights.Unsupported("group_size", "16, 32");
  }
  return kind;
}

absl::Status CheckCompressedFormat(const JsonObject& object) {
  constexpr std::string_view kFormats[] = {
      "float-quantized",      "naive-quantized",      "int-quantized",   "pack-quantized",
      "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized", "mixed-precision"};
  BATON_ASSIGN_OR_RETURN(const std::string format, object.StringOr("format", kFormats[0]));
  if (std::find(std::begin(kFormats), std::end(kFormats), format) != std::end(kFormats)) {
    return OkStatus();
  }
  return object.Unsupported("format", fmt::format("{}", fmt::join(kFormats, ", ")));
}

void NoteUnused(const JsonObject& object, const char* key, HfQuantization& out) {
  if (object.Has(key)) out.unused.insert(key);
}

// Adds the kinds that `config_groups` declares, and what is not used of it.
absl::Status ReadGroups(const JsonObject& config, HfQuantization& out) {
  const Json* groups = config.Find("config_groups");
  if (groups == nullptr) return OkStatus();
  if (!groups->is_object()) return config.Bad("config_groups", "an object");
  for (const Json& group : *groups) {
    if (!group.is_object()) return config.Bad("config_groups", "an object of objects");
    const auto weights = group.find("weights");
    if (weights == group.end() || !weights->is_object()) {
      return config.Bad("config_groups", "groups that have \"weights\"");
    }
    const JsonObject object(group, config.where() + ": config_groups");
    BATON_RETURN_IF_ERROR(CheckCompressedFormat(object));
    NoteUnused(object, "input_activations", out);
    NoteUnused(object, "output_activations", out);
    BATON_ASSIGN_OR_RETURN(const HfWeightKind kind,
                           ReadCompressedKind(JsonObject(*weights, config.where() + ": weights")));
    BATON_RETURN_IF_ERROR(CheckHfQuantizationKeys(object, HfQuantObject::kGroup));
    out.kinds.push_back(kind);
  }
  return OkStatus();
}

absl::Status ReadCompressed(const JsonObject& config, HfQuantization& out) {
  out.method = HfQuantMethod::kCompressed;
  BATON_RETURN_IF_ERROR(CheckCompressedFormat(config));
  BATON_RETURN_IF_ERROR(CheckIsAbsent(config, "transform_config"));
  if (const Json* sparsity = config.Find("sparsity_config"); sparsity != nullptr) {
    if (!sparsity->is_object()) return config.Bad("sparsity_config", "an object");
    const JsonObject object(*sparsity, config.where() + ": sparsity_config");
    BATON_RETURN_IF_ERROR(object.CheckText("format", "dense"));
    BATON_RETURN_IF_ERROR(CheckHfQuantizationKeys(object, HfQuantObject::kSparsity));
  }
  NoteUnused(config, "kv_cache_scheme", out);
  BATON_RETURN_IF_ERROR(ReadNames(config, "ignore", out));
  BATON_RETURN_IF_ERROR(ReadGroups(config, out));
  return CheckHfQuantizationKeys(config, HfQuantObject::kCompressed);
}

// Upper case, as the programs that read it compare it.
absl::StatusOr<std::string> AlgorithmOf(const JsonObject& object) {
  BATON_ASSIGN_OR_RETURN(std::string name, object.String("quant_algo"));
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; });
  return name;
}

// The kind that quant_algo and group_size name, of all modules or of one.
absl::StatusOr<HfWeightKind> ReadModelOptKind(const JsonObject& object) {
  BATON_ASSIGN_OR_RETURN(const std::string algorithm, AlgorithmOf(object));
  const auto row = std::ranges::find(kModelOptRows, algorithm, &ModelOptRow::name);
  if (row == std::end(kModelOptRows)) {
    std::vector<std::string_view> names;
    for (const ModelOptRow& known : kModelOptRows) names.push_back(known.name);
    return object.Unsupported("quant_algo", fmt::format("{}", fmt::join(names, ", ")));
  }
  if (row->kind.group == 0) return row->kind;
  BATON_ASSIGN_OR_RETURN(const uint32_t group, GroupOr(object, "group_size", row->kind.group));
  if (group == row->kind.group) return row->kind;
  return object.Unsupported("group_size", std::to_string(row->kind.group));
}

// Sets the kind of every module that quantized_layers lists.
absl::Status ReadLayers(const JsonObject& config, HfQuantization& out) {
  const Json* layers = config.Find("quantized_layers");
  if (layers == nullptr || !layers->is_object() || layers->empty()) {
    return config.Bad("quantized_layers", "an object that lists modules");
  }
  for (const auto& [name, layer] : layers->items()) {
    if (!layer.is_object()) return config.Bad("quantized_layers", "an object of objects");
    const JsonObject object(
        layer, fmt::format("{}: quantized_layers: {}", config.where(), QuotedForMessage(name)));
    BATON_ASSIGN_OR_RETURN(const HfWeightKind kind, ReadModelOptKind(object));
    BATON_RETURN_IF_ERROR(CheckHfQuantizationKeys(object, HfQuantObject::kLayer));
    out.layers.emplace(name, kind);
    if (std::ranges::find(out.kinds, kind) == out.kinds.end()) out.kinds.push_back(kind);
  }
  return OkStatus();
}

absl::Status ReadModelOpt(const JsonObject& config, HfQuantization& out) {
  // Where only KV is quantised.
  const bool has_weights = config.Has("quant_algo") || config.Has("config_groups");
  if (has_weights) {
    out.method = HfQuantMethod::kModelOpt;
    BATON_ASSIGN_OR_RETURN(const std::string algorithm, AlgorithmOf(config));
    if (algorithm == kMixed) {
      BATON_RETURN_IF_ERROR(ReadLayers(config, out));
    } else {
      BATON_RETURN_IF_ERROR(CheckIsAbsent(config, "quantized_layers"));
      BATON_ASSIGN_OR_RETURN(const HfWeightKind kind, ReadModelOptKind(config));
      out.kinds = {kind};
    }
    // They repeat what quant_algo says, for other programs.
    HfQuantization groups;
    BATON_RETURN_IF_ERROR(ReadGroups(config, groups));
    for (const HfWeightKind& kind : groups.kinds) {
      const auto is_it = [&kind](const HfWeightKind& said) {
        return kind.is_float && kind.bits == said.bits;
      };
      if (std::ranges::any_of(out.kinds, is_it)) continue;
      return config.Bad("config_groups", fmt::format("groups of {} bits of type float, as "
                                                     "quant_algo {} says",
                                                     out.kinds[0].bits, algorithm));
    }
    out.unused.merge(groups.unused);
  } else {
    BATON_RETURN_IF_ERROR(CheckIsAbsent(config, "quantized_layers"));
  }
  for (const char* key : {"kv_cache_scheme", "kv_cache_quant_algo"}) NoteUnused(config, key, out);
  BATON_RETURN_IF_ERROR(ReadNames(config, "ignore", out));
  BATON_RETURN_IF_ERROR(ReadNames(config, "exclude_modules", out));
  return CheckHfQuantizationKeys(config, HfQuantObject::kModelOpt);
}

// Old exports have the numbers one level deeper.
absl::Status ReadModelOptForms(const JsonObject& config, HfQuantization& out) {
  const Json* inner = config.Find("quantization");
  if (inner == nullptr) return ReadModelOpt(config, out);
  if (!inner->is_object()) return config.Bad("quantization", "an object");
  BATON_RETURN_IF_ERROR(CheckHfQuantizationKeys(config, HfQuantObject::kModelOptOuter));
  return ReadModelOpt(JsonObject(*inner, config.where() + ": quantization"), out);
}

// The kind that auto-round gives all modules, or some by `extra_config`. 16 bits: not quantised.
absl::StatusOr<HfWeightKind> ReadAutoRoundKind(const JsonObject& object, const HfWeightKind& base) {
  HfWeightKind kind = base;
  BATON_ASSIGN_OR_RETURN(kind.bits, object.UintOr("bits", base.bits));
  if (kind.bits != 4 && kind.bits != 8 && kind.bits < 16) {
    return object.Unsupported("bits", "4, 8, 16");
  }
  BATON_ASSIGN_OR_RETURN(const bool symmetric, object.BoolOr("sym", !base.has_zeros));
  kind.has_zeros = !symmetric;
  for (const char* key : {"super_bits", "super_group_size"}) {
    BATON_RETURN_IF_ERROR(CheckIsAbsent(object, key));
  }
  if (kind.is_float && kind.has_zeros) return object.Unsupported("sym", "true");
  // Blocks of fp8, whose scales tell.
  const Json* group = object.Find("group_size");
  if (group != nullptr && group->is_array()) {
    BATON_RETURN_IF_ERROR(CheckBlock(object, "group_size"));
    return kind;
  }
  BATON_ASSIGN_OR_RETURN(kind.group, GroupOr(object, "group_size", base.group));
  return kind;
}

absl::Status ReadExtraConfig(const JsonObject& config, HfQuantization& out) {
  const Json* rules = config.Find("extra_config");
  if (rules == nullptr) return OkStatus();
  if (!rules->is_object()) return config.Bad("extra_config", "an object");
  for (const auto& [name, rule] : rules->items()) {
    if (!rule.is_object()) return config.Bad("extra_config", "an object of objects");
    const JsonObject object(
        rule, fmt::format("{}: extra_config: {}", config.where(), QuotedForMessage(name)));
    BATON_ASSIGN_OR_RETURN(const HfWeightKind kind, ReadAutoRoundKind(object, out.kinds[0]));
    BATON_RETURN_IF_ERROR(CheckHfQuantizationKeys(object, HfQuantObject::kAutoRoundRule));
    // Names may be regular expressions, which are not looked at: the tensors tell.
    if (kind.bits < 16) {
      out.kinds.push_back(kind);
    } else if (name.find_first_of("*+?^$()[]{}|\\") == std::string::npos) {
      out.plain_modules.insert(name);
    }
  }
  return OkStatus();
}

// How the codes lie, and the kind that all of them start from.
absl::StatusOr<HfWeightKind> ReadAutoRoundForm(const JsonObject& config, HfQuantization& out) {
  BATON_ASSIGN_OR_RETURN(const std::string type, config.StringOr("data_type", "int"));
  if (type == "int") {
    BATON_ASSIGN_OR_RETURN(const std::string packing,
                           config.StringOr("packing_format", "auto_round:auto_gptq"));
    const auto row = std::ranges::find(kAutoRoundRows, packing, &AutoRoundRow::packing);
    if (row == std::end(kAutoRoundRows)) {
      return config.Unsupported("packing_format",
                                "auto_round, auto_round:auto_gptq, auto_round:gptqmodel, "
                                "auto_round:auto_awq");
    }
    // Codes that activations of 8 bits meet have two scales.
    BATON_ASSIGN_OR_RETURN(const uint32_t act_bits, config.UintOr("act_bits", 16));
    if (act_bits < 16) return config.Unsupported("act_bits", "16");
    out.method = row->method;
    out.zeros_less_one = row->zeros_less_one;
    return HfWeightKind{.group = 128};
  }
  NoteUnused(config, "act_bits", out);
  if (type == "fp" || type == "fp8") {
    BATON_RETURN_IF_ERROR(config.CheckText("fmt", "e4m3"));
    BATON_RETURN_IF_ERROR(config.CheckOneOf(
        "packing_format", R"(["auto_round:fp8", "auto_round:fp8_static", null])"));
    out.method = HfQuantMethod::kFp8;
    return HfWeightKind{.bits = 8, .is_float = true};
  }
  const bool is_mx = type.starts_with("mx_fp");
  if (!is_mx && !type.starts_with("nv_fp")) {
    return config.Unsupported("data_type", "int, fp, mx_fp, nv_fp");
  }
  BATON_RETURN_IF_ERROR(config.CheckText("packing_format", "auto_round:llm_compressor"));
  out.method = HfQuantMethod::kCompressed;
  return HfWeightKind{.group = is_mx ? kHfMxGroup : kNvfp4Group, .is_float = true};
}

absl::Status ReadAutoRound(const JsonObject& config, HfQuantization& out) {
  if (!config.Has("bits")) return config.Missing("bits");
  BATON_ASSIGN_OR_RETURN(const HfWeightKind form, ReadAutoRoundForm(config, out));
  BATON_ASSIGN_OR_RETURN(const HfWeightKind kind, ReadAutoRoundKind(config, form));
  const bool fits = out.method == HfQuantMethod::kAwq   ? kind.bits == 4
                    : out.method == HfQuantMethod::kFp8 ? kind.bits == 8
                                                        : kind.bits < 16;
  if (!fits) {
    const char* bits = out.method == HfQuantMethod::kAwq   ? "4"
                       : out.method == HfQuantMethod::kFp8 ? "8"
                                                           : "4, 8";
    return config.Unsupported("bits", bits);
  }
  const bool has_group = out.method != HfQuantMethod::kCompressed || kind.group == form.group;
  if (!has_group) return config.Unsupported("group_size", std::to_string(form.group));
  out.kinds = {kind};
  NoteUnused(config, "static_kv_dtype", out);
  NoteUnused(config, "static_attention_dtype", out);
  BATON_RETURN_IF_ERROR(ReadExtraConfig(config, out));
  BATON_RETURN_IF_ERROR(ReadNames(config, "modules_to_not_convert", out));
  return CheckHfQuantizationKeys(config, HfQuantObject::kAutoRound);
}

absl::Status ReadMethod(const JsonObject& config, bool has_mxfp4, HfQuantization& out) {
  BATON_ASSIGN_OR_RETURN(out.name, config.StringOr("quant_method", ""));
  const std::string& method = out.name;
  if (method == "compressed-tensors") return ReadCompressed(config, out);
  if (method == "awq") return ReadAwq(config, out);
  if (method == "gptq") return ReadGptq(config, out);
  if (method == "auto-round") return ReadAutoRound(config, out);
  constexpr std::string_view kModelOptNames[] = {"modelopt", "modelopt_fp4", "modelopt_mixed",
                                                 "modelopt_mxfp8"};
  if (std::ranges::find(kModelOptNames, method) != std::end(kModelOptNames)) {
    return ReadModelOptForms(config, out);
  }
  if (method == "mxfp4" && has_mxfp4) {
    out.method = HfQuantMethod::kMxfp4;
    return CheckHfQuantizationKeys(config, HfQuantObject::kMxfp4);
  }
  if (method == "fbgemm_fp8" || method == "fp8") {
    out.method = HfQuantMethod::kFp8;
    BATON_RETURN_IF_ERROR(config.CheckText("fmt", "e4m3"));
    BATON_RETURN_IF_ERROR(CheckBlock(config, "weight_block_size"));
    return CheckHfQuantizationKeys(config, HfQuantObject::kFp8);
  }
  return FolderError(
      FolderErrorCode::kQuantized,
      fmt::format("{} (method {}) is not supported (awq, gptq, auto-round, compressed-tensors, "
                  "modelopt and fp8 are); take the model in one of these, in bf16, f16 or f32, or "
                  "a GGUF file of it",
                  config.where(), method.empty() ? "unnamed" : QuotedForMessage(method)));
}

}  // namespace

absl::StatusOr<HfQuantization> ReadHfQuantization(const JsonObject& config) {
  HfQuantization out;
  // Experts in MXFP4, which their tensors say themselves.
  BATON_ASSIGN_OR_RETURN(const std::string type, config.StringOr("model_type", ""));
  // The second is the name that compressed-tensors had first.
  for (const char* key : {"quantization_config", "compression_config"}) {
    const Json* value = config.Find(key);
    if (value == nullptr || *value == Json::object()) continue;
    if (!value->is_object()) return config.Bad(key, "an object");
    HfQuantization read;
    BATON_RETURN_IF_ERROR(ReadMethod(JsonObject(*value, fmt::format("{}: {}", config.where(), key)),
                                     type == "gpt_oss", read));
    if (out.method != HfQuantMethod::kNone && read != out) {
      return config.Bad(key, "what quantization_config says");
    }
    out = std::move(read);
  }
  return out;
}

absl::StatusOr<HfQuantization> ReadHfQuantConfigFile(std::string_view text) {
  constexpr const char* kName = "hf_quant_config.json";
  BATON_ASSIGN_OR_RETURN(const Json json, ParseHfConfigJson(text, kName));
  HfQuantization out;
  out.name = "modelopt";
  BATON_RETURN_IF_ERROR(ReadModelOptForms(JsonObject(json, kName), out));
  return out;
}

std::span<const HfWeightKind> KindsOf(const HfQuantization& quantization, std::string_view module) {
  if (quantization.layers.empty()) return quantization.kinds;
  while (true) {
    const auto layer = quantization.layers.find(module);
    if (layer != quantization.layers.end()) return {&layer->second, 1};
    const size_t dot = module.rfind('.');
    if (dot == std::string_view::npos) return {};
    module = module.substr(0, dot);
  }
}

HfQuantization WithNames(const HfQuantization& quantization,
                         const std::function<std::string(std::string_view)>& name_of) {
  constexpr std::string_view kWeight = ".weight";
  const auto name_of_module = [&](const std::string& module) {
    const std::string name = name_of(module + std::string(kWeight));
    return name.empty() ? name : name.substr(0, name.size() - kWeight.size());
  };
  HfQuantization out = quantization;
  for (const std::string& module : quantization.plain_modules) {
    const std::string name = name_of_module(module);
    if (!name.empty()) out.plain_modules.insert(name);
  }
  for (const std::string& prefix : quantization.plain_prefixes) {
    const std::string name = name_of(prefix);
    if (!name.empty()) out.plain_prefixes.insert(name);
  }
  for (const auto& [module, kind] : quantization.layers) {
    const std::string name = name_of_module(module);
    if (!name.empty()) out.layers.emplace(name, kind);
  }
  return out;
}

bool SaysPlain(const HfQuantization& quantization, std::string_view module) {
  for (size_t at = 0; at < module.size(); ++at) {
    const bool begins_part = at == 0 || module[at - 1] == '.';
    if (begins_part && quantization.plain_modules.contains(module.substr(at))) return true;
    if (quantization.plain_prefixes.contains(module.substr(0, at))) return true;
  }
  return quantization.plain_prefixes.contains(module);
}

}  // namespace baton::model
