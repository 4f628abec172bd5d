#include "src/model/mixed_layers.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <vector>

namespace baton::model {

using kv::KvLayout;

namespace {

constexpr std::string_view kKvHeads = "attention.head_count_kv";

// A head size and that of V, which must be the same.
absl::StatusOr<uint32_t> ReadHeadDim(const ArchitectureKeys& keys, std::string_view key_name,
                                     std::string_view value_name) {
  BATON_ASSIGN_OR_RETURN(const uint32_t dim, keys.Uint(key_name, {kMinHeadDim, kMaxHeadDim}));
  if (dim % kMinHeadDim != 0) {
    return Unimplemented("key \"{}\" is {}, supported are multiples of {}", keys.Key(key_name), dim,
                         kMinHeadDim);
  }
  BATON_ASSIGN_OR_RETURN(const uint64_t value_dim, keys.file.Uint(keys.Key(value_name)));
  if (value_dim == dim) return dim;
  return Unimplemented("key \"{}\" is {}, supported is only the key length {}",
                       keys.Key(value_name), value_dim, dim);
}

// One number of KV heads for local layers and one for the others.
absl::Status ReadKvHeads(const ArchitectureKeys& keys, ModelConfig& config) {
  BATON_ASSIGN_OR_RETURN(const std::vector<uint32_t> heads,
                         keys.UintPerLayer(kKvHeads, config.num_layers, {1, config.num_heads}));
  config.num_kv_heads = heads.back();  // of a layer that is not local
  config.local_kv_heads = config.num_kv_heads;
  const auto first = std::find(config.layer_is_local.begin(), config.layer_is_local.end(), true);
  if (first != config.layer_is_local.end()) {
    config.local_kv_heads = heads[static_cast<size_t>(first - config.layer_is_local.begin())];
  }
  for (uint32_t i = 0; i < config.num_layers; ++i) {
    const uint32_t wanted = config.KvHeads(i);
    if (config.num_heads % heads[i] != 0) {
      return InvalidArgument("key \"{}\" is {} in layer {}, no divisor of the {} heads",
                             keys.Key(kKvHeads), heads[i], i, config.num_heads);
    }
    if (heads[i] == wanted) continue;
    return Unimplemented(
        "key \"{}\" is {} in layer {}, and {} in other layers that are {}local: only layers of one "
        "kind with equal heads are supported",
        keys.Key(kKvHeads), heads[i], i, wanted, config.IsLocal(i) ? "" : "not ");
  }
  return OkStatus();
}

absl::Status ReadSharedLayers(const ArchitectureKeys& keys, ModelConfig& config) {
  constexpr std::string_view kShared = "attention.shared_kv_layers";
  BATON_ASSIGN_OR_RETURN(config.num_shared_layers,
                         keys.UintOr(kShared, 0, {0, config.num_layers - 1}));
  const auto own_end = config.layer_is_local.begin() + config.last_storing_layer() + 1;
  for (uint32_t i = config.last_storing_layer() + 1; i < config.num_layers; ++i) {
    const bool is_local = config.IsLocal(i);
    if (std::find(config.layer_is_local.begin(), own_end, is_local) != own_end) continue;
    return InvalidArgument(
        "key \"{}\" is {}: layer {} is {}local, and no layer before the shared ones is",
        keys.Key(kShared), config.num_shared_layers, i, is_local ? "" : "not ");
  }
  return OkStatus();
}

// Other programs' files say it by leaving attn_v out.
absl::Status ReadKeyIsValue(const ArchitectureKeys& keys, ModelConfig& config) {
  bool has_value = true;
  for (uint32_t i = 0; i <= config.last_storing_layer(); ++i) {
    if (config.IsLocal(i)) continue;
    has_value = keys.file.FindTensor(fmt::format("blk.{}.attn_v.weight", i)) != nullptr;
    break;
  }
  BATON_ASSIGN_OR_RETURN(config.key_is_value,
                         keys.file.BoolOr(keys.Key("attention.key_is_value"), !has_value));
  return OkStatus();
}

absl::Status ReadSoftcap(const ArchitectureKeys& keys, ModelConfig& config) {
  const std::string key = keys.Key("final_logit_softcapping");
  BATON_ASSIGN_OR_RETURN(const double cap, keys.file.DoubleOr(key, 0.0));
  // The least number may become smaller in fp32.
  if (cap != 0.0 && !(cap >= 0.99 * kMinSoftcap && cap <= kMaxSoftcap)) {
    return InvalidArgument("key \"{}\" is {}, supported is 0 and [{}, {}]", key, cap, kMinSoftcap,
                           kMaxSoftcap);
  }
  config.logit_softcap = static_cast<float>(cap);
  return OkStatus();
}

}  // namespace

absl::Status ReadMixedHeads(const ArchitectureKeys& keys, ModelConfig& config) {
  BATON_ASSIGN_OR_RETURN(config.num_heads,
                         keys.EqualUint("attention.head_count", config.num_layers, {1, kMaxHeads}));
  BATON_ASSIGN_OR_RETURN(config.head_dim,
                         ReadHeadDim(keys, "attention.key_length", "attention.value_length"));
  BATON_ASSIGN_OR_RETURN(config.local_head_dim, ReadHeadDim(keys, "attention.key_length_swa",
                                                            "attention.value_length_swa"));
  config.attention_scale = 1.0f;
  constexpr std::string_view kDims = "rope.dimension_count_swa";
  BATON_ASSIGN_OR_RETURN(const uint32_t dims,
                         keys.UintOr(kDims, config.local_head_dim, {2, kMaxHeadDim}));
  if (dims == config.local_head_dim) return OkStatus();
  return Unimplemented("key \"{}\" is {}, supported is only the head's {}", keys.Key(kDims), dims,
                       config.local_head_dim);
}

absl::Status ReadMixedFeedForward(const ArchitectureKeys& keys, ModelConfig& config) {
  BATON_ASSIGN_OR_RETURN(config.ffn_sizes, keys.UintPerLayer("feed_forward_length",
                                                             config.num_layers, {1, kMaxFfnSize}));
  config.ffn_size = *std::max_element(config.ffn_sizes.begin(), config.ffn_sizes.end());
  return OkStatus();
}

absl::Status ReadMixedLayers(const ArchitectureKeys& keys, ModelConfig& config) {
  if (config.IsLocal(config.num_layers - 1)) {
    return Unimplemented("key \"{}\": the last layer is local, supported is only one that is not",
                         keys.Key("attention.sliding_window_pattern"));
  }
  BATON_RETURN_IF_ERROR(ReadKvHeads(keys, config));
  BATON_RETURN_IF_ERROR(ReadSharedLayers(keys, config));
  BATON_RETURN_IF_ERROR(ReadKeyIsValue(keys, config));
  BATON_ASSIGN_OR_RETURN(config.per_layer_size,
                         keys.UintOr("embedding_length_per_layer_input", 0, {0, kMaxPerLayerSize}));
  BATON_RETURN_IF_ERROR(ReadSoftcap(keys, config));
  if (config.num_slices() <= kMaxKvSlices) return OkStatus();
  return Unimplemented(
      "keys \"{}\" and \"{}\": all layers have {} times the {} elements that both kinds are whole "
      "numbers of, supported is {}",
      keys.Key(kKvHeads), keys.Key("attention.key_length"), config.num_slices(),
      config.slice_kv_heads() * config.slice_head_dim(), kMaxKvSlices);
}

std::string CanonicalMixedLayers(const ModelConfig& config) {
  return fmt::format(
      " local_kv_heads={} local_head_dim={} shared_layers={} key_is_value={} ffn_sizes={} "
      "per_layer={} softcap={:08x}",
      config.local_kv_heads, config.local_head_dim, config.num_shared_layers, config.key_is_value,
      fmt::join(config.ffn_sizes, ","), config.per_layer_size,
      std::bit_cast<uint32_t>(config.logit_softcap));
}

uint64_t MixedWeightsPerRow(const ModelConfig& config) {
  const uint64_t hidden = config.hidden_size;
  uint64_t total = 0;
  for (uint32_t i = 0; i < config.num_layers; ++i) {
    total += hidden * (config.projected_size(i) + config.mixed_size(i));
    total += 3 * hidden * config.FfnSize(i);
    // The product that all layers begin with, and the layer's two.
    total += 3 * hidden * config.per_layer_size;
  }
  return total;
}

uint32_t ModelConfig::last_storing_layer() const {
  uint32_t layer = num_layers - num_shared_layers - 1;
  while (layer > 0 && IsFeedForward(layer)) --layer;
  return layer;
}

uint32_t ModelConfig::window_of_all() const {
  const bool is_all = std::ranges::find(layer_is_local, false) == layer_is_local.end();
  return is_all ? window : 0;
}

uint32_t ModelConfig::projected_size(uint32_t layer) const {
  if (latent_dim > 0) return q_rank > 0 ? q_rank : latent_q_size();
  if (IsDelta(layer)) return delta.input_size();
  if (IsConv(layer)) return 3 * hidden_size;
  if (IsFeedForward(layer)) return 0;
  const uint32_t gate = traits->output_gate ? QSize(layer) : 0;
  return QSize(layer) + (SharesKv(layer) ? 0 : 2 * KvSize(layer)) + gate;
}

uint32_t ModelConfig::KvLayer(uint32_t layer) const {
  uint32_t storing = std::min(layer, last_storing_layer());
  if (!SharesKv(layer)) return layer;
  while (layer_is_local[storing] != layer_is_local[layer]) --storing;  // ReadSharedLayers
  return storing;
}

uint32_t ModelConfig::slice_head_dim() const {
  return local_head_dim == 0 ? head_dim : std::gcd(head_dim, local_head_dim);
}

uint32_t ModelConfig::slice_kv_heads() const {
  if (local_head_dim == 0) return num_kv_heads;
  return std::gcd(kv_size(), local_kv_heads * local_head_dim) / slice_head_dim();
}

uint32_t ModelConfig::NumSlices(uint32_t layer) const {
  if (IsConv(layer)) return conv_slices();
  if (IsDelta(layer) || IsFeedForward(layer)) return 0;
  return SharesKv(layer) ? 0 : KvSize(layer) / (slice_kv_heads() * slice_head_dim());
}

KvLayout LayerLayoutOf(const ModelConfig& config, const KvLayout& whole, uint32_t layer) {
  KvLayout heads = whole;
  heads.num_layers = 1;
  heads.num_kv_heads = config.SharesKv(layer) ? 0 : config.KvHeads(layer);
  heads.head_dim = config.HeadDim(layer);
  return heads;
}

}  // namespace baton::model
