#include "src/model/model.h"

#include <algorithm>
#include <cstring>

#include "src/model/batch_check.h"
#include "src/model/matmul_runner.h"
#include "src/model/model_weights.h"
#include "src/model/model_workspace.h"

namespace baton::model {

using kernels::A16View;
using kernels::AttentionSpan;
using kernels::Epilogue;
using kv::KvView;

Model::Model() = default;
Model::~Model() = default;

bool Model::computes_in_int16() const {
  for (const LayerWeights& layer : weights_->layers) {
    if (!layer.ffn.empty()) return layer.ffn.front().gate_up.uses_a16;
  }
  return weights_->layers.front().qkv.uses_a16;
}

size_t Model::weight_bytes() const { return weights_->bytes(); }
const SharingReport& Model::sharing() const { return weights_->sharing; }
size_t Model::workspace_bytes() const { return workspace_->bytes(); }

size_t Model::bytes_read_per_step() const {
  // Only the batch's rows of the embedding are read, unless the embedding is the output matrix too.
  size_t total = weights_->bytes() - (config_.tied_output ? 0 : weights_->token_embd.bytes());
  if (!config_.traits->experts) return total;
  for (const LayerWeights& layer : weights_->layers) {
    if (layer.router.parts.empty()) continue;
    const size_t one_expert = layer.ffn_bytes() / config_.num_experts;
    total -= (config_.num_experts - config_.num_experts_used) * one_expert;
  }
  return total;
}

absl::Status Model::Forward(const ModelBatch& batch, const KvView& kv, LayerHook* hook,
                            std::span<float> logits) {
  BATON_RETURN_IF_ERROR(CheckBatch(
      batch, kv, {&layout_, max_rows_, max_context_, config_.vocab_size, 0, config_.hidden_size},
      logits.size()));
  RunLayers(batch, kv, hook);
  const uint32_t rows = static_cast<uint32_t>(batch.logit_rows.size());
  if (rows == 0) return OkStatus();
  ModelWorkspace& ws = *workspace_;
  const MatMulRunner run{*ops_, *pool_, ws};
  const uint32_t hidden = config_.hidden_size;
  ops_->rms_norm(
      *pool_, {ws.x, weights_->output_norm.data(), rows, hidden, config_.rms_epsilon, ws.normed});
  if (!batch.hidden.empty()) std::copy_n(ws.normed, batch.hidden.size(), batch.hidden.data());
  const GroupInput input{ws.normed, rows, hidden};
  const GroupOutput output{logits.data(), config_.vocab_size, Epilogue::kStore};
  if (config_.tied_output) {
    const A16View a16 = ws.A16(hidden);
    if (weights_->token_embd.uses_a16()) ops_->quantize_a16(*pool_, ws.normed, rows, a16);
    run.MatMulOne(weights_->token_embd, a16, input, output);
  } else {
    run.MatMul(weights_->output, input, output);
  }
  if (config_.logit_scale != 1.0f) {
    ops_->scale(*pool_, logits.data(), size_t{rows} * config_.vocab_size, config_.logit_scale);
  }
  if (config_.logit_softcap != 0.0f) {
    ops_->softcap(*pool_, logits.data(), size_t{rows} * config_.vocab_size, config_.logit_softcap);
  }
  return OkStatus();
}

void Model::RunLayers(const ModelBatch& batch, const KvView& kv, LayerHook* hook) {
  ops_->embed(*pool_, weights_->token_embd, batch.token_ids, workspace_->x);
  if (config_.embedding_scale != 1.0f) {
    const size_t count = size_t{batch.num_rows()} * config_.hidden_size;
    ops_->scale(*pool_, workspace_->x, count, config_.embedding_scale);
  }
  if (config_.per_layer_size > 0) ComputePerLayer(batch);
  ClearStates(batch.spans, kv);
  ClearUnused(batch.state_copies, kv);
  for (StateCopy& copy : batch.state_copies) copy.has_numbers = true;  // until a layer finds none
  const LayerRows all = {batch.spans, batch.num_rows(), batch.state_copies};
  const uint32_t last = config_.last_storing_layer();
  uint32_t num_stored = 0;  // slices
  for (uint32_t layer = 0; layer <= last; ++layer) {
    StoreKv(layer, all, kv);
    const uint32_t end = state_map_.num_stored[layer];
    for (; num_stored < end && hook != nullptr; ++num_stored) hook->OnLayerStored(num_stored);
    if (layer < last) AttendAndFeedForward(layer, all, kv);
  }
  // Once no layer stores K and V only the rows whose logits are wanted matter. No row reads another
  // row's residual, so leaving rows out changes no bit of the others.
  if (batch.logit_rows.empty()) return;
  const LayerRows kept = {KeepLogitRows(batch), static_cast<uint32_t>(batch.logit_rows.size())};
  AttendAndFeedForward(last, kept, kv);
  for (uint32_t layer = last + 1; layer < config_.num_layers; ++layer) {
    StoreKv(layer, kept, kv);  // q alone, or nothing of a feed-forward layer
    AttendAndFeedForward(layer, kept, kv);
  }
}

std::span<const AttentionSpan> Model::KeepLogitRows(const ModelBatch& batch) {
  if (batch.logit_rows.size() == batch.num_rows()) return batch.spans;
  ModelWorkspace& ws = *workspace_;
  ws.kept_spans.clear();
  const size_t hidden = config_.hidden_size;
  const uint32_t last = config_.last_storing_layer();
  // A gated delta net is computed by now; of the others the first product is still to be read.
  const bool is_delta = config_.IsDelta(last);
  const bool is_latent = config_.traits->latent_kv;
  float* const mixed = is_delta ? ws.attended : is_latent ? ws.absorbed : ws.qkv;
  const size_t stride = is_delta    ? config_.mixed_size(last)
                        : is_latent ? config_.q_size()
                                    : config_.projected_size(last);
  // Attention without a gate reads only q of q|k|v once K and V are stored.
  const bool is_plain = config_.IsAttention(last) && !config_.traits->output_gate;
  const size_t num_kept = is_plain ? config_.QSize(last) : stride;
  const size_t per_layer = size_t{config_.num_layers} * config_.per_layer_size;
  size_t span_idx = 0;
  for (uint32_t i = 0; i < batch.logit_rows.size(); ++i) {
    const uint32_t row = batch.logit_rows[i];  // >= i: rows move forward only
    std::memmove(ws.x + i * hidden, ws.x + row * hidden, hidden * sizeof(float));
    std::memmove(mixed + i * stride, mixed + row * stride, num_kept * sizeof(float));
    if (per_layer > 0) {
      std::memmove(ws.per_layer + i * per_layer, ws.per_layer + row * per_layer,
                   per_layer * sizeof(float));
    }
    while (row >= batch.spans[span_idx].first_row + batch.spans[span_idx].num_rows) ++span_idx;
    const AttentionSpan& span = batch.spans[span_idx];
    const bool continues = i > 0 && row == batch.logit_rows[i - 1] + 1 && row > span.first_row;
    if (continues) {
      ++ws.kept_spans.back().num_rows;
    } else {
      ws.kept_spans.push_back({span.kv, i, 1, span.first_pos + (row - span.first_row)});
    }
  }
  return ws.kept_spans;
}

}  // namespace baton::model
