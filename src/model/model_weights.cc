#include "src/model/model_weights.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "kernels/embed.h"
#include "src/base/atomic_min.h"
#include "src/base/hex.h"
#include "src/model/model_rope.h"
#include "src/model/tensor_part.h"
#include "src/model/weight_checks.h"
#include "src/model/weight_packing.h"
#include "src/model/weight_sharing.h"

namespace baton::model {

using device::TaskRange;
using device::ThreadPool;
using kernels::PackedMatrix;
using kernels::RawRows;
using kernels::WeightType;

namespace {

// CheckWeightValues packs so many raw bytes at a time: its memory does not follow the file's size.
constexpr uint64_t kCheckedBytes = uint64_t{16} << 20;

size_t VectorBytes(const std::vector<float>& values) { return values.size() * sizeof(float); }

absl::StatusOr<FeedForwardWeights> PackFeedForward(const TensorPart& gate, const TensorPart& up,
                                                   const TensorPart& down, WeightPacking& packing) {
  const TensorPart gate_up[] = {gate, up};
  FeedForwardWeights out;
  BATON_ASSIGN_OR_RETURN(out.gate_up, packing.Group(gate_up));
  BATON_ASSIGN_OR_RETURN(out.down, packing.One(down));
  return out;
}

// The small vectors that only some architectures have.
void CopyVectors(const LayerTensors& tensors, LayerWeights& out) {
  if (tensors.attn_norm != nullptr) out.attn_norm = FloatsOf(*tensors.attn_norm);
  if (tensors.ffn_norm != nullptr) out.ffn_norm = FloatsOf(*tensors.ffn_norm);
  out.qkv_bias = QkvBiasOf(tensors);
  if (tensors.q_norm != nullptr) out.q_norm = FloatsOf(*tensors.q_norm);
  if (tensors.k_norm != nullptr) out.k_norm = FloatsOf(*tensors.k_norm);
  if (tensors.post_attn_norm != nullptr) out.post_attn_norm = FloatsOf(*tensors.post_attn_norm);
  if (tensors.post_ffn_norm != nullptr) out.post_ffn_norm = FloatsOf(*tensors.post_ffn_norm);
  if (tensors.sinks != nullptr) out.sinks = FloatsOf(*tensors.sinks);
  if (tensors.output_bias != nullptr) out.output_bias = FloatsOf(*tensors.output_bias);
  if (tensors.router_bias != nullptr) out.router_bias = FloatsOf(*tensors.router_bias);
  if (tensors.choice_bias != nullptr) out.choice_bias = FloatsOf(*tensors.choice_bias);
  if (tensors.kv_a_norm != nullptr) out.kv_a_norm = FloatsOf(*tensors.kv_a_norm);
  if (tensors.q_a_norm != nullptr) out.q_a_norm = FloatsOf(*tensors.q_a_norm);
  if (tensors.post_per_layer != nullptr) out.post_per_layer = FloatsOf(*tensors.post_per_layer);
  if (tensors.layer_scale != nullptr) out.layer_scale = FloatsOf(*tensors.layer_scale)[0];
}

absl::Status LoadPerLayer(const LayerTensors& tensors, WeightPacking& packing, LayerWeights& out) {
  if (tensors.per_layer_gate == nullptr) return OkStatus();
  BATON_ASSIGN_OR_RETURN(out.per_layer_gate, packing.One(WholePart(tensors.per_layer_gate)));
  BATON_ASSIGN_OR_RETURN(out.per_layer_out, packing.One(WholePart(tensors.per_layer_out)));
  return OkStatus();
}

// The biases of the one feed-forward layer, or of the experts: a matrix of F32, which is checked as
// weights are.
absl::Status CopyFeedForwardBiases(const LayerTensors& tensors, WeightPacking& packing,
                                   LayerWeights& out) {
  const auto copy = [&](const GgufTensor* bias,
                        std::vector<float> FeedForwardWeights::*to) -> absl::Status {
    if (bias == nullptr) return OkStatus();
    BATON_RETURN_IF_ERROR(CheckPart(WholePart(bias), packing.pool()));
    const std::vector<float> rows = FloatsOf(*bias);
    const size_t n = rows.size() / out.ffn.size();
    for (size_t e = 0; e < out.ffn.size(); ++e) {
      const auto row = std::span(rows).subspan(e * n, n);
      (out.ffn[e].*to).insert((out.ffn[e].*to).end(), row.begin(), row.end());
    }
    return OkStatus();
  };
  BATON_RETURN_IF_ERROR(copy(tensors.gate_bias, &FeedForwardWeights::gate_up_bias));
  BATON_RETURN_IF_ERROR(copy(tensors.up_bias, &FeedForwardWeights::gate_up_bias));
  return copy(tensors.down_bias, &FeedForwardWeights::down_bias);
}

absl::StatusOr<MatrixGroup> PackQkv(const LayerTensors& tensors, const HeadOrder& order,
                                    WeightPacking& packing) {
  if (tensors.qkv != nullptr) {
    TensorPart part = WholePart(tensors.qkv);
    part.order = order;
    return packing.One(part);
  }
  if (tensors.k == nullptr) return packing.One(WholePart(tensors.q));  // K and V of another layer
  const TensorPart qkv[] = {WholePart(tensors.q), WholePart(tensors.k), WholePart(tensors.v)};
  return packing.Group(qkv);
}

// Rows of the heads of `tensor`, `per_head` of each: `head_dim` from `first` on, as PickHeads.
TensorPart PartOfHeads(const GgufTensor* tensor, const HeadOrder& order, uint32_t per_head,
                       uint32_t first, bool turns) {
  TensorPart part = WholePart(tensor);
  part.picked = PickHeads(order, {part.num_rows / per_head, per_head, first}, turns);
  return part;
}

std::vector<float> ReorderNorm(const HeadOrder& order, const std::vector<float>& norm) {
  std::vector<float> out(norm.size());
  for (size_t i = 0; i < norm.size(); ++i) out[TargetOf(order, i)] = norm[i];
  return out;
}

// q|k|v|gate: a head of attn_q has its q, then its gate.
absl::Status LoadGatedAttention(const LayerTensors& tensors, const HeadOrder& order,
                                WeightPacking& packing, LayerWeights& out) {
  const uint32_t dim = order.head_dim;
  const TensorPart parts[] = {PartOfHeads(tensors.q, order, 2 * dim, 0, /*turns=*/true),
                              PartOfHeads(tensors.k, order, dim, 0, /*turns=*/true),
                              WholePart(tensors.v),
                              PartOfHeads(tensors.q, order, 2 * dim, dim, /*turns=*/false)};
  BATON_ASSIGN_OR_RETURN(out.qkv, packing.Group(parts));
  out.q_norm = ReorderNorm(order, out.q_norm);
  out.k_norm = ReorderNorm(order, out.k_norm);
  BATON_ASSIGN_OR_RETURN(out.attn_output, packing.One(WholePart(tensors.attn_output)));
  return OkStatus();
}

absl::Status LoadAttention(const LayerTensors& tensors, const HeadOrder& order,
                           WeightPacking& packing, LayerWeights& out) {
  if (order.has_gates) return LoadGatedAttention(tensors, order, packing, out);
  BATON_ASSIGN_OR_RETURN(out.qkv, PackQkv(tensors, order, packing));
  BATON_ASSIGN_OR_RETURN(out.attn_output, packing.One(WholePart(tensors.attn_output)));
  return OkStatus();
}

// Rows of a matrix [n, k] of elements of `size` bytes, transposed.
std::vector<std::byte> Transposed(std::span<const std::byte> rows, size_t k, size_t size) {
  std::vector<std::byte> out(rows.size());
  const size_t n = rows.size() / k / size;
  for (size_t row = 0; row < n; ++row) {
    for (size_t i = 0; i < k; ++i) {
      std::copy_n(rows.data() + (row * k + i) * size, size, out.data() + (i * n + row) * size);
    }
  }
  return out;
}

// kv_b taken apart (hf_folder.cc does so with those of folders). Its rows for a head's keys meet
// the query, so they are transposed: elements of a quantised type, whose blocks lie along a row, in
// fp32, which holds them as they are; of NVFP4 in bf16, as it is packed.
absl::StatusOr<MatrixGroup> PackKeys(const TensorPart& keys, WeightPacking& packing) {
  const GgufTensor& kv_b = *keys.tensor;
  const WeightType own = WeightTypeOf(kv_b);
  const WeightType type = TraitsOf(own).quantized() ? WeightType::kF32 : own;
  const auto k = static_cast<uint32_t>(kv_b.dims[0]);
  BATON_ASSIGN_OR_RETURN(PackedMatrix shape, PackedMatrix::Shaped(type, k, keys.num_rows));
  const auto pack = [keys, k, &pool = packing.pool()](const PackedMatrix& matrix,
                                                      std::span<std::byte> out) -> absl::Status {
    BATON_RETURN_IF_ERROR(CheckPart(keys, pool));
    BATON_ASSIGN_OR_RETURN(const std::vector<std::byte> rows, ElementsOf(keys, pool));
    const std::vector<std::byte> raw = Transposed(rows, k, rows.size() / k / keys.num_rows);
    const RawRows columns = {matrix.type(), raw, k};
    return matrix.PackInto({&columns, 1}, pool, out);
  };
  return packing.Made(kv_b, std::move(shape), pack);
}

absl::Status LoadJoinedKvB(const GgufTensor& kv_b, const LatentShape& shape, WeightPacking& packing,
                           LayerWeights& out) {
  for (uint32_t head = 0; head < shape.num_heads; ++head) {
    const uint64_t first = uint64_t{head} * (shape.nope_dim + shape.value_dim);
    BATON_ASSIGN_OR_RETURN(MatrixGroup keys, PackKeys({&kv_b, first, shape.nope_dim}, packing));
    out.k_b.push_back(std::move(keys));
    BATON_ASSIGN_OR_RETURN(MatrixGroup values,
                           packing.One({&kv_b, first + shape.nope_dim, shape.value_dim}));
    out.v_b.push_back(std::move(values));
  }
  return OkStatus();
}

absl::Status LoadLatentAttention(const LayerTensors& tensors, const LatentShape& shape,
                                 WeightPacking& packing, LayerWeights& out) {
  BATON_ASSIGN_OR_RETURN(out.kv_a, packing.One(WholePart(tensors.kv_a)));
  const GgufTensor* q = tensors.q_a == nullptr ? tensors.q : tensors.q_a;
  BATON_ASSIGN_OR_RETURN(out.qkv, packing.One(WholePart(q)));
  if (tensors.q_b != nullptr) {
    BATON_ASSIGN_OR_RETURN(out.q_b, packing.One(WholePart(tensors.q_b)));
  }
  BATON_ASSIGN_OR_RETURN(out.attn_output, packing.One(WholePart(tensors.attn_output)));
  if (tensors.kv_b != nullptr) return LoadJoinedKvB(*tensors.kv_b, shape, packing, out);
  for (uint32_t head = 0; head < shape.num_heads; ++head) {
    BATON_ASSIGN_OR_RETURN(MatrixGroup k_b, packing.One(ExpertPart(tensors.k_b, head)));
    BATON_ASSIGN_OR_RETURN(MatrixGroup v_b, packing.One(ExpertPart(tensors.v_b, head)));
    out.k_b.push_back(std::move(k_b));
    out.v_b.push_back(std::move(v_b));
  }
  return OkStatus();
}

// The taps [channels, taps] become [taps, channels]: the kernel's lanes are channels.
absl::Status LoadTaps(const GgufTensor& taps, WeightPacking& packing, LayerWeights& out) {
  BATON_RETURN_IF_ERROR(CheckPart(WholePart(&taps), packing.pool()));
  const std::vector<float> by_channel = FloatsOf(taps);
  const size_t num_taps = taps.dims[0];
  const size_t channels = taps.dims[1];
  out.conv_taps.resize(by_channel.size());
  for (size_t i = 0; i < by_channel.size(); ++i) {
    out.conv_taps[i % num_taps * channels + i / num_taps] = by_channel[i];
  }
  return OkStatus();
}

// The columns of DeltaShape's input side by side.
absl::Status LoadDeltaNet(const LayerTensors& tensors, WeightPacking& packing, LayerWeights& out) {
  BATON_RETURN_IF_ERROR(LoadTaps(*tensors.delta_taps, packing, out));
  out.delta_rates = FloatsOf(*tensors.delta_rates);
  out.dt_bias = FloatsOf(*tensors.dt_bias);
  out.delta_norm = FloatsOf(*tensors.delta_norm);
  const TensorPart parts[] = {WholePart(tensors.delta_qkv), WholePart(tensors.delta_z),
                              WholePart(tensors.delta_beta), WholePart(tensors.delta_decay)};
  BATON_ASSIGN_OR_RETURN(out.qkv, packing.Group(parts));
  BATON_ASSIGN_OR_RETURN(out.attn_output, packing.One(WholePart(tensors.delta_out)));
  return OkStatus();
}

// Channels x | B | C of rows in DeltaShape's order: C | B | x.
void OrderChannels(size_t value_size, size_t channels, std::vector<float>& rows) {
  const auto values = static_cast<std::ptrdiff_t>(value_size);
  const auto all = static_cast<std::ptrdiff_t>(channels);
  const std::ptrdiff_t keys = (all - values) / 2;
  for (auto row = rows.begin(); row != rows.end(); row += all) {
    std::rotate(row, row + values + keys, row + all);         // C | x | B
    std::rotate(row + keys, row + keys + values, row + all);  // C | B | x
  }
}

// A layer of Mamba-2 as a net of DeltaRule::kAdd. The rows of its first product are z | x | B | C |
// dt; the columns of decay have none.
absl::Status LoadMamba(const LayerTensors& tensors, WeightPacking& packing, LayerWeights& out) {
  const GgufTensor* in = tensors.mamba_in;
  const auto heads = static_cast<uint32_t>(tensors.dt_bias->dims[0]);
  const auto channels = static_cast<uint32_t>(tensors.delta_taps->dims[1]);
  const auto values = static_cast<uint32_t>(tensors.delta_out->dims[0]);
  const uint32_t keys = (channels - values) / 2;
  BATON_RETURN_IF_ERROR(LoadTaps(*tensors.delta_taps, packing, out));
  OrderChannels(values, channels, out.conv_taps);
  if (tensors.conv_bias != nullptr) {
    out.conv_bias = FloatsOf(*tensors.conv_bias);
    OrderChannels(values, channels, out.conv_bias);
  }
  for (const GgufTensor* vector : {tensors.delta_rates, tensors.skips, tensors.delta_norm}) {
    BATON_RETURN_IF_ERROR(
        CheckPart(WholePart(vector), packing.pool()));  // these have two dimensions
  }
  out.delta_rates = FloatsOf(*tensors.delta_rates);
  out.skips = FloatsOf(*tensors.skips);
  out.delta_norm = FloatsOf(*tensors.delta_norm);
  out.dt_bias = FloatsOf(*tensors.dt_bias);
  const TensorPart parts[] = {{in, values + channels - keys, keys},
                              {in, values + channels - 2 * keys, keys},
                              {in, values, values},
                              {in, 0, values},
                              {in, values + channels, heads}};
  // An error has the row's number in the file.
  BATON_ASSIGN_OR_RETURN(out.qkv, packing.Group(parts, in));
  BATON_ASSIGN_OR_RETURN(out.attn_output, packing.One(WholePart(tensors.delta_out)));
  return OkStatus();
}

absl::Status LoadConvolution(const LayerTensors& tensors, WeightPacking& packing,
                             LayerWeights& out) {
  BATON_RETURN_IF_ERROR(LoadTaps(*tensors.conv_taps, packing, out));
  BATON_ASSIGN_OR_RETURN(out.qkv, packing.One(WholePart(tensors.conv_in)));
  BATON_ASSIGN_OR_RETURN(out.attn_output, packing.One(WholePart(tensors.conv_out)));
  return OkStatus();
}

absl::Status LoadMixer(const LayerTensors& tensors, const TensorPlan& plan, WeightPacking& packing,
                       LayerWeights& out) {
  if (tensors.mamba_in != nullptr) return LoadMamba(tensors, packing, out);
  if (tensors.delta_out != nullptr) return LoadDeltaNet(tensors, packing, out);
  if (tensors.conv_in != nullptr) return LoadConvolution(tensors, packing, out);
  if (tensors.kv_a != nullptr) return LoadLatentAttention(tensors, plan.latent, packing, out);
  if (tensors.attn_output == nullptr) return OkStatus();  // a feed-forward layer alone
  return LoadAttention(tensors, plan.head_order, packing, out);
}

// The one feed-forward layer, or number `e` of the experts.
absl::StatusOr<FeedForwardWeights> LoadFeedForward(const LayerTensors& tensors, size_t e,
                                                   WeightPacking& packing) {
  const TensorPart down = ExpertPart(tensors.down, e);
  if (tensors.gate_up == nullptr) {
    return PackFeedForward(ExpertPart(tensors.gate, e), ExpertPart(tensors.up, e), down, packing);
  }
  FeedForwardWeights out;  // gate above up, as PackFeedForward joins them
  BATON_ASSIGN_OR_RETURN(out.gate_up, packing.One(ExpertPart(tensors.gate_up, e)));
  BATON_ASSIGN_OR_RETURN(out.down, packing.One(down));
  return out;
}

absl::StatusOr<LayerWeights> LoadLayer(const LayerTensors& tensors, const TensorPlan& plan,
                                       WeightPacking& packing) {
  LayerWeights out;
  CopyVectors(tensors, out);
  BATON_RETURN_IF_ERROR(LoadPerLayer(tensors, packing, out));
  BATON_RETURN_IF_ERROR(LoadMixer(tensors, plan, packing, out));
  if (tensors.down == nullptr) return out;  // attention or Mamba-2 alone
  out.ffn.resize(tensors.down->dims[2]);    // 1 where there are no experts
  for (size_t e = 0; e < out.ffn.size(); ++e) {
    BATON_ASSIGN_OR_RETURN(out.ffn[e], LoadFeedForward(tensors, e, packing));
  }
  BATON_RETURN_IF_ERROR(CopyFeedForwardBiases(tensors, packing, out));
  if (tensors.router == nullptr) return out;
  BATON_ASSIGN_OR_RETURN(out.router, packing.One(WholePart(tensors.router)));
  if (tensors.shared_gate != nullptr) {
    BATON_ASSIGN_OR_RETURN(
        out.shared, PackFeedForward(WholePart(tensors.shared_gate), WholePart(tensors.shared_up),
                                    WholePart(tensors.shared_down), packing));
  }
  if (tensors.shared_router != nullptr) {
    BATON_ASSIGN_OR_RETURN(out.shared_router, packing.One(WholePart(tensors.shared_router)));
  }
  return out;
}

}  // namespace

absl::StatusOr<MappedRows> MappedRows::Create(const GgufFile& file, const GgufTensor& tensor,
                                              ThreadPool& pool) {
  const TensorPart whole = WholePart(&tensor);
  BATON_RETURN_IF_ERROR(CheckPart(whole, pool));
  std::vector<std::byte> made;
  const RawRows rows = RawRowsOf(whole, pool, made);
  MappedRows out;
  out.type_ = rows.type;
  out.k_ = static_cast<uint32_t>(tensor.dims[0]);
  out.row_bytes_ = rows.bytes.size() / rows.n;
  out.bytes_ = rows.bytes;
  const GgufMemory* memory = file.MemoryOf(rows.bytes);
  if (memory != nullptr) {
    out.memory_ = *memory;
  } else {
    if (made.empty()) made.assign(rows.bytes.begin(), rows.bytes.end());
    const auto owner = std::make_shared<const std::vector<std::byte>>(std::move(made));
    out.bytes_ = *owner;
    out.memory_ = {*owner, owner};
  }
  std::atomic<uint32_t> bad_row = rows.n;
  pool.RunRanges(rows.n, 64, 4 * pool.num_threads(), [&](TaskRange range, uint32_t) {
    std::vector<float> values(out.k_);
    for (uint32_t row = range.begin; row < range.end; ++row) {
      const std::byte* at = out.bytes_.data() + row * out.row_bytes_;
      if (kernels::DequantizeRow(out.type_, at, out.k_, values.data())) continue;
      LowerTo(row, &bad_row);
      return;
    }
  });
  if (bad_row == rows.n) return out;
  return InvalidArgument("tensor {}: row {} of {} has a scale that is not finite",
                         tensor.NameText(), bad_row.load(), rows.n);
}

void MappedRows::Read(uint32_t row, float* out) const {
  (void)kernels::DequantizeRow(type_, bytes_.data() + row * row_bytes_, k_, out);
}

size_t MatrixGroup::bytes() const {
  size_t total = 0;
  for (const PackedMatrix& part : parts) total += part.bytes();
  return total;
}

size_t LayerWeights::bytes() const {
  size_t total = qkv.bytes() + attn_output.bytes() + router.bytes() + ffn_bytes() + kv_a.bytes() +
                 q_b.bytes() + shared.gate_up.bytes() + shared.down.bytes() +
                 shared_router.bytes() + per_layer_gate.bytes() + per_layer_out.bytes();
  for (const MatrixGroup& head : k_b) total += head.bytes();
  for (const MatrixGroup& head : v_b) total += head.bytes();
  for (const std::vector<float>* values :
       {&attn_norm,     &ffn_norm,  &qkv_bias,       &q_norm,      &k_norm,      &post_attn_norm,
        &post_ffn_norm, &sinks,     &output_bias,    &router_bias, &conv_taps,   &choice_bias,
        &kv_a_norm,     &q_a_norm,  &post_per_layer, &v_norm,      &delta_rates, &dt_bias,
        &delta_norm,    &conv_bias, &skips}) {
    total += VectorBytes(*values);
  }
  return total;
}

size_t LayerWeights::ffn_bytes() const {
  size_t total = 0;
  for (const FeedForwardWeights& weights : ffn) {
    total += weights.gate_up.bytes() + weights.down.bytes() + VectorBytes(weights.gate_up_bias) +
             VectorBytes(weights.down_bias);
  }
  return total;
}

size_t ModelWeights::bytes() const {
  size_t total = token_embd.bytes() + output.bytes() + VectorBytes(output_norm) +
                 per_layer_embd.bytes() + per_layer_proj.bytes() + VectorBytes(per_layer_norm);
  for (const LayerWeights& layer : layers) total += layer.bytes();
  return total;
}

absl::StatusOr<ModelWeights> LoadWeights(const WeightSource& source, ThreadPool& pool,
                                         const SharedWeights& sharing) {
  const TensorPlan& plan = source.plan;
  ModelWeights out;  // not moved before the jobs are done: they know where its matrices are
  WeightPacking packing(pool);
  if (plan.per_layer_embd != nullptr) {
    BATON_ASSIGN_OR_RETURN(out.per_layer_embd,
                           MappedRows::Create(source.file, *plan.per_layer_embd, pool));
    BATON_ASSIGN_OR_RETURN(out.per_layer_proj, packing.One(WholePart(plan.per_layer_proj)));
    out.per_layer_norm = FloatsOf(*plan.per_layer_norm);
  }
  BATON_RETURN_IF_ERROR(packing.Single(plan.token_embd, &out.token_embd));
  if (plan.output != plan.token_embd) {
    BATON_ASSIGN_OR_RETURN(out.output, packing.One(WholePart(plan.output)));
  }
  out.output_norm = FloatsOf(*plan.output_norm);
  if (plan.rope_factors != nullptr) out.rope_factors = FloatsOf(*plan.rope_factors);
  if (plan.long_factors != nullptr) out.long_factors = FloatsOf(*plan.long_factors);
  out.layers.reserve(plan.layers.size());
  for (const LayerTensors& tensors : plan.layers) {
    BATON_ASSIGN_OR_RETURN(LayerWeights layer, LoadLayer(tensors, plan, packing));
    if (plan.norms_values && tensors.k_norm != nullptr) {
      layer.v_norm.assign(layer.k_norm.size(), 1.0f);
    }
    out.layers.push_back(std::move(layer));
  }
  BATON_ASSIGN_OR_RETURN(PackedWeights packed, PackWeights(source, packing, sharing));
  out.weights_id = std::move(packed.weights_id);
  out.sharing = std::move(packed.report);
  out.memory = std::move(packed.memory);
  return out;
}

absl::Status CheckWeightValues(const GgufFile& file, ThreadPool& pool) {
  BATON_RETURN_IF_ERROR(CheckVectors(file));
  BATON_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(file));
  BATON_ASSIGN_OR_RETURN(const TensorPlan plan, PlanTensors(file, config));
  for (const GgufTensor* tensor : {plan.rope_factors, plan.long_factors}) {
    const std::vector<float> factors = tensor == nullptr ? std::vector<float>() : FloatsOf(*tensor);
    BATON_RETURN_IF_ERROR(CheckRope(config, factors, config.context_length));
  }
  for (const GgufTensor& tensor : file.tensors()) {
    if (tensor.num_dims == 1) continue;
    const uint64_t num_rows = NumRowsOf(tensor);
    if (tensor.fp8() != nullptr) {  // whose scales were checked when it was opened
      BATON_RETURN_IF_ERROR(CheckElementsOf(tensor, 0, num_rows, pool));
      continue;
    }
    const uint64_t step = std::max<uint64_t>(1, kCheckedBytes / (tensor.data.size() / num_rows));
    for (uint64_t row = 0; row < num_rows; row += step) {
      const auto count = static_cast<uint32_t>(std::min(step, num_rows - row));
      BATON_RETURN_IF_ERROR(TryToPack({&tensor, row, count}, pool));
    }
  }
  return OkStatus();
}

std::vector<const GgufTensor*> TensorsByName(const GgufFile& file) {
  std::vector<const GgufTensor*> tensors;
  for (const GgufTensor& tensor : file.tensors()) tensors.push_back(&tensor);
  std::sort(tensors.begin(), tensors.end(),
            [](const GgufTensor* a, const GgufTensor* b) { return a->name < b->name; });
  return tensors;
}

WeightsHash::WeightsHash(const ModelConfig& config) { hash_.Update(CanonicalText(config)); }

void WeightsHash::Begin(const GgufTensor& tensor) {
  hash_.Update(fmt::format("\n{} {} {}\n", tensor.name, tensor.type->name, tensor.DimsText()));
}

void WeightsHash::End(const GgufTensor& tensor) {
  if (tensor.type->scale != 1.0f) {
    hash_.Update(&tensor.type->scale, sizeof(tensor.type->scale));
    hash_.Update(tensor.type->divides ? "/" : "*");
  }
  if (tensor.fp8() == nullptr) return;
  hash_.Update(tensor.fp8()->values.data(), tensor.fp8()->values.size_bytes());
}

std::string WeightsHash::Text() const {
  const Hash128 digest = hash_.Digest128();
  return HexFromU64(digest.hi) + HexFromU64(digest.lo);
}

std::string HashWeights(const GgufFile& file, const ModelConfig& config) {
  WeightsHash hash(config);
  for (const GgufTensor* tensor : TensorsByName(file)) {
    hash.Begin(*tensor);
    hash.Update(tensor->data);
    hash.End(*tensor);
  }
  return hash.Text();
}

}  // namespace baton::model
