#include "src/model/model_weights.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/embed.h"
#include "src/base/atomic_min.h"
#include "src/base/hex.h"
#include "src/model/encode_matrix.h"
#include "src/model/model_rope.h"
#include "src/model/tensor_plan.h"

namespace baton::model {

using device::TaskRange;
using device::ThreadPool;
using kernels::DequantizeRow;
using kernels::IsNanCode;
using kernels::PackedMatrix;
using kernels::RawRows;
using kernels::WeightType;

namespace {

// CheckWeightValues packs so many raw bytes at a time: its memory does not follow the file's size.
constexpr uint64_t kCheckedBytes = uint64_t{16} << 20;

size_t VectorBytes(const std::vector<float>& values) { return values.size() * sizeof(float); }

uint32_t RowsOf(const GgufTensor& tensor) { return static_cast<uint32_t>(tensor.dims[1]); }

// Blocks of a byte e and 16 bytes of two digits each: elements 2^(e - 128) times 0 1 2 3 4 6 8 12
// or its negative.
bool HasInfiniteMxfp4(std::span<const std::byte> row) {
  constexpr size_t kBlockBytes = 17;
  for (size_t at = 0; at < row.size(); at += kBlockBytes) {
    const auto e = static_cast<uint32_t>(row[at]);
    if (e < 253 || e == 255) continue;  // 255, NaN, is refused when it is packed
    // The first digit that is too large: 8 at 2^125, 4 at 2^126.
    const uint32_t limit = e == 253 ? 6 : 4;
    for (const std::byte byte : row.subspan(at + 1, kBlockBytes - 1)) {
      const auto digits = static_cast<uint32_t>(byte);
      if ((digits & 7) >= limit || (digits >> 4 & 7) >= limit) return true;
    }
  }
  return false;
}

// Whether an element without its sign is `limit` or more, as bits.
template <typename Word>
bool Reaches(std::span<const std::byte> row, Word limit) {
  constexpr Word kMagnitude = std::numeric_limits<Word>::max() / 2;
  uint32_t num_bad = 0;
  for (size_t at = 0; at < row.size(); at += sizeof(Word)) {
    Word bits = 0;
    std::memcpy(&bits, row.data() + at, sizeof bits);
    num_bad += (bits & kMagnitude) >= limit ? 1 : 0;
  }
  return num_bad > 0;
}

// The fault that a row of this type can hold although packing finds none, and that no product may
// see; "" when the row has none.
std::string_view FaultOf(const GgufTensorType& row_type, std::span<const std::byte> row) {
  if (row_type.fp8 != nullptr) {
    return std::any_of(row.begin(), row.end(), IsNanCode) ? "a NaN (code 0x7F or 0xFF)" : "";
  }
  const std::string_view not_finite = "an element that is not finite in bf16";
  switch (static_cast<GgmlType>(row_type.id)) {
    case GgmlType::kF32:  // from here on it would round to an infinity of bf16, as devices have it
      return Reaches<uint32_t>(row, 0x7F7F8000) ? not_finite : "";
    case GgmlType::kF16:
      return Reaches<uint16_t>(row, 0x7C00) ? not_finite : "";
    case GgmlType::kBf16:
      return Reaches<uint16_t>(row, 0x7F80) ? not_finite : "";
    case GgmlType::kMxfp4:
      return HasInfiniteMxfp4(row) ? "an infinite element" : "";
    case GgmlType::kNvfp4:
      return HasInfiniteNvfp4(row, row_type.scale, row_type.divides) ? not_finite : "";
    default:
      return "";
  }
}

bool CanHaveFault(GgmlType type, bool is_fp8) {
  return is_fp8 || type == GgmlType::kF32 || type == GgmlType::kF16 || type == GgmlType::kBf16 ||
         type == GgmlType::kMxfp4 || type == GgmlType::kNvfp4;
}

// CheckElementsOf for `bytes` of a tensor, rows from `first` on of its `num_rows`.
absl::Status CheckRows(const GgufTensor& tensor, std::span<const std::byte> bytes, uint64_t first,
                       uint64_t num_rows, ThreadPool& pool) {
  const bool is_fp8 = tensor.fp8() != nullptr;
  const auto type = static_cast<GgmlType>(tensor.type->id);
  if (!CanHaveFault(type, is_fp8)) return OkStatus();
  const uint64_t row_bytes = tensor.data.size() / (tensor.num_elements() / tensor.dims[0]);
  const auto count = static_cast<uint32_t>(bytes.size() / row_bytes);
  const auto fault_of = [&](uint32_t row) {
    return FaultOf(*tensor.type, bytes.subspan(row * row_bytes, row_bytes));
  };
  std::atomic<uint32_t> bad_row = count;
  pool.RunRanges(count, 8, 4 * pool.num_threads(), [&](TaskRange range, uint32_t) {
    for (uint32_t row = range.begin; row < range.end; ++row) {
      if (fault_of(row).empty()) continue;
      LowerTo(row, &bad_row);
      return;
    }
  });
  if (bad_row == count) return OkStatus();
  return InvalidArgument("tensor \"{}\": row {} of {} has {}", tensor.name, first + bad_row.load(),
                         num_rows, fault_of(bad_row));
}

// Rows of a tensor that is no vector: all, or those of one expert, or those of a list.
struct TensorPart {
  const GgufTensor* tensor;
  uint64_t first_row;
  uint32_t num_rows;
  HeadOrder order = {};               // of all rows
  std::vector<uint32_t> picked = {};  // of those above, in the order to pack; empty: as they lie
};

// Where element `i` of a head goes: elements that turn together end at j and j + head_dim / 2;
// those that do not turn fill up both halves. Row sums of q * k have the same terms.
size_t TargetOf(const HeadOrder& order, size_t i) {
  const size_t half = order.head_dim / 2;
  const size_t turning = order.rope_dims / 2;
  if (i < turning) return i;
  if (i < 2 * turning) return half + i - turning;
  const size_t rest = i - 2 * turning;
  const size_t in_lower = half - turning;
  return rest < in_lower ? turning + rest : half + turning + (rest - in_lower);
}

// The rows of each head in the order of TargetOf.
std::vector<std::byte> ReorderHeads(const HeadOrder& order, std::span<const std::byte> rows,
                                    size_t row_bytes) {
  std::vector<std::byte> out(rows.begin(), rows.end());
  for (size_t i = 0; i < size_t{order.num_heads} * order.head_dim; ++i) {
    const size_t first = i / order.head_dim * order.head_dim;
    const size_t target = first + TargetOf(order, i - first);
    std::copy_n(rows.data() + i * row_bytes, row_bytes, out.data() + target * row_bytes);
  }
  return out;
}

TensorPart WholeOf(const GgufTensor* tensor) { return {tensor, 0, RowsOf(*tensor)}; }

TensorPart ExpertOf(const GgufTensor* tensor, size_t expert) {
  return {tensor, expert * RowsOf(*tensor), RowsOf(*tensor)};
}

uint64_t NumRowsOf(const GgufTensor& tensor) { return tensor.num_elements() / tensor.dims[0]; }

std::span<const std::byte> BytesOf(const TensorPart& part) {
  const uint64_t row_bytes = part.tensor->data.size() / NumRowsOf(*part.tensor);
  return part.tensor->data.subspan(part.first_row * row_bytes, part.num_rows * row_bytes);
}

// Right before it is packed, so that its bytes come from the disk once.
absl::Status CheckPart(const TensorPart& part, ThreadPool& pool) {
  return CheckRows(*part.tensor, BytesOf(part), part.first_row, NumRowsOf(*part.tensor), pool);
}

// A part as it is packed: bytes of the file, or what `made` then holds: fp8 and NVFP4 in bf16, rows
// in another order.
RawRows RawRowsOf(const TensorPart& part, ThreadPool& pool, std::vector<std::byte>& made) {
  const GgufTensor& tensor = *part.tensor;
  RawRows rows{WeightTypeOf(tensor), BytesOf(part), part.num_rows};
  if (tensor.fp8() != nullptr) {
    const auto first = static_cast<uint32_t>(part.first_row);
    made = EncodeFp8(Fp8RowsOf(tensor).Part(first, part.num_rows), GgmlType::kBf16, pool);
    rows = {WeightType::kBf16, made, part.num_rows};
  } else if (IsNvfp4(tensor)) {
    Nvfp4Rows of_part = Nvfp4RowsOf(tensor);
    of_part.bytes = BytesOf(part);
    of_part.n = part.num_rows;
    made = EncodeNvfp4(of_part, GgmlType::kBf16, pool);
    rows = {WeightType::kBf16, made, part.num_rows};
  }
  if (!part.picked.empty()) {
    const size_t row_bytes = rows.bytes.size() / part.num_rows;
    std::vector<std::byte> picked(part.picked.size() * row_bytes);
    for (size_t i = 0; i < part.picked.size(); ++i) {
      std::copy_n(rows.bytes.data() + part.picked[i] * row_bytes, row_bytes,
                  picked.data() + i * row_bytes);
    }
    made = std::move(picked);
    rows.bytes = made;
    rows.n = static_cast<uint32_t>(part.picked.size());
    return rows;
  }
  if (part.order.num_heads == 0) return rows;
  made = ReorderHeads(part.order, rows.bytes, rows.bytes.size() / part.num_rows);
  rows.bytes = made;
  return rows;
}

absl::StatusOr<PackedMatrix> PackPart(const TensorPart& part, ThreadPool& pool) {
  BATON_RETURN_IF_ERROR(CheckPart(part, pool));
  std::vector<std::byte> in_bf16;
  const RawRows rows = RawRowsOf(part, pool, in_bf16);
  absl::StatusOr<PackedMatrix> matrix = PackedMatrix::Pack(
      rows.type, rows.bytes, rows.n, static_cast<uint32_t>(part.tensor->dims[0]), pool);
  if (matrix.ok()) return matrix;
  const std::string where = part.first_row == 0 ? "" : fmt::format(" from row {}", part.first_row);
  return WithPrefix(matrix.status(), fmt::format("tensor \"{}\"{}", part.tensor->name, where));
}

absl::StatusOr<MatrixGroup> PackGroup(std::span<const TensorPart> parts, ThreadPool& pool) {
  const uint32_t k = static_cast<uint32_t>(parts[0].tensor->dims[0]);
  MatrixGroup group;
  std::vector<std::vector<std::byte>> in_bf16(parts.size());
  for (size_t begin = 0; begin < parts.size();) {
    std::vector<RawRows> joined;
    size_t end = begin;
    const WeightType type = WeightTypeOf(*parts[begin].tensor);
    for (; end < parts.size() && WeightTypeOf(*parts[end].tensor) == type; ++end) {
      BATON_RETURN_IF_ERROR(CheckPart(parts[end], pool));
      joined.push_back(RawRowsOf(parts[end], pool, in_bf16[end]));
    }
    absl::StatusOr<PackedMatrix> matrix = PackedMatrix::PackRows(joined, k, pool);
    if (!matrix.ok()) {
      return WithPrefix(matrix.status(), fmt::format("tensor \"{}\"", parts[begin].tensor->name));
    }
    group.n += matrix->n();
    group.uses_a16 = group.uses_a16 || matrix->uses_a16();
    group.parts.push_back(*std::move(matrix));
    begin = end;
  }
  return group;
}

absl::StatusOr<MatrixGroup> PackOne(const TensorPart& part, ThreadPool& pool) {
  absl::StatusOr<MatrixGroup> group = PackGroup({&part, 1}, pool);
  if (group.ok() || part.order.num_heads == 0) return group;
  return PackOne(WholeOf(part.tensor), pool);  // whose error has the row's number in the file
}

absl::StatusOr<FeedForwardWeights> PackFeedForward(const TensorPart& gate, const TensorPart& up,
                                                   const TensorPart& down, ThreadPool& pool) {
  const TensorPart gate_up[] = {gate, up};
  FeedForwardWeights out;
  BATON_ASSIGN_OR_RETURN(out.gate_up, PackGroup(gate_up, pool));
  BATON_ASSIGN_OR_RETURN(out.down, PackOne(down, pool));
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

absl::Status LoadPerLayer(const LayerTensors& tensors, ThreadPool& pool, LayerWeights& out) {
  if (tensors.per_layer_gate == nullptr) return OkStatus();
  BATON_ASSIGN_OR_RETURN(out.per_layer_gate, PackOne(WholeOf(tensors.per_layer_gate), pool));
  BATON_ASSIGN_OR_RETURN(out.per_layer_out, PackOne(WholeOf(tensors.per_layer_out), pool));
  return OkStatus();
}

// The biases of the experts; a matrix of F32 is checked as weights are.
absl::Status CopyExpertBiases(const LayerTensors& tensors, ThreadPool& pool, LayerWeights& out) {
  if (tensors.gate_bias == nullptr) return OkStatus();
  for (const GgufTensor* bias : {tensors.gate_bias, tensors.up_bias, tensors.down_bias}) {
    BATON_RETURN_IF_ERROR(CheckPart(WholeOf(bias), pool));
  }
  const std::vector<float> gate = FloatsOf(*tensors.gate_bias);
  const std::vector<float> up = FloatsOf(*tensors.up_bias);
  const std::vector<float> down = FloatsOf(*tensors.down_bias);
  const size_t ffn = gate.size() / out.ffn.size();
  const size_t hidden = down.size() / out.ffn.size();
  for (size_t e = 0; e < out.ffn.size(); ++e) {
    const auto row = [e](const std::vector<float>& rows, size_t n) {
      return std::span(rows).subspan(e * n, n);
    };
    FeedForwardWeights& expert = out.ffn[e];
    for (const std::span<const float> half : {row(gate, ffn), row(up, ffn)}) {
      expert.gate_up_bias.insert(expert.gate_up_bias.end(), half.begin(), half.end());
    }
    expert.down_bias.assign(row(down, hidden).begin(), row(down, hidden).end());
  }
  return OkStatus();
}

absl::StatusOr<MatrixGroup> PackQkv(const LayerTensors& tensors, const HeadOrder& order,
                                    ThreadPool& pool) {
  if (tensors.qkv != nullptr) {
    TensorPart part = WholeOf(tensors.qkv);
    part.order = order;
    return PackOne(part, pool);
  }
  if (tensors.k == nullptr) return PackOne(WholeOf(tensors.q), pool);  // K and V of another layer
  const TensorPart qkv[] = {WholeOf(tensors.q), WholeOf(tensors.k), WholeOf(tensors.v)};
  return PackGroup(qkv, pool);
}

// Rows of the heads of `tensor`, `per_head` of each: `head_dim` from `first` on, in the order of
// TargetOf or as they lie.
TensorPart HeadRows(const GgufTensor* tensor, const HeadOrder& order, uint32_t per_head,
                    uint32_t first, bool turns) {
  TensorPart part = WholeOf(tensor);
  const uint32_t num_heads = part.num_rows / per_head;
  part.picked.resize(size_t{num_heads} * order.head_dim);
  for (uint32_t head = 0; head < num_heads; ++head) {
    for (uint32_t i = 0; i < order.head_dim; ++i) {
      const size_t target = turns ? TargetOf(order, i) : i;
      part.picked[size_t{head} * order.head_dim + target] = head * per_head + first + i;
    }
  }
  return part;
}

std::vector<float> ReorderNorm(const HeadOrder& order, const std::vector<float>& norm) {
  std::vector<float> out(norm.size());
  for (size_t i = 0; i < norm.size(); ++i) out[TargetOf(order, i)] = norm[i];
  return out;
}

// q|k|v|gate: a head of attn_q has its q, then its gate.
absl::Status LoadGatedAttention(const LayerTensors& tensors, const HeadOrder& order,
                                ThreadPool& pool, LayerWeights& out) {
  const uint32_t dim = order.head_dim;
  const TensorPart parts[] = {HeadRows(tensors.q, order, 2 * dim, 0, /*turns=*/true),
                              HeadRows(tensors.k, order, dim, 0, /*turns=*/true),
                              WholeOf(tensors.v),
                              HeadRows(tensors.q, order, 2 * dim, dim, /*turns=*/false)};
  BATON_ASSIGN_OR_RETURN(out.qkv, PackGroup(parts, pool));
  out.q_norm = ReorderNorm(order, out.q_norm);
  out.k_norm = ReorderNorm(order, out.k_norm);
  BATON_ASSIGN_OR_RETURN(out.attn_output, PackOne(WholeOf(tensors.attn_output), pool));
  return OkStatus();
}

absl::Status LoadAttention(const LayerTensors& tensors, const HeadOrder& order, ThreadPool& pool,
                           LayerWeights& out) {
  if (order.has_gates) return LoadGatedAttention(tensors, order, pool, out);
  BATON_ASSIGN_OR_RETURN(out.qkv, PackQkv(tensors, order, pool));
  BATON_ASSIGN_OR_RETURN(out.attn_output, PackOne(WholeOf(tensors.attn_output), pool));
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

// The elements of rows of a matrix; those of a quantised type in fp32.
absl::StatusOr<std::vector<std::byte>> ElementsOf(const TensorPart& part, ThreadPool& pool) {
  std::vector<std::byte> in_bf16;
  const RawRows raw = RawRowsOf(part, pool, in_bf16);
  if (!TraitsOf(raw.type).quantized()) {
    return std::vector<std::byte>(raw.bytes.begin(), raw.bytes.end());
  }
  const auto k = static_cast<uint32_t>(part.tensor->dims[0]);
  const size_t row_bytes = raw.bytes.size() / part.num_rows;
  std::vector<std::byte> out(size_t{part.num_rows} * k * sizeof(float));
  std::vector<float> weights(k);
  for (uint32_t row = 0; row < part.num_rows; ++row) {
    if (!DequantizeRow(raw.type, raw.bytes.data() + row * row_bytes, k, weights.data())) {
      return InvalidArgument("tensor \"{}\": row {} has a block whose scale is not a finite number",
                             part.tensor->name, part.first_row + row);
    }
    std::memcpy(out.data() + row * k * sizeof(float), weights.data(), k * sizeof(float));
  }
  return out;
}

// kv_b taken apart (hf_folder.cc does so with those of folders). Its rows for a head's keys meet
// the query, so they are transposed: elements of a quantised type, whose blocks lie along a row, in
// fp32, which holds them as they are; of NVFP4 in bf16, as it is packed.
absl::Status LoadJoinedKvB(const GgufTensor& kv_b, const LatentShape& shape, ThreadPool& pool,
                           LayerWeights& out) {
  BATON_RETURN_IF_ERROR(CheckPart(WholeOf(&kv_b), pool));
  const WeightType own = WeightTypeOf(kv_b);
  const WeightType type = TraitsOf(own).quantized() ? WeightType::kF32 : own;
  const auto k = static_cast<uint32_t>(kv_b.dims[0]);
  for (uint32_t head = 0; head < shape.num_heads; ++head) {
    const uint64_t first = uint64_t{head} * (shape.nope_dim + shape.value_dim);
    BATON_ASSIGN_OR_RETURN(const std::vector<std::byte> keys,
                           ElementsOf({&kv_b, first, shape.nope_dim}, pool));
    const std::vector<std::byte> raw = Transposed(keys, k, keys.size() / k / shape.nope_dim);
    BATON_ASSIGN_OR_RETURN(PackedMatrix matrix,
                           PackedMatrix::Pack(type, raw, k, shape.nope_dim, pool));
    MatrixGroup group;
    group.n = matrix.n();
    group.uses_a16 = matrix.uses_a16();
    group.parts.push_back(std::move(matrix));
    out.k_b.push_back(std::move(group));
    BATON_ASSIGN_OR_RETURN(MatrixGroup values,
                           PackOne({&kv_b, first + shape.nope_dim, shape.value_dim}, pool));
    out.v_b.push_back(std::move(values));
  }
  return OkStatus();
}

absl::Status LoadLatentAttention(const LayerTensors& tensors, const LatentShape& shape,
                                 ThreadPool& pool, LayerWeights& out) {
  BATON_ASSIGN_OR_RETURN(out.kv_a, PackOne(WholeOf(tensors.kv_a), pool));
  const GgufTensor* q = tensors.q_a == nullptr ? tensors.q : tensors.q_a;
  BATON_ASSIGN_OR_RETURN(out.qkv, PackOne(WholeOf(q), pool));
  if (tensors.q_b != nullptr) {
    BATON_ASSIGN_OR_RETURN(out.q_b, PackOne(WholeOf(tensors.q_b), pool));
  }
  BATON_ASSIGN_OR_RETURN(out.attn_output, PackOne(WholeOf(tensors.attn_output), pool));
  if (tensors.kv_b != nullptr) return LoadJoinedKvB(*tensors.kv_b, shape, pool, out);
  for (uint32_t head = 0; head < shape.num_heads; ++head) {
    BATON_ASSIGN_OR_RETURN(MatrixGroup k_b, PackOne(ExpertOf(tensors.k_b, head), pool));
    BATON_ASSIGN_OR_RETURN(MatrixGroup v_b, PackOne(ExpertOf(tensors.v_b, head), pool));
    out.k_b.push_back(std::move(k_b));
    out.v_b.push_back(std::move(v_b));
  }
  return OkStatus();
}

// The taps [channels, taps] become [taps, channels]: the kernel's lanes are channels.
absl::Status LoadTaps(const GgufTensor& taps, ThreadPool& pool, LayerWeights& out) {
  BATON_RETURN_IF_ERROR(CheckPart(WholeOf(&taps), pool));
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
absl::Status LoadDeltaNet(const LayerTensors& tensors, ThreadPool& pool, LayerWeights& out) {
  BATON_RETURN_IF_ERROR(LoadTaps(*tensors.delta_taps, pool, out));
  out.delta_rates = FloatsOf(*tensors.delta_rates);
  out.dt_bias = FloatsOf(*tensors.dt_bias);
  out.delta_norm = FloatsOf(*tensors.delta_norm);
  const TensorPart parts[] = {WholeOf(tensors.delta_qkv), WholeOf(tensors.delta_z),
                              WholeOf(tensors.delta_beta), WholeOf(tensors.delta_decay)};
  BATON_ASSIGN_OR_RETURN(out.qkv, PackGroup(parts, pool));
  BATON_ASSIGN_OR_RETURN(out.attn_output, PackOne(WholeOf(tensors.delta_out), pool));
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
absl::Status LoadMamba(const LayerTensors& tensors, ThreadPool& pool, LayerWeights& out) {
  const GgufTensor* in = tensors.mamba_in;
  const auto heads = static_cast<uint32_t>(tensors.dt_bias->dims[0]);
  const auto channels = static_cast<uint32_t>(tensors.delta_taps->dims[1]);
  const auto values = static_cast<uint32_t>(tensors.delta_out->dims[0]);
  const uint32_t keys = (channels - values) / 2;
  BATON_RETURN_IF_ERROR(LoadTaps(*tensors.delta_taps, pool, out));
  OrderChannels(values, channels, out.conv_taps);
  if (tensors.conv_bias != nullptr) {
    out.conv_bias = FloatsOf(*tensors.conv_bias);
    OrderChannels(values, channels, out.conv_bias);
  }
  for (const GgufTensor* vector : {tensors.delta_rates, tensors.skips, tensors.delta_norm}) {
    BATON_RETURN_IF_ERROR(CheckPart(WholeOf(vector), pool));  // these have two dimensions
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
  absl::StatusOr<MatrixGroup> packed = PackGroup(parts, pool);
  if (!packed.ok()) {  // the error of the whole has the row's number in the file
    const absl::Status whole = PackOne(WholeOf(in), pool).status();
    return whole.ok() ? packed.status() : whole;
  }
  out.qkv = *std::move(packed);
  BATON_ASSIGN_OR_RETURN(out.attn_output, PackOne(WholeOf(tensors.delta_out), pool));
  return OkStatus();
}

absl::Status LoadConvolution(const LayerTensors& tensors, ThreadPool& pool, LayerWeights& out) {
  BATON_RETURN_IF_ERROR(LoadTaps(*tensors.conv_taps, pool, out));
  BATON_ASSIGN_OR_RETURN(out.qkv, PackOne(WholeOf(tensors.conv_in), pool));
  BATON_ASSIGN_OR_RETURN(out.attn_output, PackOne(WholeOf(tensors.conv_out), pool));
  return OkStatus();
}

absl::Status LoadMixer(const LayerTensors& tensors, const TensorPlan& plan, ThreadPool& pool,
                       LayerWeights& out) {
  if (tensors.mamba_in != nullptr) return LoadMamba(tensors, pool, out);
  if (tensors.delta_out != nullptr) return LoadDeltaNet(tensors, pool, out);
  if (tensors.conv_in != nullptr) return LoadConvolution(tensors, pool, out);
  if (tensors.kv_a != nullptr) return LoadLatentAttention(tensors, plan.latent, pool, out);
  if (tensors.attn_output == nullptr) return OkStatus();  // a feed-forward layer alone
  return LoadAttention(tensors, plan.head_order, pool, out);
}

// The one feed-forward layer, or number `e` of the experts.
absl::StatusOr<FeedForwardWeights> LoadFeedForward(const LayerTensors& tensors, size_t e,
                                                   ThreadPool& pool) {
  const TensorPart down = ExpertOf(tensors.down, e);
  if (tensors.gate_up == nullptr) {
    return PackFeedForward(ExpertOf(tensors.gate, e), ExpertOf(tensors.up, e), down, pool);
  }
  FeedForwardWeights out;  // gate above up, as PackFeedForward joins them
  BATON_ASSIGN_OR_RETURN(out.gate_up, PackOne(ExpertOf(tensors.gate_up, e), pool));
  BATON_ASSIGN_OR_RETURN(out.down, PackOne(down, pool));
  return out;
}

absl::StatusOr<LayerWeights> LoadLayer(const LayerTensors& tensors, const TensorPlan& plan,
                                       ThreadPool& pool) {
  LayerWeights out;
  CopyVectors(tensors, out);
  BATON_RETURN_IF_ERROR(LoadPerLayer(tensors, pool, out));
  BATON_RETURN_IF_ERROR(LoadMixer(tensors, plan, pool, out));
  if (tensors.down == nullptr) return out;  // attention or Mamba-2 alone
  out.ffn.resize(tensors.down->dims[2]);    // 1 where there are no experts
  for (size_t e = 0; e < out.ffn.size(); ++e) {
    BATON_ASSIGN_OR_RETURN(out.ffn[e], LoadFeedForward(tensors, e, pool));
  }
  if (tensors.router == nullptr) return out;
  BATON_ASSIGN_OR_RETURN(out.router, PackOne(WholeOf(tensors.router), pool));
  if (tensors.shared_gate != nullptr) {
    BATON_ASSIGN_OR_RETURN(out.shared,
                           PackFeedForward(WholeOf(tensors.shared_gate), WholeOf(tensors.shared_up),
                                           WholeOf(tensors.shared_down), pool));
  }
  if (tensors.shared_router != nullptr) {
    BATON_ASSIGN_OR_RETURN(out.shared_router, PackOne(WholeOf(tensors.shared_router), pool));
  }
  BATON_RETURN_IF_ERROR(CopyExpertBiases(tensors, pool, out));
  return out;
}

}  // namespace

absl::StatusOr<MappedRows> MappedRows::Create(const GgufFile& file, const GgufTensor& tensor,
                                              ThreadPool& pool) {
  const TensorPart whole = WholeOf(&tensor);
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
  return InvalidArgument("tensor \"{}\": row {} of {} has a scale that is not finite", tensor.name,
                         bad_row.load(), rows.n);
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

absl::StatusOr<ModelWeights> LoadWeights(const GgufFile& file, const TensorPlan& plan,
                                         ThreadPool& pool) {
  ModelWeights out;
  if (plan.per_layer_embd != nullptr) {
    BATON_ASSIGN_OR_RETURN(out.per_layer_embd,
                           MappedRows::Create(file, *plan.per_layer_embd, pool));
    BATON_ASSIGN_OR_RETURN(out.per_layer_proj, PackOne(WholeOf(plan.per_layer_proj), pool));
    out.per_layer_norm = FloatsOf(*plan.per_layer_norm);
  }
  BATON_ASSIGN_OR_RETURN(out.token_embd, PackPart(WholeOf(plan.token_embd), pool));
  if (plan.output != plan.token_embd) {
    BATON_ASSIGN_OR_RETURN(out.output, PackOne(WholeOf(plan.output), pool));
  }
  out.output_norm = FloatsOf(*plan.output_norm);
  if (plan.rope_factors != nullptr) out.rope_factors = FloatsOf(*plan.rope_factors);
  if (plan.long_factors != nullptr) out.long_factors = FloatsOf(*plan.long_factors);
  out.layers.reserve(plan.layers.size());
  for (const LayerTensors& tensors : plan.layers) {
    BATON_ASSIGN_OR_RETURN(LayerWeights layer, LoadLayer(tensors, plan, pool));
    if (plan.norms_values && tensors.k_norm != nullptr) {
      layer.v_norm.assign(layer.k_norm.size(), 1.0f);
    }
    out.layers.push_back(std::move(layer));
  }
  return out;
}

absl::Status CheckVector(const GgufTensor& vector) {
  const bool divides = vector.name == "rope_freqs.weight" || vector.name == kShortFactorsName ||
                       vector.name == kLongFactorsName;
  const std::vector<float> values = FloatsOf(vector);
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i]) && (values[i] > 0 || !divides)) continue;
    return InvalidArgument("element {} of tensor \"{}\" is {}, not a {}number", i, vector.name,
                           values[i], divides ? "positive " : "");
  }
  return OkStatus();
}

absl::Status CheckVectors(const GgufFile& file) {
  for (const GgufTensor& tensor : file.tensors()) {
    if (tensor.num_dims == 1) BATON_RETURN_IF_ERROR(CheckVector(tensor));
  }
  return OkStatus();
}

absl::Status CheckElementsOf(const GgufTensor& rows, uint64_t first, uint64_t num_rows,
                             ThreadPool& pool) {
  return CheckRows(rows, rows.data, first, num_rows, pool);
}

absl::Status CheckElements(const GgufFile& file, ThreadPool& pool) {
  for (const GgufTensor& tensor : file.tensors()) {
    BATON_RETURN_IF_ERROR(CheckElementsOf(tensor, 0, NumRowsOf(tensor), pool));
  }
  return OkStatus();
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
      BATON_RETURN_IF_ERROR(PackPart({&tensor, row, count}, pool).status());
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
