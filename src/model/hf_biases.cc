#include "src/model/hf_biases.h"

#include <algorithm>
#include <string>

#include "fmt/format.h"

#include "src/model/folder_error.h"

namespace baton::model {
namespace {

// Biases that are there together.
struct BiasGroup {
  bool HfConfig::*is_wanted;
  std::string_view key;                    // of config.json
  std::span<const std::string_view> ends;  // of their names in GGUF
  std::string_view name;                   // of one of them in a folder
};
constexpr const char* kAttention = "attention_bias";
constexpr const char* kMlpKey = "mlp_bias";
constexpr std::string_view kQkv[] = {".attn_q.bias", ".attn_k.bias", ".attn_v.bias"};
constexpr std::string_view kOutput[] = {".attn_output.bias"};
constexpr std::string_view kChoice[] = {".exp_probs_b.bias"};
constexpr std::string_view kMlp[] = {".ffn_gate.bias", ".ffn_up.bias", ".ffn_down.bias"};
constexpr BiasGroup kGroups[] = {
    {&HfConfig::has_qkv_biases, kAttention, kQkv, "q_proj.bias"},
    {&HfConfig::has_output_biases, kAttention, kOutput, "o_proj.bias"},
    {&HfConfig::has_mlp_biases, kMlpKey, kMlp, "down_proj.bias"},
    // PlanTensors misses it where it is not there.
    {&HfConfig::has_choice_biases, "use_expert_bias", kChoice, ""},
};

bool IsOf(const BiasGroup& group, std::string_view gguf_name) {
  return std::ranges::any_of(group.ends,
                             [&](std::string_view end) { return gguf_name.ends_with(end); });
}

// Whether the group's key can say that a model of these traits has it.
bool KeyIsRead(const BiasGroup& group, const ArchitectureTraits& traits) {
  if (group.key == kAttention) return traits.output_bias || traits.attention_biases;
  return group.key != kMlpKey || traits.ffn_biases;
}

}  // namespace

absl::Status ReadHfBiases(const JsonObject& config, std::string_view model_type, HfConfig& out) {
  const ArchitectureTraits& traits = *out.traits;
  const bool is_own_type = model_type == traits.hf_type;
  BATON_ASSIGN_OR_RETURN(out.has_mlp_biases, config.BoolOr(kMlpKey, false));
  if (out.has_mlp_biases && !(traits.ffn_biases && is_own_type)) {
    return config.Unsupported(kMlpKey, "false");
  }
  // The class of gpt_oss has them unless the key says otherwise. The class of qwen2 reads no key.
  BATON_ASSIGN_OR_RETURN(const bool has_biases, config.BoolOr(kAttention, traits.output_bias));
  out.has_output_biases = has_biases && (traits.output_bias || traits.attention_biases);
  out.has_qkv_biases = out.has_output_biases || (traits.qkv_bias && !traits.output_bias);
  const bool is_read = traits.qkv_bias || (traits.attention_biases && is_own_type);
  return has_biases && !is_read ? config.Unsupported(kAttention, "false") : OkStatus();
}

bool WantsHfBias(const HfConfig& config, std::string_view gguf_name) {
  return std::ranges::any_of(kGroups, [&](const BiasGroup& group) {
    return config.*group.is_wanted && IsOf(group, gguf_name);
  });
}

absl::Status CheckHfBias(const HfConfig& config, const GgufTensor& tensor) {
  for (const BiasGroup& group : kGroups) {
    if (config.*group.is_wanted || !IsOf(group, tensor.name)) continue;
    const std::string fault =
        KeyIsRead(group, *config.traits)
            ? fmt::format(
                  "config.json does not say \"{}\" true, so that a {} model has no such bias",
                  group.key, config.traits->hf_type)
            : fmt::format("a {} model has no such bias", config.traits->hf_type);
    return TensorError(FolderErrorCode::kUnknownTensor, tensor.folder_name(), fault);
  }
  return OkStatus();
}

absl::Status CheckHfBiasesAreThere(const HfConfig& config, std::span<const GgufTensor> tensors) {
  for (const BiasGroup& group : kGroups) {
    const auto is_one = [&](const GgufTensor& tensor) { return IsOf(group, tensor.name); };
    // PlanTensors asks for those that every model of the architecture has.
    const bool may_lack = group.key == kMlpKey || config.traits->attention_biases;
    if (!(config.*group.is_wanted) || group.name.empty() || !may_lack) continue;
    if (std::ranges::any_of(tensors, is_one)) continue;
    return FolderError(
        FolderErrorCode::kBadValue,
        fmt::format("config.json: \"{}\" is true, but no layer has {}", group.key, group.name));
  }
  const auto num = std::ranges::count_if(
      tensors, [](const GgufTensor& tensor) { return tensor.name.ends_with(".ssm_conv1d.bias"); });
  if (num == config.num_conv_biases) return OkStatus();
  return FolderError(FolderErrorCode::kBadValue,
                     fmt::format("config.json: \"use_conv_bias\" wants mixer.conv1d.bias in {} "
                                 "layers, {} have it",
                                 config.num_conv_biases, num));
}

std::vector<HfZeroBias> HfZeroBiasesOf(const HfConfig& config,
                                       std::span<const GgufTensor> tensors) {
  struct Row {
    bool is_missing;
    std::string_view beside;  // one element for each of its rows
    std::string_view name;
  };
  const bool no_attention = config.traits->output_bias && !config.has_output_biases;
  const Row rows[] = {{no_attention, ".attn_q.weight", ".attn_q.bias"},
                      {no_attention, ".attn_k.weight", ".attn_k.bias"},
                      {no_attention, ".attn_v.weight", ".attn_v.bias"},
                      {no_attention, ".attn_output.weight", ".attn_output.bias"},
                      {!config.has_choice_biases, ".ffn_gate_inp.weight", ".exp_probs_b.bias"}};
  std::vector<HfZeroBias> out;
  for (const GgufTensor& tensor : tensors) {
    for (const Row& row : rows) {
      if (!row.is_missing || !tensor.name.ends_with(row.beside)) continue;
      const std::string_view layer = tensor.name.substr(0, tensor.name.size() - row.beside.size());
      out.push_back({fmt::format("{}{}", layer, row.name), tensor.dims[1]});
    }
  }
  return out;
}

}  // namespace baton::model
