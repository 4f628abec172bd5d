// The pieces that the layers of all architectures are made of; which of them a model runs is in
// ArchitectureTraits. ARCHITECTURES.md draws the order.
#include <algorithm>
#include <cstring>
#include <span>

#include "kernels/math.h"
#include "kernels/rope_table.h"
#include "src/model/matmul_runner.h"
#include "src/model/model.h"
#include "src/model/model_weights.h"
#include "src/model/model_workspace.h"

namespace baton::model {

using device::TaskRange;
using device::ThreadPool;
using kernels::AttentionArgs;
using kernels::AttentionSpan;
using kernels::Epilogue;
using kernels::Exp;
using kernels::Logarithm;
using kernels::RopeAppendArgs;
using kernels::ShortConvArgs;
using kv::KvView;

namespace {

// Turns the weights of a row's experts, whose sum is 1, into their parts of the softmax over the
// logits of all experts. The order of the sums is fixed, so the bits are too.
void WeighAmongAllExperts(std::span<const float> logits, std::span<const uint32_t> used,
                          float* weights) {
  const float largest = logits[used[0]];
  float sum_of_used = 0.0f;
  for (const uint32_t expert : used) sum_of_used += Exp(logits[expert] - largest);
  float sum_of_all = 0.0f;  // >= 1: the largest gives 1
  for (const float logit : logits) sum_of_all += Exp(logit - largest);
  for (size_t j = 0; j < used.size(); ++j) weights[j] *= sum_of_used / sum_of_all;
}

// ModelConfig::temperature_beta. A row's factor follows from its position alone. A row of the first
// `temperature_length` positions keeps its bits.
void ScaleQueries(const ModelConfig& config, std::span<const AttentionSpan> spans, ThreadPool& pool,
                  float* q) {
  constexpr uint32_t kRowGrain = 8;
  for (const AttentionSpan& span : spans) {
    if (span.first_pos + span.num_rows <= config.temperature_length) continue;
    pool.RunRanges(
        span.num_rows, kRowGrain, 4 * pool.num_threads(), [&](TaskRange range, uint32_t) {
          for (uint32_t row = range.begin; row < range.end; ++row) {
            const uint32_t steps = (span.first_pos + row) / config.temperature_length;
            if (steps == 0) continue;
            const auto factor =
                static_cast<float>(1.0 + config.temperature_beta * Logarithm(1.0 + steps));
            float* at = q + size_t{span.first_row + row} * config.qkv_size();
            for (uint32_t i = 0; i < config.q_size(); ++i) at[i] *= factor;
          }
        });
  }
}

// Rows that go through a feed-forward layer together, where a row has `width` gates and ups: as
// many as leave those of each thread in 1.5 MiB, most of which a second-level cache keeps. At least
// the rows of a task of the products (kernels/cpu/stretch_a16.h), for which a weight is unpacked
// once.
uint32_t PassRows(uint32_t width, uint32_t num_threads) {
  constexpr size_t kBytes = size_t{3} << 19;
  constexpr size_t kTaskRows = 192;
  constexpr size_t kStep = 64;
  const size_t rows = num_threads * kBytes / (sizeof(float) * width);
  return static_cast<uint32_t>(std::max(kTaskRows, rows / kStep * kStep));
}

// Rows of each of the fewest equal passes of about `most` rows, in whole tiles. A last pass of few
// rows would read all weights for these alone.
uint32_t EvenPass(uint32_t rows, uint32_t most) {
  constexpr uint32_t kTileRows = 12;
  const uint32_t num_passes = std::max(1u, (rows + most - 1) / most);
  const uint32_t even = (rows + num_passes - 1) / num_passes;
  return (even + kTileRows - 1) / kTileRows * kTileRows;
}

// x[r, i] *= 1 / (1 + e^-gates[r]), for each row [r] of x, [n] wide.
void ScaleBySigmoids(std::span<const float> gates, uint32_t n, ThreadPool& pool, float* x) {
  const uint32_t min_rows = 1 + 4096 / n;
  const auto num_rows = static_cast<uint32_t>(gates.size());
  pool.RunRanges(num_rows, min_rows, 4 * pool.num_threads(), [&](TaskRange range, uint32_t) {
    for (uint32_t row = range.begin; row < range.end; ++row) {
      const float factor = 1.0f / (1.0f + Exp(-gates[row]));
      float* at = x + size_t{row} * n;
      for (uint32_t i = 0; i < n; ++i) at[i] *= factor;
    }
  });
}

}  // namespace

Model::LayerKv Model::KvOf(uint32_t layer, const KvView& kv) const {
  const uint32_t slice = config_.FirstSlice(config_.KvLayer(layer));
  if (layer_layouts_.empty()) return {kv, slice};
  return {LayerView(kv, slice, layer_layouts_[config_.KvLayer(layer)]), 0};
}

void Model::StoreKv(uint32_t layer, const LayerRows& rows, const KvView& kv) {
  ModelWorkspace& ws = *workspace_;
  const LayerWeights& weights = weights_->layers[layer];
  const MatMulRunner run{*ops_, *pool_, ws};
  const uint32_t hidden = config_.hidden_size;
  const uint32_t stride = config_.projected_size(layer);
  const float eps = config_.rms_epsilon;
  if (config_.IsFeedForward(layer)) return;  // its rows read no other row
  if (config_.traits->pre_norms) {
    ops_->rms_norm(*pool_, {ws.x, weights.attn_norm.data(), rows.num_rows, hidden, eps, ws.normed});
  }
  if (config_.traits->latent_kv) return StoreLatents(layer, rows, kv);
  const float* input = config_.traits->pre_norms ? ws.normed : ws.x;
  run.MatMul(weights.qkv, {input, rows.num_rows, hidden}, {ws.qkv, stride, Epilogue::kStore});
  if (config_.IsDelta(layer)) {
    MixDelta(layer, rows, kv);
  } else if (config_.IsConv(layer)) {
    ops_->conv_append(*pool_, ConvArgs(layer, rows.spans, kv));
  } else {
    RotateAndStore(layer, rows, kv);
  }
}

ShortConvArgs Model::ConvArgs(uint32_t layer, std::span<const AttentionSpan> spans,
                              const KvView& kv) const {
  ShortConvArgs args;
  args.kv = kv;
  args.first_slice = config_.FirstSlice(layer);
  args.num_slices = config_.conv_slices();
  args.spans = spans;
  args.bcx = workspace_->qkv;
  args.channels = config_.hidden_size;
  args.taps = weights_->layers[layer].conv_taps.data();
  args.num_taps = config_.conv_taps;
  args.out = workspace_->attended;
  return args;
}

void Model::RotateAndStore(uint32_t layer, const LayerRows& rows, const KvView& kv) {
  ModelWorkspace& ws = *workspace_;
  const LayerWeights& weights = weights_->layers[layer];
  const uint32_t num_rows = rows.num_rows;
  const uint32_t stride = config_.projected_size(layer);
  const float eps = config_.rms_epsilon;
  LayerKv target = KvOf(layer, kv);
  // The layout of a layer that shares K and V has no KV heads: only its q turns.
  if (config_.SharesKv(layer)) target.view.layout = &layer_layouts_[layer];
  RopeAppendArgs args;
  args.kv = target.view;
  args.layer = target.slice;
  args.spans = rows.spans;
  args.q = ws.qkv;
  float* k = ws.qkv + config_.QSize(layer);
  float* v = k + config_.KvSize(layer);
  args.k = k;
  args.v = v;
  args.qkv_stride = stride;
  args.num_heads = config_.num_heads;
  if (config_.Rotates(layer)) {
    args.cos_sin = config_.HasSecondRope(layer) ? ws.second_cos_sin : ws.cos_sin;
  } else {
    args.cos_sin = nullptr;
  }
  args.interleaved = config_.rope_interleaved;
  if (config_.has_qkv_bias) {
    ops_->add_bias(*pool_, ws.qkv, weights.qkv_bias.data(), num_rows, stride);
  }
  if (config_.traits->head_norms) {
    const uint32_t dim = config_.HeadDim(layer);
    const uint32_t kv_heads = config_.SharesKv(layer) ? 0 : config_.KvHeads(layer);
    const auto norm = [&](float* x, std::span<const float> weight, uint32_t heads) {
      ops_->head_norm(*pool_, {x, weight.data(), num_rows, stride, heads, dim, eps});
    };
    norm(ws.qkv, weights.q_norm, config_.num_heads);
    if (kv_heads > 0) norm(k, weights.k_norm, kv_heads);
    if (!weights.v_norm.empty()) norm(v, weights.v_norm, kv_heads);
  }
  if (config_.traits->whole_norms) {  // as one head of the whole width
    const uint32_t q_size = config_.q_size();
    const uint32_t kv_size = config_.kv_size();
    ops_->head_norm(*pool_, {ws.qkv, weights.q_norm.data(), num_rows, stride, 1, q_size, eps});
    ops_->head_norm(*pool_, {k, weights.k_norm.data(), num_rows, stride, 1, kv_size, eps});
  }
  ops_->rope_append(*pool_, args);
  if (config_.temperature_beta != 0.0f) ScaleQueries(config_, rows.spans, *pool_, ws.qkv);
}

void Model::EndMixer(uint32_t layer, const LayerRows& layer_rows, const KvView& kv) {
  const std::span<const AttentionSpan> spans = layer_rows.spans;
  const uint32_t rows = layer_rows.num_rows;
  ModelWorkspace& ws = *workspace_;
  const LayerWeights& weights = weights_->layers[layer];
  if (config_.IsConv(layer)) {
    ops_->short_conv(*pool_, ConvArgs(layer, spans, kv));
  } else if (!config_.IsDelta(layer)) {
    Attend(layer, spans, kv);
    if (config_.traits->latent_kv) ValuesOfLatents(weights, rows);
    if (config_.traits->output_gate) {
      const float* gate = ws.qkv + config_.qkv_size();
      ops_->sigmoid_mul(*pool_,
                        {gate, config_.projected_size(layer), rows, config_.q_size(), ws.attended});
    }
  }
  AddToResidual(weights.attn_output, ws.attended, {0, rows}, weights.post_attn_norm,
                weights.output_bias);
}

void Model::AttendAndFeedForward(uint32_t layer, const LayerRows& layer_rows, const KvView& kv) {
  const uint32_t rows = layer_rows.num_rows;
  ModelWorkspace& ws = *workspace_;
  const LayerWeights& weights = weights_->layers[layer];
  if (!config_.IsFeedForward(layer)) EndMixer(layer, layer_rows, kv);
  if (weights.ffn.empty()) return;
  const bool has_experts = config_.HasExperts(layer);  // an expert's rows go together
  const uint32_t pass =
      has_experts ? rows : EvenPass(rows, PassRows(weights.ffn[0].gate_up.n, pool_->num_threads()));
  for (uint32_t begin = 0; begin < rows; begin += pass) {
    const TaskRange range = {begin, std::min(rows, begin + pass)};
    float* const x = ws.x + size_t{begin} * config_.hidden_size;
    if (config_.traits->pre_norms) {
      ops_->rms_norm(*pool_, {x, weights.ffn_norm.data(), range.size(), config_.hidden_size,
                              config_.rms_epsilon, ws.normed});
    }
    if (has_experts) {
      MixExperts(weights, rows);
    } else {
      const float* input = config_.traits->pre_norms ? ws.normed : x;
      FeedForward(weights.ffn[0], input, range, weights.post_ffn_norm);
    }
  }
  if (config_.per_layer_size > 0) AddPerLayer(layer, rows);
  if (weights.layer_scale != 1.0f) {
    ops_->scale(*pool_, ws.x, size_t{rows} * config_.hidden_size, weights.layer_scale);
  }
}

void Model::Attend(uint32_t layer, std::span<const AttentionSpan> spans, const KvView& kv) {
  ModelWorkspace& ws = *workspace_;
  const LayerKv source = KvOf(layer, kv);
  AttentionArgs args;
  args.kv = source.view;
  args.layer = source.slice;
  args.spans = spans;
  args.q = ws.qkv;
  args.q_stride = config_.projected_size(layer);
  args.num_heads = config_.num_heads;
  args.scale = config_.attention_scale;
  args.window = config_.IsLocal(layer) ? config_.window : 0;
  args.out = ws.attended;
  if (config_.traits->latent_kv) {
    args.q = ws.absorbed;
    args.q_stride = config_.q_size();
    args.value_dim = config_.latent_dim;
    args.out = ws.mixed_latents;
  }
  if (config_.traits->sinks) args.sinks = weights_->layers[layer].sinks.data();
  args.scratch = ws.attention_scratch;
  ops_->attention(*pool_, args);
}

void Model::AddToResidual(const MatrixGroup& group, const float* input, TaskRange rows,
                          std::span<const float> post_norm, std::span<const float> bias) {
  ModelWorkspace& ws = *workspace_;
  const MatMulRunner run{*ops_, *pool_, ws};
  const uint32_t hidden = config_.hidden_size;
  float* const x = ws.x + size_t{rows.begin} * hidden;
  float* const out = post_norm.empty() ? x : ws.normed;
  const GroupInput in{input, rows.size(), group.parts.front().k()};
  run.MatMul(group, in, {out, hidden, post_norm.empty() ? Epilogue::kAdd : Epilogue::kStore});
  if (!bias.empty()) ops_->add_bias(*pool_, out, bias.data(), rows.size(), hidden);
  if (post_norm.empty()) return;
  ops_->rms_norm(*pool_, {ws.normed, post_norm.data(), rows.size(), hidden, config_.rms_epsilon, x,
                          Epilogue::kAdd});
}

void Model::Gate(const FeedForwardWeights& weights, const float* input, uint32_t rows) {
  ModelWorkspace& ws = *workspace_;
  const MatMulRunner run{*ops_, *pool_, ws};
  if (config_.traits->activation == GateActivation::kReluSquared) {
    const uint32_t n = weights.gate_up.n;
    run.MatMul(weights.gate_up, {input, rows, config_.hidden_size},
               {ws.gated, n, Epilogue::kStore});
    if (!weights.gate_up_bias.empty()) {
      ops_->add_bias(*pool_, ws.gated, weights.gate_up_bias.data(), rows, n);
    }
    return ops_->relu_squared(*pool_, ws.gated, size_t{rows} * n);
  }
  const uint32_t width = weights.gate_up.n / 2;
  run.MatMul(weights.gate_up, {input, rows, config_.hidden_size},
             {ws.gate_up, 2 * width, Epilogue::kStore});
  if (!weights.gate_up_bias.empty()) {
    ops_->add_bias(*pool_, ws.gate_up, weights.gate_up_bias.data(), rows, 2 * width);
  }
  switch (config_.traits->activation) {
    case GateActivation::kSilu:
      ops_->silu_mul(*pool_, ws.gate_up, rows, width, ws.gated);
      break;
    case GateActivation::kGeluTanh:
      ops_->gelu_mul(*pool_, ws.gate_up, rows, width, ws.gated);
      break;
    case GateActivation::kClampedSwiglu:
      ops_->clamped_swiglu(*pool_, ws.gate_up, rows, width, ws.gated);
      break;
    case GateActivation::kReluSquared:  // without a gate: above
      break;
  }
}

void Model::FeedForward(const FeedForwardWeights& weights, const float* input, TaskRange rows,
                        std::span<const float> post_norm) {
  Gate(weights, input, rows.size());
  AddToResidual(weights.down, workspace_->gated, rows, post_norm, weights.down_bias);
}

void Model::SortPairs(uint32_t rows) {
  ModelWorkspace& ws = *workspace_;
  const uint32_t pairs = rows * config_.num_experts_used;
  uint32_t* begins = ws.expert_begins;
  std::fill_n(begins, config_.num_experts + 1, 0u);
  for (uint32_t i = 0; i < pairs; ++i) ++begins[ws.pair_experts[i] + 1];
  for (uint32_t e = 0; e < config_.num_experts; ++e) begins[e + 1] += begins[e];
  // Here begins[e] is the first slot of expert e; it moves on to the first of expert e + 1.
  for (uint32_t i = 0; i < pairs; ++i) {
    const uint32_t slot = begins[ws.pair_experts[i]]++;
    ws.pair_slots[i] = slot;
    ws.slot_rows[slot] = i / config_.num_experts_used;
  }
  for (uint32_t e = config_.num_experts; e > 0; --e) begins[e] = begins[e - 1];
  begins[0] = 0;
}

void Model::RouteRows(const LayerWeights& weights, uint32_t rows) {
  ModelWorkspace& ws = *workspace_;
  const uint32_t count = config_.num_experts;
  const uint32_t used = config_.num_experts_used;
  const auto logits_of = [&](uint32_t row) {
    return std::span<const float>(ws.router_logits + size_t{row} * count, count);
  };
  if (config_.traits->scored_experts) {
    const uint32_t min_rows = 1 + 4096 / count;
    pool_->RunRanges(rows, min_rows, 4 * pool_->num_threads(), [&](TaskRange range, uint32_t) {
      for (uint32_t row = range.begin; row < range.end; ++row) {
        ChooseExperts(config_.expert_rule, logits_of(row), weights.choice_bias,
                      {{ws.pair_experts + size_t{row} * used, used},
                       {ws.pair_weights + size_t{row} * used, used}});
      }
    });
    return;
  }
  ops_->route(*pool_, {ws.router_logits, rows, count, used, ws.pair_experts, ws.pair_weights});
  if (config_.experts_sum_to_one) return;
  for (uint32_t row = 0; row < rows; ++row) {
    WeighAmongAllExperts(logits_of(row), {ws.pair_experts + size_t{row} * used, used},
                         ws.pair_weights + size_t{row} * used);
  }
}

// Every row is multiplied by its own experts, all rows of one expert at a time. A row of a matmul
// does not depend on the others, and a row's experts are added in the order of its own logits. So
// no bit depends on which rows share an expert.
void Model::MixExperts(const LayerWeights& weights, uint32_t rows) {
  ModelWorkspace& ws = *workspace_;
  const MatMulRunner run{*ops_, *pool_, ws};
  const size_t hidden = config_.hidden_size;
  const uint32_t used = config_.num_experts_used;
  run.MatMul(weights.router, {ws.normed, rows, config_.hidden_size},
             {ws.router_logits, config_.num_experts, Epilogue::kStore});
  if (config_.traits->expert_biases) {
    ops_->add_bias(*pool_, ws.router_logits, weights.router_bias.data(), rows, config_.num_experts);
  }
  RouteRows(weights, rows);
  SortPairs(rows);
  for (uint32_t e = 0; e < config_.num_experts; ++e) {
    const uint32_t first = ws.expert_begins[e];
    const uint32_t count = ws.expert_begins[e + 1] - first;
    if (count == 0) continue;
    for (uint32_t i = 0; i < count; ++i) {
      const float* row = ws.normed + ws.slot_rows[first + i] * hidden;
      std::memcpy(ws.gathered + i * hidden, row, hidden * sizeof(float));
    }
    Gate(weights.ffn[e], ws.gathered, count);
    run.MatMul(weights.ffn[e].down, {ws.gated, count, config_.ffn_size},
               {ws.expert_out + first * hidden, config_.hidden_size, Epilogue::kStore});
    if (config_.traits->expert_biases) {
      ops_->add_bias(*pool_, ws.expert_out + first * hidden, weights.ffn[e].down_bias.data(), count,
                     config_.hidden_size);
    }
  }
  ops_->combine(*pool_, {ws.expert_out, ws.pair_slots, ws.pair_weights, rows, used,
                         config_.hidden_size, ws.x});
  if (config_.traits->gated_shared_expert) {
    AddGatedSharedExpert(weights, rows);
  } else if (config_.traits->shared_experts) {
    FeedForward(weights.shared, ws.normed, {0, rows}, {});
  }
}

// The factor of a row is applied before the last product, which then adds to the stream as that of
// any other feed-forward layer does.
void Model::AddGatedSharedExpert(const LayerWeights& weights, uint32_t rows) {
  ModelWorkspace& ws = *workspace_;
  const MatMulRunner run{*ops_, *pool_, ws};
  run.MatMul(weights.shared_router, {ws.normed, rows, config_.hidden_size},
             {ws.shared_gates, 1, Epilogue::kStore});
  Gate(weights.shared, ws.normed, rows);
  ScaleBySigmoids({ws.shared_gates, rows}, config_.shared_ffn_size, *pool_, ws.gated);
  AddToResidual(weights.shared.down, ws.gated, {0, rows}, {});
}

}  // namespace baton::model
