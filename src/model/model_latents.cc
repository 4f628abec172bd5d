// The pieces of layers with multi-head latent attention (ModelConfig::latent_dim), in the absorbed
// form: attn_k_b turns a head's query into one that meets stored rows, attention sums the rows'
// latents, and attn_v_b turns each head's sum into its value. Prefill and decode compute alike.
#include <cstring>

#include "src/model/matmul_runner.h"
#include "src/model/model.h"
#include "src/model/model_weights.h"
#include "src/model/model_workspace.h"

namespace baton::model {

using device::TaskRange;
using kernels::Epilogue;
using kernels::LatentAppendArgs;
using kv::KvView;

namespace {

// Epsilon of the norms of latents and of queries between their products. The modules of the
// reference leave it at their default, whatever the model's own is.
constexpr float kLatentEpsilon = 1e-6f;

// The columns of one head in rows of all heads.
struct HeadColumns {
  const float* at;  // of the first row
  size_t stride;
  uint32_t count;
};

// A product reads rows that lie side by side: copies those of one head, and multiplies them.
void MultiplyHead(const MatMulRunner& run, const MatrixGroup& matrix, const HeadColumns& head,
                  uint32_t rows, const GroupOutput& out) {
  float* const gathered = run.workspace.head_rows;
  const uint32_t min_rows = 1 + 16384 / head.count;
  run.pool.RunRanges(rows, min_rows, 4 * run.pool.num_threads(), [&](TaskRange range, uint32_t) {
    for (size_t row = range.begin; row < range.end; ++row) {
      std::memcpy(gathered + row * head.count, head.at + row * head.stride,
                  head.count * sizeof(float));
    }
  });
  run.MatMul(matrix, {gathered, rows, head.count}, out);
}

}  // namespace

const float* Model::LatentQueries(const LayerWeights& weights, uint32_t rows) {
  ModelWorkspace& ws = *workspace_;
  const MatMulRunner run{*ops_, *pool_, ws};
  const uint32_t size = config_.latent_q_size();
  const uint32_t rank = config_.q_rank;
  const GroupInput input{ws.normed, rows, config_.hidden_size};
  if (rank == 0) {
    run.MatMul(weights.qkv, input, {ws.qkv, size, Epilogue::kStore});
    return ws.qkv;
  }
  run.MatMul(weights.qkv, input, {ws.qkv, rank, Epilogue::kStore});
  ops_->rms_norm(*pool_, {ws.qkv, weights.q_a_norm.data(), rows, rank, kLatentEpsilon, ws.qkv});
  run.MatMul(weights.q_b, {ws.qkv, rows, rank}, {ws.latent_q, size, Epilogue::kStore});
  return ws.latent_q;
}

void Model::StoreLatents(uint32_t layer, const LayerRows& layer_rows, const KvView& kv) {
  ModelWorkspace& ws = *workspace_;
  const LayerWeights& weights = weights_->layers[layer];
  const MatMulRunner run{*ops_, *pool_, ws};
  const uint32_t rows = layer_rows.num_rows;
  const uint32_t dim = config_.head_dim;
  run.MatMul(weights.kv_a, {ws.normed, rows, config_.hidden_size},
             {ws.latents, dim, Epilogue::kStore});
  ops_->head_norm(*pool_, {ws.latents, weights.kv_a_norm.data(), rows, dim, 1, config_.latent_dim,
                           kLatentEpsilon});
  const float* q = LatentQueries(weights, rows);
  const uint32_t q_head_dim = config_.nope_dim + config_.rope_dims;
  LatentAppendArgs args;
  args.kv = kv;
  args.layer = config_.FirstSlice(layer);
  args.spans = layer_rows.spans;
  args.latents = ws.latents;
  args.q = q;
  args.q_head_dim = q_head_dim;
  args.num_heads = config_.num_heads;
  args.rope_dims = config_.rope_dims;
  args.cos_sin = ws.cos_sin;
  args.absorbed = ws.absorbed;
  ops_->latent_append(*pool_, args);
  for (uint32_t head = 0; head < config_.num_heads; ++head) {
    const HeadColumns columns{q + size_t{head} * q_head_dim, config_.latent_q_size(),
                              config_.nope_dim};
    MultiplyHead(run, weights.k_b[head], columns, rows,
                 {ws.absorbed + size_t{head} * dim, config_.q_size(), Epilogue::kStore});
  }
}

void Model::ValuesOfLatents(const LayerWeights& weights, uint32_t rows) {
  ModelWorkspace& ws = *workspace_;
  const MatMulRunner run{*ops_, *pool_, ws};
  const uint32_t value_dim = config_.value_dim;
  const uint32_t latent_dim = config_.latent_dim;
  for (uint32_t head = 0; head < config_.num_heads; ++head) {
    const HeadColumns columns{ws.mixed_latents + size_t{head} * latent_dim,
                              size_t{config_.num_heads} * latent_dim, latent_dim};
    MultiplyHead(
        run, weights.v_b[head], columns, rows,
        {ws.attended + size_t{head} * value_dim, config_.num_heads * value_dim, Epilogue::kStore});
  }
}

}  // namespace baton::model
