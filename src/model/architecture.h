// ArchitectureTraits: how the forward pass of one architecture differs from that of another. This
// is THE list of architectures. To add one, add a row here, and a piece in model_layers.cc only
// where no other architecture has it yet (ARCHITECTURES.md, "Adding an architecture"). Constant
// data; any thread.
#ifndef BATON_MODEL_ARCHITECTURE_H_
#define BATON_MODEL_ARCHITECTURE_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace baton::model {

// The function that is applied to the gate of a feed-forward layer.
enum class GateActivation : uint8_t {
  kSilu = 0,
  kGeluTanh = 1,
  kClampedSwiglu = 2,  // kernels::Ops::clamped_swiglu
  kReluSquared = 3,    // kernels::Ops::relu_squared, of one product: there is no gate
};

// One row of the table: the shared pieces that an architecture is made of.
struct ArchitectureTraits {
  std::string_view name;          // general.architecture, the prefix of its keys
  std::string_view hf_type;       // model_type of a Hugging Face config.json
  bool rope_interleaved = false;  // pairs (2i, 2i + 1), else (i, i + dims / 2)
  bool qkv_bias = false;          // attn_q|k|v.bias
  bool head_norms = false;        // attn_q_norm, attn_k_norm: per head, before the rotation
  bool post_norms = false;        // post_attention_norm, post_ffw_norm: before the residual add
  bool scaled_embedding = false;  // rows of token_embd times sqrt(hidden)
  bool windowed = false;          // local layers see a window
  bool one_rope = false;          // local layers turn as the others; else by a base of their own
  uint32_t local_step = 6;        // the last of so many layers is not local, where files don't say
  bool sinks = false;             // attn_sinks: a logit of each head that joins its softmax
  bool output_bias = false;       // attn_output.bias
  bool experts = false;           // a mixture of experts instead of one feed-forward layer
  bool short_convs = false;       // convolutions of a few tokens instead of attention (lfm2)
  bool expert_biases = false;     // ffn_gate_inp.bias, ffn_gate|up|down_exps.bias
  bool yarn_truncates = true;     // the ramp of YaRN begins and ends at whole pairs
  bool attention_biases = false;  // attn_q|k|v|output.bias, where the file has them
  bool ffn_biases = false;        // ffn_gate|up|down.bias, where the file has them
  std::string_view ffn_norm = "ffn_norm";  // the name of the norm before the feed-forward layer
  bool multipliers = false;     // embedding, attention, branches and logits have scales (granite)
  uint32_t unrotated_step = 0;  // the last of so many layers does not rotate q and k; 0: all do
  bool fused_projections = false;  // attn_qkv holds q, k, v; ffn_up holds gate, up
  bool partial_rope = false;       // the head's leading elements may be the only ones to rotate
  bool long_rope = false;          // frequency factors for short contexts, others for long ones
  bool query_temperature = false;  // q of far positions may be scaled (ministral3)
  bool whole_norms = false;        // attn_q_norm, attn_k_norm: over all heads, before the rotation
  bool pre_norms = true;           // attn_norm, ffn_norm: of what a branch reads
  bool uniform_window = false;     // the file may give all layers the same window
  // Layers differ in their heads and feed-forward sizes, share KV, and have vectors of the token;
  // V is normed, q * k has no scale, and logits may have a cap (gemma4).
  bool mixed_layers = false;
  bool latent_kv = false;       // one latent row for all heads instead of K and V (deepseek2)
  bool scored_experts = false;  // dense layers first; an ExpertRule chooses (deepseek2, lfm2moe)
  bool shared_experts = false;  // some experts serve every row (deepseek2)
  // One shared expert, times the sigmoid of a product of its own (qwen35moe).
  bool gated_shared_expert = false;
  bool delta_nets = false;   // gated delta nets instead of attention in most layers (qwen35)
  bool output_gate = false;  // attn_q holds a gate of each head's output too, after its q
  // Each layer is one of Mamba-2, of attention, or a feed-forward layer alone (nemotron_h).
  bool mamba = false;
  bool rotates = true;  // q and k of some layer turn
  GateActivation activation = GateActivation::kSilu;
  // Defaults of its configuration class in transformers.
  bool hf_tied = false;
  bool hf_norms_minus_one = false;  // a folder's norms multiply by 1 + weight
  double hf_rope_base = 10000.0;
};

// nullptr when `name` (of general.architecture) is not in the table.
const ArchitectureTraits* FindArchitecture(std::string_view name);
// The row of the model_type of a config.json, which may be another name of one; nullptr for none.
const ArchitectureTraits* FindArchitectureOfHf(std::string_view model_type);
// "llama, qwen2, ...": all names, for messages.
std::string ArchitectureNames();
std::string ArchitectureHfTypes();

// Only gemma3 27B divides q by sqrt(hidden / heads) instead of sqrt(head_dim). Its files say so
// only by their number of layers (as llama.cpp reads them).
inline constexpr uint32_t kGemma27bLayers = 62;

}  // namespace baton::model

#endif  // BATON_MODEL_ARCHITECTURE_H_
