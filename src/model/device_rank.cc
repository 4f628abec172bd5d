#include "src/model/device_rank.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/base/check.h"
#include "src/model/device_shape.h"

namespace baton::model {

namespace cublaslt = kernels::cublaslt;
namespace cuda = kernels::cuda;
namespace simt = kernels::simt;
using device::Accelerator;
using device::DeviceBuffer;
using device::HostStaging;
using kv::KvLayout;

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

// The vector that a norm adds to the residual.
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

cuda::GateKind GateKindOf(const ModelConfig& config) {
  switch (config.traits->activation) {
    case GateActivation::kSilu:
      return cuda::GateKind::kSilu;
    case GateActivation::kGeluTanh:
      return cuda::GateKind::kGelu;
    case GateActivation::kClampedSwiglu:
    case GateActivation::kReluSquared:
      break;  // refused by DeviceModel::Load
  }
  BATON_CHECK(false, "activation {} has no kernel", static_cast<int>(config.traits->activation));
  return {};
}

// Whether there are kernels that divide the norms of all layers: by wgmma, of a dense model's rank
// that is alone, which has attention in every layer and whose branches are not normed themselves.
bool CanJoinNorms(const DeviceRankOptions& options, const DeviceWeights& weights) {
  const auto joins = [](const DeviceLayer& layer) {
    const bool is_packed = layer.qkv.is_packed() || layer.attn_output.is_packed() ||
                           layer.gate_up.is_packed() || layer.down.is_packed();
    const bool has_post_norm =
        layer.post_attn_norm.size_bytes() > 0 || layer.post_ffn_norm.size_bytes() > 0;
    // No kernel norms what a convolution or a gate reads.
    const bool is_conv = layer.conv_taps.size_bytes() > 0;
    const bool is_gated = layer.output_gate.size_bytes() > 0;
    return !is_packed && !has_post_norm && !is_conv && !is_gated;
  };
  return options.allows_wgmma && options.rank.count == 1 && !options.config.traits->experts &&
         options.config.hidden_size <= cuda::kMaxNormedDim &&
         std::all_of(weights.layers.begin(), weights.layers.end(), joins);
}

// Rows up to which packed weights are read again for each 64. On an H100 (kernels/NOTES.md, q4_0)
// 128 rows take 2 x 97 us packed (gate_up) and 2 x 56 (down) [calc]; unpacked 107 + 91 and 54 + 68
// (the products as in benchmarks/results/gpu_check_tools.json, wgmma128). A wrong number costs
// time, never bits.
constexpr uint32_t kMaxPackedRows = 2 * cuda::kGemmMaxSpreadRows;

// Bytes of the largest packed matrix of a layer once it is unpacked to bf16.
size_t UnpackedBytes(const ModelConfig& config, const DeviceWeights& weights) {
  size_t largest = 0;
  const auto take = [&largest](const DeviceMatrix& matrix, size_t n, size_t k) {
    if (matrix.is_packed()) largest = std::max(largest, n * k * sizeof(Bf16));
  };
  for (uint32_t i = 0; i < config.num_layers; ++i) {
    const DeviceLayer& layer = weights.layers[i];
    take(layer.qkv, FirstProductSize(config, i), config.hidden_size);
    take(layer.output_gate, OutputGateSize(config, i), config.hidden_size);
    take(layer.delta_gates, 2 * config.delta.num_v_heads, config.hidden_size);
    take(layer.attn_output, config.hidden_size, config.mixed_size(i));
    take(layer.router, config.num_experts, config.hidden_size);
    if (config.HasExperts(i)) continue;  // their matrices no kernel unpacks
    take(layer.gate_up, size_t{2} * config.FfnSize(i), config.hidden_size);
    take(layer.down, config.hidden_size, config.FfnSize(i));
  }
  return largest;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceRank>> DeviceRank::Create(
    const DeviceRankOptions& options, std::shared_ptr<const DeviceWeights> weights) {
  std::unique_ptr<DeviceRank> out(new DeviceRank(options, std::move(weights)));
  options.device->MakeCurrent();
  const DeviceWorkspaceSize size{.batch = options.batch,
                                 .unpacked_bytes = UnpackedBytes(options.config, *out->weights_),
                                 .rank = options.rank,
                                 .logit_columns = options.logits.count};
  BATON_ASSIGN_OR_RETURN(
      out->workspace_,
      DeviceWorkspace::Create(options.config, size, options.rope_factors, options.device));
  out->can_join_norms_ = CanJoinNorms(options, *out->weights_);
  if (options.fast.library == nullptr) return out;
  const std::vector<FastSite> sites = out->FastSites();
  BATON_ASSIGN_OR_RETURN(out->fast_, FastProducts::Create(options.fast, options.device, sites));
  return out;
}

// Products with a bias stay ours: the library adds one in the type of the output, ours is fp32.
std::vector<FastSite> DeviceRank::FastSites() {
  const DeviceWorkspace& ws = *workspace_;
  const ModelConfig& config = options_.config;
  const uint32_t rows = options_.batch.max_rows;
  std::vector<FastSite> sites;
  for (uint32_t i = 0; i < config.num_layers; ++i) {
    const DeviceLayer& of_layer = weights_->layers[i];
    const bool is_attention = config.IsAttention(i);
    if (of_layer.qkv_bias.size_bytes() == 0) {
      AddSite(is_attention ? "qkv" : "convolution", of_layer.qkv,
              {ws.normed, ws.qkv, rows, FirstProductSize(config, i), config.hidden_size}, &sites);
    }
    if (const uint32_t size = OutputGateSize(config, i); size > 0) {
      AddSite("gate of outputs", of_layer.output_gate,
              {ws.normed, ws.output_gate, rows, size, config.hidden_size}, &sites);
    }
    AddSite(is_attention ? "attention output" : "convolution output", of_layer.attn_output,
            {ws.attended, ws.added, rows, config.hidden_size, config.mixed_size(i)}, &sites);
  }
  const DeviceLayer& layer = weights_->layers.front();
  AddSite("gate and up", layer.gate_up,
          {ws.normed, ws.gate_up, rows, 2 * config.ffn_size, config.hidden_size}, &sites);
  AddSite("down", layer.down, {ws.gated, ws.added, rows, config.hidden_size, config.ffn_size},
          &sites);
  AddSite("output layer", weights_->OutputMatrix(),
          {.x = ws.added,
           .y = ws.logits,
           .rows = std::min(rows, options_.batch.max_logit_rows),
           .n = config.vocab_size,
           .k = config.hidden_size,
           .wants_float = true},
          &sites);
  return sites;
}

void DeviceRank::AddSite(const char* name, const DeviceMatrix& weight, const DeviceProduct& product,
                         std::vector<FastSite>* sites) {
  const cublaslt::LtShape shape = {product.n, product.k, product.wants_float};
  const bool is_known = std::any_of(sites->begin(), sites->end(),
                                    [&](const FastSite& site) { return site.shape == shape; });
  const bool can_be_dense = !weight.is_packed() || CanUnpack(product.n, product.k);
  if (is_known || !can_be_dense || product.rows <= kMaxOwnRows) return;
  const auto multiply = [this, &weight, product](uint32_t rows) {
    DeviceProduct some = product;
    some.rows = rows;
    return MatMul(weight, some);
  };
  const auto weights = [this, &weight, shape]() -> StatusOr<const void*> {
    if (!weight.is_packed()) return weight.data.data();
    BATON_RETURN_IF_ERROR(Unpack(weight, shape.n, shape.k));
    return workspace_->unpacked.data();
  };
  sites->push_back({name, shape, &product.x, &product.y, product.rows, multiply, weights});
}

Status DeviceRank::EmbedTokens(const uint32_t* fed) {
  DeviceWorkspace& ws = *workspace_;
  const DeviceMatrix& table = weights_->token_embd;
  const cuda::EmbedParams params{.table = table.data.as<Bf16>(),
                                 .ids = ws.batch->token_ids(),
                                 .out = ws.residual.as<Bf16>(),
                                 .num_rows = ws.batch->num_rows(),
                                 .num_ids = options_.config.vocab_size,
                                 .dim = options_.config.hidden_size,
                                 .scale = options_.config.embedding_scale,
                                 .fed = fed};
  void* const stream = options_.device->stream();
  if (!table.is_packed()) return Kernels().embed(params, stream);
  return Kernels().embed_packed({.table = table.packed(),
                                 .ids = params.ids,
                                 .out = params.out,
                                 .num_rows = params.num_rows,
                                 .num_ids = params.num_ids,
                                 .dim = params.dim,
                                 .scale = params.scale,
                                 .fed = params.fed},
                                stream);
}

Status DeviceRank::Normalise(const DeviceBranch& branch, const DeviceBuffer& weight) {
  DeviceWorkspace& ws = *workspace_;
  return Kernels().rms_norm(
      {.x = branch.added.as<Bf16>(),
       .residual = ws.residual.as<Bf16>(),
       .weight = weight.as<Bf16>(),
       .out = ws.normed.as<Bf16>(),
       .num_rows = ws.batch->num_rows(),
       .dim = options_.config.hidden_size,
       .eps = options_.config.rms_epsilon,
       .x_weight = branch.post_norm == nullptr ? nullptr : branch.post_norm->as<Bf16>()},
      options_.device->stream());
}

cuda::GemmParams DeviceRank::ParamsOf(const DeviceMatrix& weight,
                                      const DeviceProduct& product) const {
  const DeviceWorkspace& ws = *workspace_;
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
      .allows_wgmma = options_.allows_wgmma,
      .num_sms = options_.device->num_sms()};
  if (product.wants_float) {
    params.y_float = product.y.as<float>();
  } else {
    params.y_bf16 = product.y.as<Bf16>();
  }
  return params;
}

Status DeviceRank::MatMul(const DeviceMatrix& weight, const DeviceProduct& product) {
  const cuda::GemmParams params = ParamsOf(weight, product);
  return weight.is_packed() ? MatMulPacked(weight, params) : MatMulDense(params);
}

bool DeviceRank::Joins(const DeviceMatrix& weight) const {
  return !weight.is_packed() && workspace_->batch->num_rows() <= cuda::kMaxJoinedRows;
}

bool DeviceRank::JoinsNorms() const {
  return can_join_norms_ && workspace_->batch->num_rows() <= cuda::kMaxNormedRows;
}

cuda::NormedRows DeviceRank::NormOf(const DeviceBuffer& weight) const {
  return {weight.as<Bf16>(), workspace_->squares.as<float>(), options_.config.rms_epsilon};
}

Status DeviceRank::MatMulDense(const cuda::GemmParams& params) {
  if (fast_ != nullptr && fast_->Multiply(params)) return OkStatus();
  return Kernels().gemm_bf16(params, options_.device->stream());
}

bool DeviceRank::CanUnpack(uint32_t n, uint32_t k) const {
  return size_t{n} * k * sizeof(Bf16) <= workspace_->unpacked.size_bytes();
}

Status DeviceRank::Unpack(const DeviceMatrix& weight, uint32_t n, uint32_t k) {
  return Kernels().unpack(
      {.w = weight.packed(), .out = workspace_->unpacked.as<Bf16>(), .n = n, .k = k},
      options_.device->stream());
}

Status DeviceRank::MatMulPacked(const DeviceMatrix& weight, const cuda::GemmParams& params) {
  cuda::GemmParams rest = params;
  if (params.m > kMaxPackedRows && CanUnpack(params.n, params.k)) {
    BATON_RETURN_IF_ERROR(Unpack(weight, params.n, params.k));
    rest.w = workspace_->unpacked.as<Bf16>();
    return MatMulDense(rest);
  }
  // The output layer with more rows comes here too, where the scratch has no room for it unpacked.
  for (uint32_t done = 0; done < params.m; done += rest.m) {
    rest.m = std::min(params.m - done, cuda::kGemmMaxSpreadRows);
    rest.x = params.x + size_t{done} * params.k;
    const size_t outputs = size_t{done} * params.n;
    if (params.y_float != nullptr) rest.y_float = params.y_float + outputs;
    if (params.y_bf16 != nullptr) rest.y_bf16 = params.y_bf16 + outputs;
    BATON_RETURN_IF_ERROR(
        Kernels().gemm_packed({rest, weight.packed()}, options_.device->stream()));
  }
  return OkStatus();
}

Status DeviceRank::StoreKv(uint32_t layer, std::byte* kv) {
  DeviceWorkspace& ws = *workspace_;
  const DeviceLayer& weights = weights_->layers[layer];
  const bool is_normed = layer > 0 && JoinsNorms();
  if (layer == 0) {
    BATON_RETURN_IF_ERROR(Normalise({ws.nothing()}, weights.attn_norm));
  } else if (!is_normed) {
    const DeviceBuffer& post_norm = weights_->layers[layer - 1].post_ffn_norm;
    BATON_RETURN_IF_ERROR(Normalise({ws.added, &post_norm}, weights.attn_norm));
  }
  const DeviceProduct product{.x = is_normed ? ws.residual : ws.normed,
                              .y = ws.qkv,
                              .rows = ws.batch->num_rows(),
                              .n = FirstProductSize(options_.config, layer),
                              .k = options_.config.hidden_size,
                              .bias = &weights.qkv_bias};
  void* const stream = options_.device->stream();
  if (options_.config.IsDelta(layer)) {
    BATON_RETURN_IF_ERROR(MatMul(weights.qkv, product));
    return MoveStates(layer, kv);
  }
  if (options_.config.IsConv(layer)) {
    BATON_RETURN_IF_ERROR(MatMul(weights.qkv, product));
    return Kernels().short_conv(ConvOf(layer, kv), stream);
  }
  const cuda::RopeAppendParams rope = RopeOf(layer, kv);
  if (Joins(weights.qkv)) {
    return Kernels().gemm_rope(
        {ParamsOf(weights.qkv, product), rope, ws.rope_arrivals.as<uint32_t>(),
         is_normed ? NormOf(weights.attn_norm) : cuda::NormedRows{}},
        stream);
  }
  BATON_RETURN_IF_ERROR(MatMul(weights.qkv, product));
  return Kernels().rope_append(rope, stream);
}

cuda::RopeAppendParams DeviceRank::RopeOf(uint32_t layer, std::byte* kv) const {
  const DeviceWorkspace& ws = *workspace_;
  const DeviceLayer& weights = weights_->layers[layer];
  const bool has_second = options_.config.HasSecondRope(layer);
  return {.qkv = ws.qkv.as<Bf16>(),
          .q_norm = weights.q_norm.as<Bf16>(),
          .k_norm = weights.k_norm.as<Bf16>(),
          .cos_sin = (has_second ? ws.second_cos_sin : ws.cos_sin).as<float>(),
          .positions = ws.batch->positions(),
          .sequences = ws.batch->sequences(),
          .block_lists = ws.batch->block_lists(),
          .q = ws.q.as<Bf16>(),
          .kv = BlocksOf(layer, kv),
          .num_rows = ws.batch->num_rows(),
          .num_heads = options_.config.num_heads,
          .max_blocks = 1,
          .eps = options_.config.rms_epsilon,
          .interleaved = options_.config.rope_interleaved};
}

cuda::ShortConvParams DeviceRank::ConvOf(uint32_t layer, std::byte* kv) const {
  const DeviceWorkspace& ws = *workspace_;
  const ModelConfig& config = options_.config;
  const KvLayout& layout = options_.layout;
  return {.bcx = ws.qkv.as<Bf16>(),
          .taps = weights_->layers[layer].conv_taps.as<float>(),
          .positions = ws.batch->positions(),
          .sequences = ws.batch->sequences(),
          .block_lists = ws.batch->block_lists(),
          .out = ws.attended.as<Bf16>(),
          .kv = {.base = kv + config.FirstSlice(layer) * layout.SliceBytes(),
                 .block_stride_bytes = layout.BlockStride(),
                 .row_elements = config.conv_slices() * 2 * config.kv_size(),
                 .block_size = layout.block_size},
          .num_rows = ws.batch->num_rows(),
          .channels = config.hidden_size,
          .num_taps = config.conv_taps,
          .max_blocks = 1};
}

Status DeviceRank::ClearStates(std::byte* kv) {
  const DeviceStates states = workspace_->batch->states();
  if (states.num_cleared == 0) return OkStatus();
  const KvLayout& layout = options_.layout;
  return Kernels().clear_blocks({.base = kv,
                                 .blocks = states.cleared,
                                 .block_stride_bytes = layout.BlockStride(),
                                 .block_bytes = layout.BlockBytes(),
                                 .num_blocks = states.num_cleared},
                                options_.device->stream());
}

Status DeviceRank::MoveStates(uint32_t layer, std::byte* kv) {
  DeviceWorkspace& ws = *workspace_;
  BATON_RETURN_IF_ERROR(
      MatMul(weights_->layers[layer].delta_gates, {.x = ws.normed,
                                                   .y = ws.delta_gates,
                                                   .rows = ws.batch->num_rows(),
                                                   .n = 2 * options_.config.delta.num_v_heads,
                                                   .k = options_.config.hidden_size,
                                                   .wants_float = true}));
  const cuda::DeltaParams params = NetOf(layer, kv);
  void* const stream = options_.device->stream();
  BATON_RETURN_IF_ERROR(Kernels().delta_inputs(params, stream));
  return Kernels().delta_scan(params, stream);
}

cuda::DeltaParams DeviceRank::NetOf(uint32_t layer, std::byte* kv) const {
  const DeviceWorkspace& ws = *workspace_;
  const DeviceLayer& weights = weights_->layers[layer];
  const kernels::DeltaShape& shape = options_.config.delta;
  const KvLayout& layout = options_.layout;
  const StatePlace& place = state_map_.places[layer];
  const DeviceStates states = ws.batch->states();
  return {.x = ws.qkv.as<Bf16>(),
          .z = ws.output_gate.as<Bf16>(),
          .gates = ws.delta_gates.as<float>(),
          .taps = weights.conv_taps.as<float>(),
          .rates = weights.delta_rates.as<float>(),
          .dt_bias = weights.dt_bias.as<float>(),
          .norm = weights.delta_norm.as<float>(),
          .spans = states.spans,
          .row_spans = states.row_spans,
          .states = states.lists,
          .copies = states.copies,
          .broken = states.broken,
          .inputs = ws.delta_inputs.as<float>(),
          .out = ws.attended.as<Bf16>(),
          .state = {.base = kv + place.slice * layout.SliceBytes(),
                    .block_stride_bytes = layout.BlockStride(),
                    .slice_bytes = static_cast<uint32_t>(layout.SliceBytes()),
                    .offset = static_cast<uint32_t>(place.offset)},
          .dims = {shape.num_k_heads, shape.num_v_heads, shape.k_dim, shape.v_dim, shape.num_taps},
          .num_rows = ws.batch->num_rows(),
          .num_spans = states.num_spans,
          .num_state_blocks = layout.state_blocks,
          .eps = options_.config.rms_epsilon};
}

cuda::KvBlocks DeviceRank::BlocksOf(uint32_t layer, std::byte* kv) const {
  const KvLayout& layout = options_.layout;
  return {.base = kv + options_.config.FirstSlice(layer) * layout.SliceBytes(),
          .block_stride_bytes = layout.BlockStride(),
          .num_kv_heads = options_.config.num_kv_heads,
          .head_dim = options_.config.head_dim,
          .block_size = layout.block_size,
          .element = ElementOf(layout)};
}

Status DeviceRank::Attend(uint32_t layer, std::byte* kv) {
  if (options_.config.IsAttention(layer)) BATON_RETURN_IF_ERROR(ReadKv(layer, kv));
  if (OutputGateSize(options_.config, layer) > 0) BATON_RETURN_IF_ERROR(GateOutput(layer, kv));
  const DeviceMatrix& output = weights_->layers[layer].attn_output;
  const uint32_t size = options_.config.mixed_size(layer);
  if (JoinsNorms()) return AddBranch(output, workspace_->attended, size);
  return MatMulOfBranch(output, workspace_->attended, size, PartialSum::kAttention);
}

Status DeviceRank::GateOutput(uint32_t layer, std::byte* kv) {
  DeviceWorkspace& ws = *workspace_;
  const uint32_t size = OutputGateSize(options_.config, layer);
  const uint32_t rows = ws.batch->num_rows();
  const DeviceProduct product{ws.normed, ws.output_gate, rows, size, options_.config.hidden_size};
  BATON_RETURN_IF_ERROR(MatMul(weights_->layers[layer].output_gate, product));
  void* const stream = options_.device->stream();
  if (options_.config.IsDelta(layer)) return Kernels().delta_gate(NetOf(layer, kv), stream);
  return Kernels().sigmoid_mul({ws.output_gate.as<Bf16>(), ws.attended.as<Bf16>(), rows, size},
                               stream);
}

Status DeviceRank::ReadKv(uint32_t layer, std::byte* kv) {
  DeviceWorkspace& ws = *workspace_;
  const bool is_local = options_.config.IsLocal(layer);
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
                               .num_heads = options_.config.num_heads,
                               .window = is_local ? options_.config.window : 0,
                               .scale = options_.config.attention_scale,
                               .num_ctas = prefill.num_ctas,
                               .by_wgmma = options_.attends_by_wgmma};
  void* const stream = options_.device->stream();
  if (prefill.num_ctas > 0) BATON_RETURN_IF_ERROR(Kernels().attention_prefill(params, stream));
  if (decode.num_ctas == 0) return OkStatus();
  params.items = decode.items;
  params.num_items = decode.num_items;
  params.num_ctas = decode.num_ctas;
  params.is_spread = decode.is_spread;
  return Kernels().attention_decode(params, stream);
}

Status DeviceRank::MatMulOfBranch(const DeviceMatrix& weight, const DeviceBuffer& x, uint32_t k,
                                  PartialSum which) {
  DeviceWorkspace& ws = *workspace_;
  return MatMul(weight, {.x = x,
                         .y = is_alone() ? ws.added : Partial(which),
                         .rows = ws.batch->num_rows(),
                         .n = options_.config.hidden_size,
                         .k = k,
                         .wants_float = !is_alone()});
}

Status DeviceRank::AddBranch(const DeviceMatrix& weight, const DeviceBuffer& x, uint32_t k) {
  DeviceWorkspace& ws = *workspace_;
  const cuda::GemmParams params = ParamsOf(weight, {.x = x,
                                                    .y = ws.residual,
                                                    .rows = ws.batch->num_rows(),
                                                    .n = options_.config.hidden_size,
                                                    .k = k});
  return Kernels().gemm_sum({params, ws.squares.as<float>()}, options_.device->stream());
}

Status DeviceRank::FeedForward(uint32_t layer) {
  DeviceWorkspace& ws = *workspace_;
  const DeviceLayer& weights = weights_->layers[layer];
  if (!JoinsNorms()) {
    BATON_RETURN_IF_ERROR(Normalise({ws.added, &weights.post_attn_norm}, weights.ffn_norm));
  }
  if (options_.config.HasExperts(layer)) return MixExperts(layer);
  BATON_RETURN_IF_ERROR(GateUp(layer));
  const uint32_t size = options_.config.FfnSize(layer);
  const bool is_last = layer + 1 == weights_->layers.size();
  if (JoinsNorms() && !is_last) {
    return AddBranch(weights.down, ws.gated, size);
  }
  return MatMulOfBranch(weights.down, ws.gated, size, PartialSum::kFeedForward);
}

Status DeviceRank::MixExperts(uint32_t layer) {
  DeviceWorkspace& ws = *workspace_;
  const DeviceWorkspace::Experts& experts = ws.experts;
  const DeviceLayer& weights = weights_->layers[layer];
  void* const stream = options_.device->stream();
  const uint32_t num_pairs = ws.batch->num_rows() * options_.config.num_experts_used;
  BATON_RETURN_IF_ERROR(MatMul(weights.router, {.x = ws.normed,
                                                .y = experts.logits,
                                                .rows = ws.batch->num_rows(),
                                                .n = options_.config.num_experts,
                                                .k = options_.config.hidden_size,
                                                .wants_float = true}));
  BATON_RETURN_IF_ERROR(Kernels().route({.logits = experts.logits.as<float>(),
                                         .experts = experts.pairs.as<uint32_t>(),
                                         .weights = experts.weights.as<float>(),
                                         .num_rows = ws.batch->num_rows(),
                                         .num_experts = options_.config.num_experts,
                                         .top_k = options_.config.num_experts_used,
                                         .scores = ScoresOf(weights)},
                                        stream));
  BATON_RETURN_IF_ERROR(Kernels().sort_pairs({.experts = experts.pairs.as<uint32_t>(),
                                              .slots = experts.slots.as<uint32_t>(),
                                              .slot_rows = experts.slot_rows.as<uint32_t>(),
                                              .begins = experts.begins.as<uint32_t>(),
                                              .tiles = experts.tiles.as<cuda::ExpertTile>(),
                                              .num_tiles = experts.num_tiles.as<uint32_t>(),
                                              .arrivals = experts.arrivals.as<uint32_t>(),
                                              .num_pairs = num_pairs,
                                              .num_experts = options_.config.num_experts,
                                              .top_k = options_.config.num_experts_used,
                                              .tile_rows = TileRows(options_.config, num_pairs)},
                                             stream));
  BATON_RETURN_IF_ERROR(MultiplyExperts(weights.gate_up,
                                        {.x = ws.normed,
                                         .y = ws.gate_up,
                                         .rows = num_pairs,
                                         .n = 2 * options_.config.ffn_size,
                                         .k = options_.config.hidden_size},
                                        experts.slot_rows.as<uint32_t>()));
  BATON_RETURN_IF_ERROR(Gate(num_pairs, options_.config.ffn_size));
  BATON_RETURN_IF_ERROR(MultiplyExperts(weights.down,
                                        {.x = ws.gated,
                                         .y = experts.outputs,
                                         .rows = num_pairs,
                                         .n = options_.config.hidden_size,
                                         .k = options_.config.ffn_size},
                                        nullptr));
  return Kernels().combine(
      {.y = experts.outputs.as<Bf16>(),
       .slots = experts.slots.as<uint32_t>(),
       .weights = experts.weights.as<float>(),
       .out = is_alone() ? ws.added.as<Bf16>() : nullptr,
       .num_rows = ws.batch->num_rows(),
       .top_k = options_.config.num_experts_used,
       .dim = options_.config.hidden_size,
       .out_float = is_alone() ? nullptr : Partial(PartialSum::kFeedForward).as<float>()},
      stream);
}

cuda::RouteScores DeviceRank::ScoresOf(const DeviceLayer& weights) const {
  if (!options_.config.traits->scored_experts) return {};
  const ExpertRule& rule = options_.config.expert_rule;
  return {.bias = weights.choice_bias.as<float>(),
          .sum_to_one = rule.sum_to_one,
          .least_sum = rule.least_sum,
          .scale = rule.scale};
}

Status DeviceRank::MultiplyExperts(const DeviceMatrix& weight, const DeviceProduct& product,
                                   const uint32_t* slot_rows) {
  const DeviceWorkspace::Experts& experts = workspace_->experts;
  const uint32_t tile_rows = TileRows(options_.config, product.rows);
  const cuda::GroupedGemmParams params{.x = product.x.as<Bf16>(),
                                       .slot_rows = slot_rows,
                                       .w = weight.data.as<Bf16>(),
                                       .y = product.y.as<Bf16>(),
                                       .tiles = experts.tiles.as<cuda::ExpertTile>(),
                                       .num_tiles = experts.num_tiles.as<uint32_t>(),
                                       .max_tiles = static_cast<uint32_t>(cuda::MaxExpertTiles(
                                           product.rows, options_.config.num_experts, tile_rows)),
                                       .tile_rows = tile_rows,
                                       .n = product.n,
                                       .k = product.k};
  void* const stream = options_.device->stream();
  if (weight.is_packed()) return Kernels().grouped_packed({params, weight.packed()}, stream);
  return Kernels().grouped_gemm(params, stream);
}

Status DeviceRank::GateUp(uint32_t layer) {
  DeviceWorkspace& ws = *workspace_;
  const DeviceLayer& weights = weights_->layers[layer];
  const DeviceMatrix& weight = weights.gate_up;
  const bool joins = Joins(weight);
  const bool is_normed = JoinsNorms();
  const DeviceProduct product{.x = is_normed ? ws.residual : ws.normed,
                              .y = joins ? ws.gated : ws.gate_up,
                              .rows = ws.batch->num_rows(),
                              .n = 2 * options_.config.FfnSize(layer),
                              .k = options_.config.hidden_size};
  if (joins) {
    return Kernels().gemm_gated({ParamsOf(weight, product), GateKindOf(options_.config),
                                 is_normed ? NormOf(weights.ffn_norm) : cuda::NormedRows{}},
                                options_.device->stream());
  }
  BATON_RETURN_IF_ERROR(MatMul(weight, product));
  return Gate(ws.batch->num_rows(), options_.config.FfnSize(layer));
}

Status DeviceRank::Gate(uint32_t rows, uint32_t size) {
  DeviceWorkspace& ws = *workspace_;
  const cuda::GateMulParams params{
      .gate_up = ws.gate_up.as<Bf16>(), .out = ws.gated.as<Bf16>(), .num_rows = rows, .dim = size};
  const bool is_silu = GateKindOf(options_.config) == cuda::GateKind::kSilu;
  return is_silu ? Kernels().silu_mul(params, options_.device->stream())
                 : Kernels().gelu_mul(params, options_.device->stream());
}

Status DeviceRank::ComputeLogits() {
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
                                         .dim = options_.config.hidden_size},
                                        device.stream()));
  if (options_.logits.count == 0) return OkStatus();
  return MatMul(is_alone() ? weights_->OutputMatrix() : weights_->output,
                {.x = ws.added,
                 .y = is_alone() ? ws.logits : ws.logit_columns,
                 .rows = ws.batch->num_logit_rows(),
                 .n = static_cast<uint32_t>(options_.logits.count),
                 .k = options_.config.hidden_size,
                 .wants_float = true});
}

Status DeviceRank::ChooseTokens() {
  DeviceWorkspace& ws = *workspace_;
  return Kernels().sample({.logits = ws.logits.as<float>(),
                           .rows = ws.batch->sampling(),
                           .tokens = ws.tokens.as<uint32_t>(),
                           .num_rows = ws.batch->num_logit_rows(),
                           .vocab_size = options_.config.vocab_size},
                          options_.device->stream());
}

Status DeviceRank::TakeAnswers(const ModelBatch& batch, std::span<float> logits) {
  DeviceWorkspace& ws = *workspace_;
  HostStaging& answers = *ws.answers;
  if (batch.wants_tokens()) {
    static_assert(sizeof(TokenId) == sizeof(uint32_t) &&
                  static_cast<TokenId>(cuda::kNoToken) == kNoTokenId);
    BATON_RETURN_IF_ERROR(
        answers.CopyOut(batch.tokens.data(), ws.tokens.data(), batch.tokens.size_bytes()));
  }
  const size_t row_bytes = options_.config.vocab_size * sizeof(float);
  for (size_t i = 0; i < batch.logit_rows.size(); ++i) {
    if (!batch.sampling.empty() && batch.sampling[i].on_device != 0) continue;
    BATON_RETURN_IF_ERROR(answers.CopyOut(logits.data() + i * options_.config.vocab_size,
                                          ws.logits.data() + i * row_bytes, row_bytes));
  }
  return answers.Finish();
}

Status DeviceRank::TakeHidden(std::span<float> hidden) {
  DeviceWorkspace& ws = *workspace_;
  // The second half of the room: each element is widened to the front after all have come.
  uint16_t* const halves = reinterpret_cast<uint16_t*>(hidden.data()) + hidden.size();
  BATON_RETURN_IF_ERROR(
      ws.answers->CopyOut(halves, ws.added.data(), hidden.size() * sizeof(uint16_t)));
  BATON_RETURN_IF_ERROR(ws.answers->Finish());
  for (size_t i = 0; i < hidden.size(); ++i) {
    uint16_t half = 0;
    std::memcpy(&half, halves + i, sizeof(half));
    const uint32_t bits = uint32_t{half} << 16;
    std::memcpy(hidden.data() + i, &bits, sizeof(bits));
  }
  return OkStatus();
}

Status DeviceRank::TakeCopies(std::span<StateCopy> copies) {
  const uint32_t* const broken = workspace_->batch->states().broken;
  for (StateCopy& copy : copies) {
    uint32_t is_broken = 1;
    const auto* from = reinterpret_cast<const std::byte*>(broken + copy.span);
    BATON_RETURN_IF_ERROR(options_.device->CopyOut(&is_broken, from, sizeof(is_broken)));
    copy.has_numbers = is_broken == 0;
  }
  return OkStatus();
}

Status DeviceRank::SendTokens(size_t which, uint32_t num_rows) {
  static_assert(static_cast<uint32_t>(FedToken(5)) == (cuda::kFedId | 5));
  DeviceWorkspace::SentTokens& sent = workspace_->sent[which];
  BATON_RETURN_IF_ERROR(options_.device->CopyOut(sent.tokens.data(), workspace_->tokens.data(),
                                                 num_rows * sizeof(uint32_t)));
  return sent.arrived.Record(options_.device->stream());
}

Status DeviceRank::TakeTokens(size_t which, std::span<TokenId> to) {
  const DeviceWorkspace::SentTokens& sent = workspace_->sent[which];
  BATON_RETURN_IF_ERROR(sent.arrived.Wait());
  std::memcpy(to.data(), sent.tokens.data(), to.size_bytes());
  return OkStatus();
}

}  // namespace baton::model
