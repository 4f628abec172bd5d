#include "src/model/model_workspace.h"

#include <algorithm>

#include "kernels/weight_type.h"
#include "src/model/model_rope.h"

namespace baton::model {

using device::AlignedBuffer;
using kernels::kQuantBlock;

namespace {

// Hands out pieces of one buffer. First pass with no buffer: only counts.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}

  template <typename T>
  T* Take(size_t count) {
    std::byte* piece = base_ == nullptr ? nullptr : base_ + used_;
    constexpr size_t kAlign = AlignedBuffer::kAlignment;
    used_ += (count * sizeof(T) + kAlign - 1) / kAlign * kAlign;
    return reinterpret_cast<T*>(piece);
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

void CarveExperts(const ModelConfig& config, size_t rows, Carver& carver, ModelWorkspace& out) {
  const size_t pairs = rows * config.num_experts_used;
  out.router_logits = carver.Take<float>(rows * config.num_experts);
  out.pair_experts = carver.Take<uint32_t>(pairs);
  out.pair_weights = carver.Take<float>(pairs);
  out.pair_slots = carver.Take<uint32_t>(pairs);
  out.slot_rows = carver.Take<uint32_t>(pairs);
  out.expert_begins = carver.Take<uint32_t>(config.num_experts + 1);
  out.gathered = carver.Take<float>(rows * config.hidden_size);
  out.expert_out = carver.Take<float>(pairs * config.hidden_size);
  if (config.traits->gated_shared_expert) out.shared_gates = carver.Take<float>(rows);
}

void CarvePerLayer(const ModelConfig& config, size_t rows, Carver& carver, ModelWorkspace& out) {
  const size_t size = config.per_layer_size;
  out.per_layer = carver.Take<float>(rows * config.num_layers * size);
  out.per_layer_embd = carver.Take<float>(kPerLayerTile * config.num_layers * size);
  out.per_layer_pair = carver.Take<float>(rows * 2 * size);
  out.per_layer_gated = carver.Take<float>(rows * size);
}

void CarveLatents(const ModelConfig& config, size_t rows, Carver& carver, ModelWorkspace& out) {
  out.latents = carver.Take<float>(rows * config.head_dim);
  if (config.q_rank > 0) out.latent_q = carver.Take<float>(rows * config.latent_q_size());
  out.absorbed = carver.Take<float>(rows * config.q_size());
  out.head_rows = carver.Take<float>(rows * std::max(config.nope_dim, config.latent_dim));
  out.mixed_latents = carver.Take<float>(rows * config.num_heads * config.latent_dim);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelWorkspace>> ModelWorkspace::Create(
    const ModelConfig& config, const WorkspaceSize& size, std::span<const float> rope_factors) {
  std::unique_ptr<ModelWorkspace> out(new ModelWorkspace());
  const size_t rows = size.max_rows;
  size_t projected = 0;
  size_t mixed = 0;
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    projected = std::max<size_t>(projected, config.projected_size(layer));
    mixed = std::max<size_t>(mixed, config.mixed_size(layer));
  }
  // The widest input of a product.
  const size_t widest = std::max({size_t{config.hidden_size}, size_t{config.max_ffn_size()}, mixed,
                                  size_t{config.latent_dim}, size_t{config.nope_dim},
                                  size_t{config.q_rank}, size_t{config.per_layer_size}});
  const size_t blocks = (widest + kQuantBlock - 1) / kQuantBlock;
  const auto carve = [&](std::byte* base) {
    Carver carver(base);
    out->x = carver.Take<float>(rows * config.hidden_size);
    out->normed = carver.Take<float>(rows * config.hidden_size);
    out->qkv = carver.Take<float>(rows * projected);
    out->attended = carver.Take<float>(rows * mixed);
    if (config.traits->activation != GateActivation::kReluSquared) {
      out->gate_up = carver.Take<float>(rows * config.max_ffn_size() * 2);
    }
    out->gated = carver.Take<float>(rows * config.max_ffn_size());
    out->a16_q_ = carver.Take<int16_t>(rows * widest);
    out->a16_scale_ = carver.Take<float>(rows * blocks);
    out->a16_sum_ = carver.Take<float>(rows * blocks);
    out->a16_half_sum_ = carver.Take<float>(rows * blocks * 2);
    out->a16_half_total_ = carver.Take<int32_t>(rows * blocks * 2);
    if (config.traits->rotates) {
      out->cos_sin = carver.Take<float>(size_t{size.max_context} * config.rope_table_dim());
    }
    if (config.has_local_rope()) {
      out->second_cos_sin =
          carver.Take<float>(size_t{size.max_context} * config.second_rope_head_dim());
    }
    if (config.per_layer_size > 0) CarvePerLayer(config, rows, carver, *out);
    if (config.traits->experts) CarveExperts(config, rows, carver, *out);
    if (config.traits->latent_kv) CarveLatents(config, rows, carver, *out);
    out->attention_scratch = {carver.Take<std::byte>(size.attention_scratch_bytes),
                              size.attention_scratch_bytes};
    return carver.used();
  };
  BATON_ASSIGN_OR_RETURN(out->buffer_, AlignedBuffer::Allocate(carve(nullptr)));
  carve(out->buffer_.data());
  out->kept_spans.reserve(rows);
  if (config.num_delta_layers() > 0) out->cut_spans.reserve(rows);
  if (out->cos_sin != nullptr) {
    const size_t angles = size_t{size.max_context} * config.rope_table_dim();
    BATON_RETURN_IF_ERROR(
        FillRopeTable(config, {rope_factors, /*is_second=*/false}, {out->cos_sin, angles}));
  }
  if (out->second_cos_sin != nullptr) {
    const size_t second = size_t{size.max_context} * config.second_rope_head_dim();
    BATON_RETURN_IF_ERROR(
        FillRopeTable(config, {rope_factors, /*is_second=*/true}, {out->second_cos_sin, second}));
  }
  return out;
}

}  // namespace baton::model
