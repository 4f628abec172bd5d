#include "src/model/device_model.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/cuda/wgmma_check.h"
#include "src/base/check.h"
#include "src/model/batch_check.h"
#include "src/model/device_weights.h"
#include "src/model/device_workspace.h"
#include "src/model/model_weights.h"
#include "src/model/numerics.h"
#include "src/model/pack_tensor.h"
#include "src/model/tensor_plan.h"

namespace baton {

using simt::Bf16;

// y = x weight^T (+ bias).
struct DeviceProduct {
  const DeviceBuffer& x;  // [rows][k]
  const DeviceBuffer& y;  // [rows][n], bf16 or fp32
  uint32_t rows;
  uint32_t n;
  uint32_t k;
  const DeviceBuffer* bias = nullptr;  // [n] fp32; null or empty for none
  bool wants_float = false;
};

// What a norm adds to the residual.
struct DeviceBranch {
  const DeviceBuffer& added;                // [rows][hidden]
  const DeviceBuffer* post_norm = nullptr;  // [hidden] norms it first; null or empty for none
};

namespace {

static_assert(kMaxExpertsUsed <= cuda::kMaxRouteTopK);

// Rows of a tile of experts, by the rows that an expert has on average; it changes no bit.
uint32_t TileRows(const ModelConfig& config, uint32_t num_pairs) {
  const bool is_few = num_pairs <= config.num_experts * cuda::kExpertFewRows;
  return is_few ? cuda::kExpertFewRows : cuda::kExpertManyRows;
}

// Rows up to which packed weights are read again for each 64. Unpacking an 8B model at 4.5 bits
// moves 18 GB and the product reads 14 more, 7.4 ms of H200's memory; by the instructions of
// gemm_packed.cu 64 rows take 2.8 ms. A wrong number costs time, never bits.
constexpr uint32_t kMaxPackedRows = 2 * cuda::kGemmMaxSpreadRows;

// Of the largest packed matrix of a layer in bf16.
size_t UnpackedBytes(const ModelConfig& config, const DeviceWeights& weights) {
  size_t largest = 0;
  const auto take = [&largest](const DeviceMatrix& matrix, size_t n, size_t k) {
    if (matrix.is_packed()) largest = std::max(largest, n * k * sizeof(Bf16));
  };
  for (const DeviceLayer& layer : weights.layers) {
    take(layer.qkv, config.qkv_size(), config.hidden_size);
    take(layer.attn_output, config.hidden_size, config.q_size());
    take(layer.router, config.num_experts, config.hidden_size);
    if (config.traits->experts) continue;  // their matrices no kernel unpacks
    take(layer.gate_up, size_t{2} * config.ffn_size, config.hidden_size);
    take(layer.down, config.hidden_size, config.ffn_size);
  }
  return largest;
}

bool WantsTokens(const ModelBatch& batch) {
  return std::any_of(batch.sampling.begin(), batch.sampling.end(),
                     [](const RowSampling& row) { return row.on_device != 0; });
}

absl::Status CheckShape(const ModelConfig& config, const Accelerator& device) {
  const auto refuse = [&](std::string_view what, uint32_t value, std::string_view range) {
    return Unimplemented("{} {}: the kernels of device {} take {}; use cpu", what, value,
                         DeviceKindName(device.kind()), range);
  };
  constexpr uint32_t kVec = 8;  // elements of 16 bytes
  if (config.hidden_size % kVec != 0 || config.hidden_size > cuda::kMaxNormDim) {
    return refuse("hidden size", config.hidden_size, "multiples of 8 up to 16384");
  }
  if (config.ffn_size % kVec != 0) return refuse("ffn size", config.ffn_size, "multiples of 8");
  if (config.head_dim != 64 && config.head_dim != 128 && config.head_dim != 256) {
    return refuse("head size", config.head_dim, "64, 128 and 256");
  }
  const uint32_t group = config.num_heads / config.num_kv_heads;
  if (group > cuda::kMaxGroup) return refuse("heads of a KV head:", group, "at most 16");
  return OkStatus();
}

}  // namespace

DeviceModel::DeviceModel(const DeviceModelOptions& options) : options_(options) {}
DeviceModel::~DeviceModel() = default;

absl::StatusOr<std::unique_ptr<DeviceModel>> DeviceModel::Load(const GgufFile& file,
                                                               const DeviceModelOptions& options) {
  BATON_CHECK(options.device != nullptr && options.kernels != nullptr && options.pool != nullptr,
              "a device model needs a device, its kernels and a thread pool");
  options.device->MakeCurrent();
  std::unique_ptr<DeviceModel> model(new DeviceModel(options));
  BATON_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(file));
  BATON_RETURN_IF_ERROR(model->TakeConfig(config));
  BATON_ASSIGN_OR_RETURN(const TensorPlan plan, PlanTensors(file, config));
  BATON_RETURN_IF_ERROR(CheckVectors(file));
  BATON_RETURN_IF_ERROR(CheckElements(file, *options.pool));
  BATON_ASSIGN_OR_RETURN(DeviceWeights weights, DeviceWeights::Load(plan, options.keeps_packed,
                                                                    options.device, *options.pool));
  model->weights_ = std::make_shared<const DeviceWeights>(std::move(weights));
  if (plan.rope_factors != nullptr) model->rope_factors_ = FloatsOf(*plan.rope_factors);
  BATON_RETURN_IF_ERROR(model->Complete(HashWeights(file, config)));
  return model;
}

absl::StatusOr<std::unique_ptr<DeviceModel>> DeviceModel::FromWeights(
    const ModelConfig& config, std::unique_ptr<DeviceWeights> weights,
    const std::string& weights_id, const DeviceModelOptions& options) {
  BATON_CHECK(options.device != nullptr && options.kernels != nullptr,
              "a device model needs a device and its kernels");
  options.device->MakeCurrent();
  std::unique_ptr<DeviceModel> model(new DeviceModel(options));
  BATON_RETURN_IF_ERROR(model->TakeConfig(config));
  model->weights_ = std::move(weights);
  BATON_RETURN_IF_ERROR(model->Complete(weights_id));
  return model;
}

StatusOr<std::unique_ptr<LoadedModel>> DeviceModel::Share(const ModelThreads& threads) const {
  BATON_CHECK(threads.device != nullptr, "a device model needs a device");
  threads.device->MakeCurrent();
  DeviceModelOptions options = options_;
  options.device = threads.device;
  options.pool = threads.pool;
  std::unique_ptr<DeviceModel> model(new DeviceModel(options));
  BATON_RETURN_IF_ERROR(model->TakeConfig(config_));
  model->weights_ = weights_;
  model->rope_factors_ = rope_factors_;
  BATON_RETURN_IF_ERROR(model->Complete(weights_id_));
  return model;
}

Status DeviceModel::TakeConfig(const ModelConfig& config) {
  config_ = config;
  BATON_RETURN_IF_ERROR(CheckShape(config, *options_.device));
  BATON_ASSIGN_OR_RETURN(options_.max_context, ContextFor(config, options_.max_context));
  layout_ = KvLayoutOf(config, options_.kv_dtype, options_.block_size);
  if (options_.kv_dtype == KvDtype::kFp8) return OkStatus();
  if (options_.kv_dtype != KvDtype::kBf16) {
    return Unimplemented("KV dtype {}: device {} stores K and V in bf16 or fp8",
                         KvDtypeName(options_.kv_dtype), DeviceKindName(options_.device->kind()));
  }
  layout_.encoding = KvEncoding::kPlain;
  return OkStatus();
}

Status DeviceModel::Complete(const std::string& weights_id) {
  const DeviceWorkspaceSize size{.batch = {.max_rows = options_.max_rows,
                                           .max_logit_rows = options_.max_logit_rows,
                                           .max_context = options_.max_context,
                                           .block_size = options_.block_size},
                                 .unpacked_bytes = UnpackedBytes(config_, *weights_)};
  BATON_ASSIGN_OR_RETURN(workspace_,
                         DeviceWorkspace::Create(config_, size, rope_factors_, options_.device));
  if (!options_.allows_wgmma.has_value()) {
    BATON_ASSIGN_OR_RETURN(options_.allows_wgmma, cuda::CheckWgmma(Kernels(), *options_.device));
  }
  BATON_RETURN_IF_ERROR(options_.device->Wait());
  weights_id_ = weights_id;
  numerics_text_ = NumericsText({.weights_id = weights_id_,
                                 .tokenizer_id = options_.tokenizer_id,
                                 .arithmetic = options_.device->arithmetic(),
                                 .kv_dtype = options_.kv_dtype,
                                 .config = &config_});
  numerics_id_ = NumericsId(numerics_text_);
  return OkStatus();
}

std::string_view DeviceModel::arithmetic_name() const { return options_.device->arithmetic(); }
uint32_t DeviceModel::KernelsAStep(const ModelConfig& config) {
  // A layer: two norms, four products, rope, attention, gate; with experts also the router's
  // product, the choice, the sort and the sum. Around them: two gathers, the last norm, the output
  // layer.
  const uint32_t of_layer = config.num_experts == 0 ? 9 : 13;
  return of_layer * config.num_layers + 4;
}
size_t DeviceModel::weight_bytes() const { return weights_->bytes(); }
size_t DeviceModel::packed_bytes() const { return weights_->packed_bytes(); }
bool DeviceModel::HasPackable(const GgufFile& file) {
  return std::any_of(file.tensors().begin(), file.tensors().end(), [](const GgufTensor& tensor) {
    return tensor.type->support == GgufTypeSupport::kSupported &&
           PackedFormatOf(tensor) != cuda::PackedFormat::kBf16;
  });
}
size_t DeviceModel::bytes_read_per_step() const {
  // Of the embedding only the rows of the batch are read, unless it is the output too.
  const size_t total =
      weights_->bytes() - (config_.tied_output ? 0 : weights_->token_embd.size_bytes());
  if (!config_.traits->experts) return total;
  size_t of_all_experts = 0;
  for (const DeviceLayer& layer : weights_->layers) {
    of_all_experts += layer.gate_up.size_bytes() + layer.down.size_bytes();
  }
  const size_t num_unused = config_.num_experts - config_.num_experts_used;
  return total - of_all_experts / config_.num_experts * num_unused;
}

Status DeviceModel::Forward(const ModelBatch& batch, const KvView& kv, LayerHook* hook,
                            std::span<float> logits) {
  BATON_RETURN_IF_ERROR(
      CheckBatch(batch, kv, {&layout_, options_.max_rows, options_.max_context, config_.vocab_size},
                 logits.size()));
  if (batch.logit_rows.size() > options_.max_logit_rows) {
    return InvalidArgument("logits of {} rows are wanted, the model was loaded for {}",
                           batch.logit_rows.size(), options_.max_logit_rows);
  }
  options_.device->MakeCurrent();
  const uint32_t padded_rows = PaddedRows(batch, kv, hook);
  BATON_RETURN_IF_ERROR(workspace_->batch->Set(batch, padded_rows));
  const Status launched =
      padded_rows > 0 ? GraphFor(padded_rows).Launch() : LaunchStep(kv, hook, WantsTokens(batch));
  if (!launched.ok()) {
    (void)options_.device->Wait();  // for the copy of the batch, whose source the next one takes
    return launched;
  }
  return batch.logit_rows.empty() ? options_.device->Wait() : TakeAnswers(batch, logits);
}

Status DeviceModel::LaunchStep(const KvView& kv, LayerHook* hook, bool wants_tokens) {
  const uint32_t num_logit_rows = workspace_->batch->num_logit_rows();
  BATON_RETURN_IF_ERROR(EmbedTokens());
  for (uint32_t layer = 0; layer < config_.num_layers; ++layer) {
    BATON_RETURN_IF_ERROR(StoreKv(layer, kv));
    if (hook != nullptr) {
      BATON_RETURN_IF_ERROR(options_.device->Wait());
      hook->OnLayerStored(layer);
    }
    if (layer + 1 == config_.num_layers && num_logit_rows == 0) return OkStatus();
    BATON_RETURN_IF_ERROR(Attend(layer, kv));
    BATON_RETURN_IF_ERROR(FeedForward(layer));
  }
  BATON_RETURN_IF_ERROR(ComputeLogits());
  return wants_tokens ? ChooseTokens() : OkStatus();
}

Status DeviceModel::EmbedTokens() {
  DeviceWorkspace& ws = *workspace_;
  const DeviceMatrix& table = weights_->token_embd;
  const cuda::EmbedParams params{.table = table.data.as<Bf16>(),
                                 .ids = ws.batch->token_ids(),
                                 .out = ws.residual.as<Bf16>(),
                                 .num_rows = ws.batch->num_rows(),
                                 .num_ids = config_.vocab_size,
                                 .dim = config_.hidden_size,
                                 .scale = config_.embedding_scale};
  void* const stream = options_.device->stream();
  if (!table.is_packed()) return Kernels().embed(params, stream);
  return Kernels().embed_packed({.table = table.packed(),
                                 .ids = params.ids,
                                 .out = params.out,
                                 .num_rows = params.num_rows,
                                 .num_ids = params.num_ids,
                                 .dim = params.dim,
                                 .scale = params.scale},
                                stream);
}

Status DeviceModel::Normalise(const DeviceBranch& branch, const DeviceBuffer& weight) {
  DeviceWorkspace& ws = *workspace_;
  return Kernels().rms_norm(
      {.x = branch.added.as<Bf16>(),
       .residual = ws.residual.as<Bf16>(),
       .weight = weight.as<Bf16>(),
       .out = ws.normed.as<Bf16>(),
       .num_rows = ws.batch->num_rows(),
       .dim = config_.hidden_size,
       .eps = config_.rms_epsilon,
       .x_weight = branch.post_norm == nullptr ? nullptr : branch.post_norm->as<Bf16>()},
      options_.device->stream());
}

Status DeviceModel::MatMul(const DeviceMatrix& weight, const DeviceProduct& product) {
  DeviceWorkspace& ws = *workspace_;
  cuda::GemmParams params{
      .x = product.x.as<Bf16>(),
      .w = weight.data.as<Bf16>(),
      .bias_float = product.bias == nullptr ? nullptr : product.bias->as<float>(),
      .m = product.rows,
      .n = product.n,
      .k = product.k,
      .partials = ws.gemm_partials.data(),
      .counters = ws.gemm_counters.as<uint32_t>(),
      .partial_bytes = ws.gemm_partials.size_bytes(),
      .allows_wgmma = *options_.allows_wgmma,
      .num_sms = options_.device->num_sms()};
  if (product.wants_float) {
    params.y_float = product.y.as<float>();
  } else {
    params.y_bf16 = product.y.as<Bf16>();
  }
  if (weight.is_packed()) return MatMulPacked(weight, params);
  return Kernels().gemm_bf16(params, options_.device->stream());
}

Status DeviceModel::MatMulPacked(const DeviceMatrix& weight, const cuda::GemmParams& params) {
  void* const stream = options_.device->stream();
  const DeviceBuffer& unpacked = workspace_->unpacked;
  cuda::GemmParams rest = params;
  if (params.m > kMaxPackedRows &&
      size_t{params.n} * params.k * sizeof(Bf16) <= unpacked.size_bytes()) {
    BATON_RETURN_IF_ERROR(Kernels().unpack(
        {.w = weight.packed(), .out = unpacked.as<Bf16>(), .n = params.n, .k = params.k}, stream));
    rest.w = unpacked.as<Bf16>();
    return Kernels().gemm_bf16(rest, stream);
  }
  // Also the output layer of more rows, where the scratch has no room for it.
  for (uint32_t done = 0; done < params.m; done += rest.m) {
    rest.m = std::min(params.m - done, cuda::kGemmMaxSpreadRows);
    rest.x = params.x + size_t{done} * params.k;
    const size_t outputs = size_t{done} * params.n;
    if (params.y_float != nullptr) rest.y_float = params.y_float + outputs;
    if (params.y_bf16 != nullptr) rest.y_bf16 = params.y_bf16 + outputs;
    BATON_RETURN_IF_ERROR(Kernels().gemm_packed({rest, weight.packed()}, stream));
  }
  return OkStatus();
}

Status DeviceModel::StoreKv(uint32_t layer, const KvView& kv) {
  DeviceWorkspace& ws = *workspace_;
  const DeviceLayer& weights = weights_->layers[layer];
  if (layer == 0) {
    BATON_RETURN_IF_ERROR(Normalise({ws.nothing()}, weights.attn_norm));
  } else {
    const DeviceBuffer& post_norm = weights_->layers[layer - 1].post_ffn_norm;
    BATON_RETURN_IF_ERROR(Normalise({ws.added, &post_norm}, weights.attn_norm));
  }
  BATON_RETURN_IF_ERROR(MatMul(weights.qkv, {.x = ws.normed,
                                             .y = ws.qkv,
                                             .rows = ws.batch->num_rows(),
                                             .n = config_.qkv_size(),
                                             .k = config_.hidden_size,
                                             .bias = &weights.qkv_bias}));
  return Kernels().rope_append(
      {.qkv = ws.qkv.as<Bf16>(),
       .q_norm = weights.q_norm.as<Bf16>(),
       .k_norm = weights.k_norm.as<Bf16>(),
       .cos_sin = (config_.IsLocal(layer) ? ws.local_cos_sin : ws.cos_sin).as<float>(),
       .positions = ws.batch->positions(),
       .sequences = ws.batch->sequences(),
       .block_lists = ws.batch->block_lists(),
       .q = ws.q.as<Bf16>(),
       .kv = BlocksOf(layer, kv),
       .num_rows = ws.batch->num_rows(),
       .num_heads = config_.num_heads,
       .max_blocks = 1,
       .eps = config_.rms_epsilon,
       .interleaved = config_.rope_interleaved},
      options_.device->stream());
}

cuda::KvBlocks DeviceModel::BlocksOf(uint32_t layer, const KvView& kv) const {
  return {.base = kv.base + layer * layout_.SliceBytes(),
          .block_stride_bytes = layout_.BlockStride(),
          .num_kv_heads = config_.num_kv_heads,
          .head_dim = config_.head_dim,
          .block_size = layout_.block_size,
          .element =
              options_.kv_dtype == KvDtype::kFp8 ? cuda::KvElement::kFp8 : cuda::KvElement::kBf16};
}

Status DeviceModel::Attend(uint32_t layer, const KvView& kv) {
  DeviceWorkspace& ws = *workspace_;
  const bool is_local = config_.IsLocal(layer);
  const DeviceItems prefill = ws.batch->prefill();
  const DeviceItems decode = is_local ? ws.batch->local_decode() : ws.batch->decode();
  cuda::AttentionParams params{.q = ws.q.as<Bf16>(),
                               .out = ws.attended.as<Bf16>(),
                               .kv = BlocksOf(layer, kv),
                               .block_lists = ws.batch->block_lists(),
                               .items = prefill.items,
                               .num_items = prefill.num_items,
                               .partials = ws.attention_partials.data(),
                               .arrivals = ws.attention_arrivals.as<uint32_t>(),
                               .max_blocks = 1,
                               .num_heads = config_.num_heads,
                               .window = is_local ? config_.window : 0,
                               .scale = config_.attention_scale,
                               .num_ctas = prefill.num_ctas};
  void* const stream = options_.device->stream();
  if (prefill.num_ctas > 0) BATON_RETURN_IF_ERROR(Kernels().attention_prefill(params, stream));
  if (decode.num_ctas == 0) return OkStatus();
  params.items = decode.items;
  params.num_items = decode.num_items;
  params.num_ctas = decode.num_ctas;
  return Kernels().attention_decode(params, stream);
}

Status DeviceModel::FeedForward(uint32_t layer) {
  DeviceWorkspace& ws = *workspace_;
  const DeviceLayer& weights = weights_->layers[layer];
  BATON_RETURN_IF_ERROR(MatMul(weights.attn_output, {.x = ws.attended,
                                                     .y = ws.added,
                                                     .rows = ws.batch->num_rows(),
                                                     .n = config_.hidden_size,
                                                     .k = config_.q_size()}));
  BATON_RETURN_IF_ERROR(Normalise({ws.added, &weights.post_attn_norm}, weights.ffn_norm));
  if (config_.traits->experts) return MixExperts(layer);
  BATON_RETURN_IF_ERROR(MatMul(weights.gate_up, {.x = ws.normed,
                                                 .y = ws.gate_up,
                                                 .rows = ws.batch->num_rows(),
                                                 .n = 2 * config_.ffn_size,
                                                 .k = config_.hidden_size}));
  BATON_RETURN_IF_ERROR(Gate(ws.batch->num_rows()));
  return MatMul(weights.down, {.x = ws.gated,
                               .y = ws.added,
                               .rows = ws.batch->num_rows(),
                               .n = config_.hidden_size,
                               .k = config_.ffn_size});
}

Status DeviceModel::MixExperts(uint32_t layer) {
  DeviceWorkspace& ws = *workspace_;
  const DeviceWorkspace::Experts& experts = ws.experts;
  const DeviceLayer& weights = weights_->layers[layer];
  void* const stream = options_.device->stream();
  const uint32_t num_pairs = ws.batch->num_rows() * config_.num_experts_used;
  BATON_RETURN_IF_ERROR(MatMul(weights.router, {.x = ws.normed,
                                                .y = experts.logits,
                                                .rows = ws.batch->num_rows(),
                                                .n = config_.num_experts,
                                                .k = config_.hidden_size,
                                                .wants_float = true}));
  BATON_RETURN_IF_ERROR(Kernels().route({.logits = experts.logits.as<float>(),
                                         .experts = experts.pairs.as<uint32_t>(),
                                         .weights = experts.weights.as<float>(),
                                         .num_rows = ws.batch->num_rows(),
                                         .num_experts = config_.num_experts,
                                         .top_k = config_.num_experts_used},
                                        stream));
  BATON_RETURN_IF_ERROR(Kernels().sort_pairs({.experts = experts.pairs.as<uint32_t>(),
                                              .slots = experts.slots.as<uint32_t>(),
                                              .slot_rows = experts.slot_rows.as<uint32_t>(),
                                              .begins = experts.begins.as<uint32_t>(),
                                              .tiles = experts.tiles.as<cuda::ExpertTile>(),
                                              .num_tiles = experts.num_tiles.as<uint32_t>(),
                                              .arrivals = experts.arrivals.as<uint32_t>(),
                                              .num_pairs = num_pairs,
                                              .num_experts = config_.num_experts,
                                              .top_k = config_.num_experts_used,
                                              .tile_rows = TileRows(config_, num_pairs)},
                                             stream));
  BATON_RETURN_IF_ERROR(MultiplyExperts(weights.gate_up,
                                        {.x = ws.normed,
                                         .y = ws.gate_up,
                                         .rows = num_pairs,
                                         .n = 2 * config_.ffn_size,
                                         .k = config_.hidden_size},
                                        experts.slot_rows.as<uint32_t>()));
  BATON_RETURN_IF_ERROR(Gate(num_pairs));
  BATON_RETURN_IF_ERROR(MultiplyExperts(weights.down,
                                        {.x = ws.gated,
                                         .y = experts.outputs,
                                         .rows = num_pairs,
                                         .n = config_.hidden_size,
                                         .k = config_.ffn_size},
                                        nullptr));
  return Kernels().combine({.y = experts.outputs.as<Bf16>(),
                            .slots = experts.slots.as<uint32_t>(),
                            .weights = experts.weights.as<float>(),
                            .out = ws.added.as<Bf16>(),
                            .num_rows = ws.batch->num_rows(),
                            .top_k = config_.num_experts_used,
                            .dim = config_.hidden_size},
                           stream);
}

Status DeviceModel::MultiplyExperts(const DeviceMatrix& weight, const DeviceProduct& product,
                                    const uint32_t* slot_rows) {
  const DeviceWorkspace::Experts& experts = workspace_->experts;
  const uint32_t tile_rows = TileRows(config_, product.rows);
  const cuda::GroupedGemmParams params{.x = product.x.as<Bf16>(),
                                       .slot_rows = slot_rows,
                                       .w = weight.data.as<Bf16>(),
                                       .y = product.y.as<Bf16>(),
                                       .tiles = experts.tiles.as<cuda::ExpertTile>(),
                                       .num_tiles = experts.num_tiles.as<uint32_t>(),
                                       .max_tiles = static_cast<uint32_t>(cuda::MaxExpertTiles(
                                           product.rows, config_.num_experts, tile_rows)),
                                       .tile_rows = tile_rows,
                                       .n = product.n,
                                       .k = product.k};
  void* const stream = options_.device->stream();
  if (weight.is_packed()) return Kernels().grouped_packed({params, weight.packed()}, stream);
  return Kernels().grouped_gemm(params, stream);
}

Status DeviceModel::Gate(uint32_t rows) {
  DeviceWorkspace& ws = *workspace_;
  const cuda::GateMulParams params{.gate_up = ws.gate_up.as<Bf16>(),
                                   .out = ws.gated.as<Bf16>(),
                                   .num_rows = rows,
                                   .dim = config_.ffn_size};
  switch (config_.traits->activation) {
    case GateActivation::kSilu:
      return Kernels().silu_mul(params, options_.device->stream());
    case GateActivation::kGeluTanh:
      return Kernels().gelu_mul(params, options_.device->stream());
  }
  BATON_CHECK(false, "activation {} has no kernel", static_cast<int>(config_.traits->activation));
  return OkStatus();
}

Status DeviceModel::ComputeLogits() {
  DeviceWorkspace& ws = *workspace_;
  Accelerator& device = *options_.device;
  BATON_RETURN_IF_ERROR(
      Normalise({ws.added, &weights_->layers.back().post_ffn_norm}, weights_->output_norm));
  // The wanted rows, moved to the front of a buffer that is free by now.
  BATON_RETURN_IF_ERROR(Kernels().embed({.table = ws.normed.as<Bf16>(),
                                         .ids = ws.batch->logit_rows(),
                                         .out = ws.added.as<Bf16>(),
                                         .num_rows = ws.batch->num_logit_rows(),
                                         .num_ids = ws.batch->num_rows(),
                                         .dim = config_.hidden_size},
                                        device.stream()));
  return MatMul(weights_->OutputMatrix(), {.x = ws.added,
                                           .y = ws.logits,
                                           .rows = ws.batch->num_logit_rows(),
                                           .n = config_.vocab_size,
                                           .k = config_.hidden_size,
                                           .wants_float = true});
}

Status DeviceModel::ChooseTokens() {
  DeviceWorkspace& ws = *workspace_;
  return Kernels().sample({.logits = ws.logits.as<float>(),
                           .rows = ws.batch->sampling(),
                           .tokens = ws.tokens.as<uint32_t>(),
                           .num_rows = ws.batch->num_logit_rows(),
                           .vocab_size = config_.vocab_size},
                          options_.device->stream());
}

Status DeviceModel::TakeAnswers(const ModelBatch& batch, std::span<float> logits) {
  DeviceWorkspace& ws = *workspace_;
  HostStaging& answers = *ws.answers;
  if (WantsTokens(batch)) {
    static_assert(sizeof(TokenId) == sizeof(uint32_t) &&
                  static_cast<TokenId>(cuda::kNoToken) == kNoTokenId);
    BATON_RETURN_IF_ERROR(
        answers.CopyOut(batch.tokens.data(), ws.tokens.data(), batch.tokens.size_bytes()));
  }
  const size_t row_bytes = config_.vocab_size * sizeof(float);
  for (size_t i = 0; i < batch.logit_rows.size(); ++i) {
    if (!batch.sampling.empty() && batch.sampling[i].on_device != 0) continue;
    BATON_RETURN_IF_ERROR(answers.CopyOut(logits.data() + i * config_.vocab_size,
                                          ws.logits.data() + i * row_bytes, row_bytes));
  }
  return answers.Finish();
}

}  // namespace baton
