// ModelConfig: the shape and the constants of a model, read from GGUF metadata and checked against
// the limits below and against the tensors of the file. Plain data; any thread.
//
// Invariants of a config that ReadModelConfig returned
//  1. Every size is within its limit, none is 0, num_heads is a multiple of num_kv_heads. So no
//     division by zero and no product beyond 64 bits follows from it.
//  2. The file holds each tensor that the architecture needs, in the right shape and a supported
//     type. It holds no tensor or key that would change the result and that we do not compute.
#ifndef BATON_MODEL_MODEL_CONFIG_H_
#define BATON_MODEL_MODEL_CONFIG_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/delta_shape.h"
#include "kvcache/kv_view.h"
#include "src/base/limits.h"
#include "src/base/status.h"
#include "src/model/architecture.h"
#include "src/model/expert_choice.h"
#include "src/model/gguf.h"
#include "src/model/rope_scaling.h"
#include "src/model/row_pool.h"

namespace baton::model {

// Limits of a config; several times what published llama models have (405B: 126 layers, hidden
// 16384, ffn 53248, 128 heads).
inline constexpr uint32_t kMaxLayers = 1024;
inline constexpr uint32_t kMaxHiddenSize = 1u << 17;
inline constexpr uint32_t kMaxFfnSize = 1u << 19;
inline constexpr uint32_t kMaxHeads = 1024;
inline constexpr uint32_t kMinHeadDim = 8;
inline constexpr uint32_t kMaxHeadDim = 512;         // of the kernels' buffers
inline constexpr uint32_t kMaxLatentDim = 4096;      // DeepSeek-V3: 512
inline constexpr uint32_t kMaxLatentHeadDim = 1024;  // DeepSeek-V3: 192 of a query
inline constexpr uint32_t kMaxExperts = 1024;
inline constexpr uint32_t kMaxKvSlices = 4096;  // of a block, as KvLayout::Validate has it
inline constexpr uint32_t kMinConvTaps = 2;     // the most is kernels::kMaxConvTaps
inline constexpr uint32_t kMaxExpertsUsed = 64;
// Range of each multiplier of granite. Published models have 1/128 to 16.
inline constexpr double kMinMultiplier = 1e-4;
inline constexpr double kMaxMultiplier = 1e4;
// Factor of the logarithm in ModelConfig::temperature_beta. Published models have 0.1.
inline constexpr double kMaxTemperatureBeta = 10.0;
// Tokens, and merges of their tokenizer.
inline constexpr uint32_t kMaxModelVocab = limits::kMaxVocabTokens;
inline constexpr uint32_t kMinContextTokens = 2;

// The numbers that a forward pass needs besides the weights.
struct ModelConfig {
  const ArchitectureTraits* traits = nullptr;  // constant data; never null after reading
  std::string architecture;                    // "llama": traits->name
  std::string name;                            // general.name, may be empty; display only
  uint32_t num_layers = 0;
  uint32_t hidden_size = 0;   // elements of a row of the stream
  uint32_t ffn_size = 0;      // of one expert in a mixture of experts
  uint32_t num_heads = 0;     // of queries
  uint32_t num_kv_heads = 0;  // of K and V; divides num_heads
  uint32_t head_dim = 0;      // elements of a head, kMinHeadDim to kMaxHeadDim; latent rows: below
  uint32_t vocab_size = 0;    // rows of token_embd = number of tokens in the tokenizer
  // Tokens the model was trained for, in [kMinContextTokens, limits::kMaxContextTokens].
  uint32_t context_length = 0;
  float rms_epsilon = 0;  // of norms of the stream as it is computed (branch_scale)
  double rope_base = 0;
  uint32_t rope_dims = 0;         // leading elements of a head that rotate; even
  bool rope_interleaved = true;   // llama in GGUF: pairs (2i, 2i + 1)
  bool has_rope_factors = false;  // rope_freqs.weight, or the two sets of LongRoPE
  bool tied_output = false;       // no output.weight: logits use token_embd
  RopeScaling rope_scaling;       // of the layers that turn by rope_base
  float attention_scale = 0;      // of q * k
  float embedding_scale = 1;
  // Makes a text's vector. The last token of a causal model alone has seen the whole text.
  Pooling pooling = Pooling::kLast;
  // The file's factor of every branch before it is added (traits->multipliers). The stream
  // is computed divided by it: x' = x / branch_scale, so that branches are added as they are.
  // embedding_scale and rms_epsilon above are those of x'. No norm of x' differs from that of x.
  float branch_scale = 1;
  float logit_scale = 1;  // of the logits; the inverse of the file's
  // Models with local layers (traits->windowed): row p of such a layer sees the last `window`
  // positions up to p, and it turns by local_rope_base unless traits->one_rope. With
  // traits->uniform_window all layers are local, or none, and there is no local_rope_base.
  uint32_t window = 0;
  double local_rope_base = 0;
  std::vector<bool> layer_is_local;  // [num_layers]
  // Layers whose q and k do not turn (traits->unrotated_step); empty when all do.
  std::vector<bool> layer_is_unrotated;  // [num_layers] or empty
  // Layers with a short convolution instead of attention (traits->short_convs).
  std::vector<bool> layer_is_conv;  // [num_layers] or empty
  uint32_t conv_taps = 0;           // tokens that a convolution sees, its own included
  // Layers with a gated delta net (traits->delta_nets), or of Mamba-2 (traits->mamba), instead of
  // attention; empty when no layer can be one. They keep a fixed state for each sequence, no K, V.
  std::vector<bool> layer_is_delta;  // [num_layers] or empty
  kernels::DeltaShape delta;
  // Layers of multi-token prediction at the file's end, beyond num_layers: read past.
  uint32_t num_mtp_layers = 0;
  // q of the row at position p is multiplied by 1 + beta ln(1 + floor(p / length)), after it has
  // turned (traits->query_temperature; Meta, Llama 4, 2025); beta 0: by 1.
  float temperature_beta = 0;
  uint32_t temperature_length = 0;
  // Heads of local layers, where they are not those of the others (traits->mixed_layers); else 0.
  uint32_t local_kv_heads = 0;
  uint32_t local_head_dim = 0;
  // So many last layers read the K and V that the last layer of their kind before them stored.
  uint32_t num_shared_layers = 0;
  bool key_is_value = false;     // layers that are not local: V is K before its norm
  bool has_qkv_bias = false;     // of all layers of attention: attn_q|k|v.bias
  bool has_output_bias = false;  // of all layers of attention: attn_output.bias
  bool has_ffn_bias = false;     // of all layers without experts: ffn_gate|up|down.bias
  // [num_layers]; empty where every layer has ffn_size. 0: it has none (traits->mamba).
  std::vector<uint32_t> ffn_sizes;
  // Elements of the vector that each token gives each layer (per_layer_token_embd); 0: none.
  uint32_t per_layer_size = 0;
  float logit_softcap = 0;  // logits become cap * tanh(logit / cap); 0: they stay
  // Multi-head latent attention (traits->latent_kv). A token has one KV row of head_dim elements
  // for all heads: a latent, which is its value too, and a key of rope_dims elements that turns. A
  // query has nope_dim elements, which attn_k_b turns into latent_dim, and rope_dims that turn.
  uint32_t latent_dim = 0;
  uint32_t q_rank = 0;  // elements between the two products of the queries; 0: one product
  uint32_t nope_dim = 0;
  uint32_t value_dim = 0;  // of a head's result, after attn_v_b
  // Mixture of experts (traits->experts).
  uint32_t num_experts = 0;
  uint32_t num_experts_used = 0;  // experts of one row
  // The weights of a row's experts: their softmax; else their part of the softmax over all experts.
  bool experts_sum_to_one = true;
  // Models with traits->scored_experts, whose experts expert_rule chooses.
  uint32_t num_dense_layers = 0;  // leading layers without experts
  uint32_t dense_ffn_size = 0;    // of such a layer
  uint32_t shared_ffn_size = 0;   // of the experts that serve every row, together; 0: none
  ExpertRule expert_rule;

  // Heads of one layer. Without traits->mixed_layers they are those of every layer.
  bool HasLocalHeads(uint32_t layer) const { return local_head_dim != 0 && layer_is_local[layer]; }
  uint32_t HeadDim(uint32_t layer) const {
    return HasLocalHeads(layer) ? local_head_dim : head_dim;
  }
  uint32_t KvHeads(uint32_t layer) const {
    return HasLocalHeads(layer) ? local_kv_heads : num_kv_heads;
  }
  uint32_t QSize(uint32_t layer) const { return num_heads * HeadDim(layer); }
  uint32_t KvSize(uint32_t layer) const { return KvHeads(layer) * HeadDim(layer); }
  // The width of one expert, where the layer has experts.
  uint32_t FfnSize(uint32_t layer) const {
    if (!ffn_sizes.empty()) return ffn_sizes[layer];
    return HasExperts(layer) || dense_ffn_size == 0 ? ffn_size : dense_ffn_size;
  }
  bool HasExperts(uint32_t layer) const { return traits->experts && layer >= num_dense_layers; }
  bool SharesKv(uint32_t layer) const { return layer >= num_layers - num_shared_layers; }
  // The layer whose K and V `layer` reads: itself unless SharesKv.
  uint32_t KvLayer(uint32_t layer) const;
  // The last layer that stores K and V or a state. After it has stored, only wanted rows go on.
  uint32_t last_storing_layer() const;

  uint32_t q_size() const { return num_heads * head_dim; }
  uint32_t kv_size() const { return num_kv_heads * head_dim; }
  uint32_t qkv_size() const { return q_size() + 2 * kv_size(); }
  // Elements of a token that a layer of attention reads.
  uint32_t KvElements(uint32_t layer) const {
    return latent_dim > 0 ? head_dim : 2 * KvSize(layer);
  }
  // Products of one row with one key and its value.
  uint32_t ProductsPerKey(uint32_t layer) const {
    return QSize(layer) + num_heads * (latent_dim > 0 ? latent_dim : HeadDim(layer));
  }
  // Elements of all queries before they are absorbed (traits->latent_kv).
  uint32_t latent_q_size() const { return num_heads * (nope_dim + rope_dims); }
  // Elements of a position in the rotary table.
  uint32_t rope_table_dim() const { return latent_dim > 0 ? rope_dims : head_dim; }
  // The widest feed-forward layer.
  uint32_t max_ffn_size() const { return std::max({ffn_size, dense_ffn_size, shared_ffn_size}); }
  bool IsLocal(uint32_t layer) const { return layer_is_local[layer]; }
  // The window that every layer has; 0 where some layer sees all positions.
  uint32_t window_of_all() const;
  bool has_local_rope() const { return traits->windowed && !traits->one_rope; }
  // q and k of the layer turn, if it is one of attention.
  bool Rotates(uint32_t layer) const {
    return traits->rotates && (layer_is_unrotated.empty() || !layer_is_unrotated[layer]);
  }
  // Some layers have a rotary table of their own: local ones, or those that do not turn.
  bool has_second_rope() const { return has_local_rope() || !layer_is_unrotated.empty(); }
  bool HasSecondRope(uint32_t layer) const {
    if (!layer_is_unrotated.empty()) return layer_is_unrotated[layer];
    return has_local_rope() && layer_is_local[layer];
  }
  uint32_t second_rope_head_dim() const { return local_head_dim == 0 ? head_dim : local_head_dim; }
  // Each slice of a block holds K and V of one layer, row by row.
  bool has_plain_rows() const {
    return layer_is_conv.empty() && !traits->mixed_layers && !traits->latent_kv;
  }
  bool IsConv(uint32_t layer) const { return !layer_is_conv.empty() && layer_is_conv[layer]; }
  bool IsDelta(uint32_t layer) const { return !layer_is_delta.empty() && layer_is_delta[layer]; }
  bool IsFeedForward(uint32_t layer) const { return traits->mamba && ffn_sizes[layer] > 0; }
  bool IsAttention(uint32_t layer) const {
    return !IsConv(layer) && !IsDelta(layer) && !IsFeedForward(layer);
  }
  uint32_t num_conv_layers() const;
  uint32_t num_delta_layers() const;
  uint32_t num_attention_layers() const;
  // Columns of a layer's first product: q, k, v and the gate where there is one; the b, c and x of
  // a convolution; the input of a gated delta net; the queries over latent rows, if need be before
  // their second product.
  uint32_t projected_size(uint32_t layer) const;
  // Elements of a row before the product that ends the branch of attention, convolution or net.
  uint32_t mixed_size(uint32_t layer) const {
    if (latent_dim > 0) return num_heads * value_dim;
    if (IsDelta(layer)) return delta.value_size();
    return IsFeedForward(layer) ? 0 : IsConv(layer) ? hidden_size : QSize(layer);
  }
  // A KV block of n slices holds n times K and V of one token and layer of attention, for each of
  // its tokens. A layer's slices follow one another: one of attention, as many as `hidden_size`
  // elements need of a convolution, which stores its inputs, else none. FirstSlice(num_layers) = n.
  // Where the heads of layers differ, a slice holds the largest part that all layers are whole
  // numbers of: heads of `slice_head_dim` elements, `slice_kv_heads` of them.
  uint32_t conv_slices() const { return (hidden_size - 1) / (2 * kv_size()) + 1; }
  uint32_t slice_head_dim() const;
  uint32_t slice_kv_heads() const;
  // Slices of `layer`; 0 where it stores no K and V, and where it shares another layer's.
  uint32_t NumSlices(uint32_t layer) const;
  uint32_t FirstSlice(uint32_t layer) const;
  uint32_t num_slices() const { return FirstSlice(num_layers); }
  // The first rope_dims elements of a head rotate as pairs (i, i + rope_dims / 2). Kernels pair
  // (i, i + head_dim / 2), so the rows of Q and K are reordered when they are packed.
  bool reorders_heads() const { return !rope_interleaved && rope_dims != head_dim; }
  // Weights of all layers that a row is multiplied with.
  uint64_t WeightsPerRow() const;
};

// Reads and checks the config. NotFound for a missing key or tensor. Unimplemented (naming it) for
// an architecture, rope scaling, tensor or type that is not supported. InvalidArgument for a value
// outside its range, a shape that disagrees with the config, or a vocab_size unequal to the number
// of tokens. Costs no tensor read.
absl::StatusOr<ModelConfig> ReadModelConfig(const GgufFile& file);

// The blocks of this model's KV cache; `block_size` tokens each.
kv::KvLayout KvLayoutOf(const ModelConfig& config, kv::KvDtype dtype, uint32_t block_size);

// The heads of one layer as a layout of that layer alone, for kv::LayerView: as many elements as
// the layer's slices have. A layer that SharesKv has no KV heads here.
kv::KvLayout LayerLayoutOf(const ModelConfig& config, const kv::KvLayout& whole, uint32_t layer);

// "architecture=llama layers=30 hidden=576 ...": every field that changes results, floats in hex.
// Part of weights_id.
std::string CanonicalText(const ModelConfig& config);

}  // namespace baton::model

#endif  // BATON_MODEL_MODEL_CONFIG_H_
