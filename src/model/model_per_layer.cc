// Per-layer vectors (gemma4): every layer adds a product of the stream with a vector that the token
// gives this layer. The vector is half what the token's row of a table holds for the layer, half a
// projection of the token's embedding. The table is as large as all other weights; its rows are
// read from the model file's mapping, some kilobytes a token.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "src/model/matmul_runner.h"
#include "src/model/model.h"
#include "src/model/model_weights.h"
#include "src/model/model_workspace.h"

namespace baton::model {

using device::TaskRange;
using kernels::Epilogue;

void Model::ComputePerLayer(const ModelBatch& batch) {
  ModelWorkspace& ws = *workspace_;
  const MatMulRunner run{*ops_, *pool_, ws};
  const uint32_t rows = batch.num_rows();
  const uint32_t size = config_.per_layer_size;
  const uint32_t all = config_.num_layers * size;
  const uint32_t hidden = config_.hidden_size;
  run.MatMul(weights_->per_layer_proj, {ws.x, rows, hidden}, {ws.per_layer, all, Epilogue::kStore});
  // Before the norm, whose epsilon would otherwise have another weight.
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(hidden)));
  ops_->scale(*pool_, ws.per_layer, size_t{rows} * all, scale);
  ops_->head_norm(*pool_, {ws.per_layer, weights_->per_layer_norm.data(), rows, all,
                           config_.num_layers, size, config_.rms_epsilon});
  const auto embd_scale = static_cast<float>(std::sqrt(static_cast<double>(size)));
  const auto half = static_cast<float>(std::sqrt(0.5));
  for (uint32_t first = 0; first < rows; first += kPerLayerTile) {
    const uint32_t count = std::min(kPerLayerTile, rows - first);
    pool_->RunRanges(count, 1, pool_->num_threads(), [&](TaskRange range, uint32_t) {
      for (uint32_t i = range.begin; i < range.end; ++i) {
        float* embd = ws.per_layer_embd + size_t{i} * all;
        weights_->per_layer_embd.Read(static_cast<uint32_t>(batch.token_ids[first + i]), embd);
        float* out = ws.per_layer + (size_t{first} + i) * all;
        for (uint32_t j = 0; j < all; ++j) out[j] = (out[j] + embd[j] * embd_scale) * half;
      }
    });
  }
}

void Model::AddPerLayer(uint32_t layer, uint32_t rows) {
  ModelWorkspace& ws = *workspace_;
  const LayerWeights& weights = weights_->layers[layer];
  const MatMulRunner run{*ops_, *pool_, ws};
  const uint32_t size = config_.per_layer_size;
  const size_t all = size_t{config_.num_layers} * size;
  run.MatMul(weights.per_layer_gate, {ws.x, rows, config_.hidden_size},
             {ws.per_layer_pair, 2 * size, Epilogue::kStore});
  for (uint32_t row = 0; row < rows; ++row) {
    std::memcpy(ws.per_layer_pair + size_t{row} * 2 * size + size,
                ws.per_layer + row * all + size_t{layer} * size, size * sizeof(float));
  }
  ops_->gelu_mul(*pool_, ws.per_layer_pair, rows, size, ws.per_layer_gated);
  AddToResidual(weights.per_layer_out, ws.per_layer_gated, {0, rows}, weights.post_per_layer);
}

}  // namespace baton::model
