#include "src/model/architecture.h"

#include <array>

#include "fmt/format.h"

namespace baton::model {
namespace {

// Each row says only what it does otherwise than the defaults. Sources: the graphs of llama.cpp and
// the modules of Hugging Face transformers of these names.
constexpr std::array kArchitectures = {
    ArchitectureTraits{.name = "llama",
                       .hf_type = "llama",
                       .rope_interleaved = true,  // its converter permutes the rows of Q and K
                       .attention_biases = true,
                       .ffn_biases = true,
                       .uniform_window = true},
    ArchitectureTraits{.name = "qwen2", .hf_type = "qwen2", .qkv_bias = true},
    ArchitectureTraits{
        .name = "qwen3", .hf_type = "qwen3", .head_norms = true, .attention_biases = true},
    ArchitectureTraits{.name = "qwen3moe",
                       .hf_type = "qwen3_moe",
                       .head_norms = true,
                       .experts = true,
                       .attention_biases = true},
    ArchitectureTraits{.name = "gemma3",
                       .hf_type = "gemma3_text",
                       .head_norms = true,
                       .post_norms = true,
                       .scaled_embedding = true,
                       .windowed = true,
                       .attention_biases = true,
                       .activation = GateActivation::kGeluTanh,
                       .hf_tied = true,
                       .hf_norms_minus_one = true,
                       .hf_rope_base = 1e6},
    ArchitectureTraits{.name = "gemma4",
                       .hf_type = "gemma4_text",
                       .head_norms = true,
                       .post_norms = true,
                       .scaled_embedding = true,
                       .windowed = true,
                       .mixed_layers = true,
                       .activation = GateActivation::kGeluTanh,
                       .hf_tied = true,
                       .hf_rope_base = 1e6},
    // Both have llama's converter, which permutes the rows of Q and K.
    ArchitectureTraits{.name = "smollm3",
                       .hf_type = "smollm3",
                       .rope_interleaved = true,
                       .attention_biases = true,
                       .ffn_biases = true,
                       .unrotated_step = 4,
                       .hf_tied = true,
                       .hf_rope_base = 2e6},
    ArchitectureTraits{.name = "granite",
                       .hf_type = "granite",
                       .rope_interleaved = true,
                       .attention_biases = true,
                       .ffn_biases = true,
                       .multipliers = true},
    ArchitectureTraits{.name = "lfm2",
                       .hf_type = "lfm2",
                       .head_norms = true,
                       .short_convs = true,
                       .hf_tied = true,
                       .hf_rope_base = 1e6},
    ArchitectureTraits{.name = "gpt-oss",
                       .hf_type = "gpt_oss",
                       .qkv_bias = true,
                       .windowed = true,
                       .one_rope = true,
                       .local_step = 2,
                       .sinks = true,
                       .output_bias = true,
                       .experts = true,
                       .expert_biases = true,
                       .yarn_truncates = false,
                       .ffn_norm = "post_attention_norm",
                       .activation = GateActivation::kClampedSwiglu,
                       .hf_rope_base = 150000.0},
    ArchitectureTraits{.name = "phi3",
                       .hf_type = "phi3",
                       .fused_projections = true,
                       .partial_rope = true,
                       .long_rope = true,
                       .uniform_window = true},
    ArchitectureTraits{.name = "olmo2",
                       .hf_type = "olmo2",
                       .post_norms = true,
                       .attention_biases = true,
                       .whole_norms = true,
                       .pre_norms = false},
    ArchitectureTraits{.name = "mistral3",
                       .hf_type = "ministral3",
                       .rope_interleaved = true,  // its converter is llama's
                       .query_temperature = true,
                       .uniform_window = true},
    // Its converter leaves the rows as they are: published weights have neighbouring pairs.
    ArchitectureTraits{.name = "deepseek2",
                       .hf_type = "deepseek_v2",
                       .rope_interleaved = true,
                       .experts = true,
                       .latent_kv = true,
                       .scored_experts = true,
                       .shared_experts = true},
    ArchitectureTraits{.name = "lfm2moe",
                       .hf_type = "lfm2_moe",
                       .head_norms = true,
                       .experts = true,
                       .short_convs = true,
                       .scored_experts = true,
                       .hf_tied = true,
                       .hf_rope_base = 1e6},
    ArchitectureTraits{.name = "qwen35",
                       .hf_type = "qwen3_5_text",
                       .head_norms = true,
                       .ffn_norm = "post_attention_norm",
                       .partial_rope = true,
                       .delta_nets = true,
                       .output_gate = true,
                       .hf_norms_minus_one = true},
    ArchitectureTraits{.name = "qwen35moe",
                       .hf_type = "qwen3_5_moe_text",
                       .head_norms = true,
                       .experts = true,
                       .ffn_norm = "post_attention_norm",
                       .partial_rope = true,
                       .shared_experts = true,
                       .gated_shared_expert = true,
                       .delta_nets = true,
                       .output_gate = true,
                       .hf_norms_minus_one = true},
    ArchitectureTraits{.name = "nemotron_h",
                       .hf_type = "nemotron_h",
                       .ffn_biases = true,
                       .mamba = true,
                       .rotates = false,
                       .activation = GateActivation::kReluSquared},
};

// Other model_types of config.json that are computed as one of the table. gemma3, gemma4,
// mistral3, qwen3_5 and qwen3_5_moe are models that read images too; their text parts are. That of
// mistral3 may be mistral, too.
struct HfAlias {
  std::string_view model_type;
  std::string_view hf_type;
};
constexpr std::array kHfAliases = {HfAlias{"mistral", "llama"},
                                   HfAlias{"gemma3", "gemma3_text"},
                                   HfAlias{"gemma4", "gemma4_text"},
                                   HfAlias{"mistral3", "ministral3"},
                                   HfAlias{"deepseek_v3", "deepseek_v2"},
                                   HfAlias{"qwen3_5", "qwen3_5_text"},
                                   HfAlias{"qwen3_5_moe", "qwen3_5_moe_text"}};

}  // namespace

const ArchitectureTraits* FindArchitecture(std::string_view name) {
  for (const ArchitectureTraits& row : kArchitectures) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

const ArchitectureTraits* FindArchitectureOfHf(std::string_view model_type) {
  for (const HfAlias& alias : kHfAliases) {
    if (alias.model_type == model_type) model_type = alias.hf_type;
  }
  for (const ArchitectureTraits& row : kArchitectures) {
    if (row.hf_type == model_type) return &row;
  }
  return nullptr;
}

std::string ArchitectureNames() {
  std::string out;
  for (const ArchitectureTraits& row : kArchitectures) {
    out += fmt::format("{}{}", out.empty() ? "" : ", ", row.name);
  }
  return out;
}

std::string ArchitectureHfTypes() {
  std::string out;
  for (const ArchitectureTraits& row : kArchitectures) {
    out += fmt::format("{}{}", out.empty() ? "" : ", ", row.hf_type);
  }
  for (const HfAlias& alias : kHfAliases) out += fmt::format(", {}", alias.model_type);
  return out;
}

}  // namespace baton::model
