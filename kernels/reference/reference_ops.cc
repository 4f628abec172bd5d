// The scalar reference (fma form): the plainest code that follows ARITHMETIC.md's numbered order of
// operations, on one thread. The oracle of tests; slow.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/embed.h"
#include "kernels/kv_piece.h"
#include "kernels/math.h"
#include "kernels/ops.h"
#include "kernels/reference/reference_math.h"
#include "kernels/route.h"

namespace baton::kernels {

using device::ThreadPool;
using kv::KvLayout;

namespace {

// 1 / sqrt(mean(x^2) + eps).
float InverseRms(const float* x, uint32_t k, float eps) {
  float lanes[16] = {};
  for (uint32_t i = 0; i < k; ++i) lanes[i % 16] = std::fma(x[i], x[i], lanes[i % 16]);
  return 1.0f / std::sqrt(ReferenceSumTree(lanes) / static_cast<float>(k) + eps);
}

void RmsNorm(ThreadPool&, const RmsNormArgs& args) {
  const uint32_t k = args.k;
  for (uint32_t r = 0; r < args.rows; ++r) {
    const float* x = args.x + size_t{r} * k;
    float* out = args.out + size_t{r} * k;
    const float scale = InverseRms(x, k, args.eps);
    for (uint32_t i = 0; i < k; ++i) {
      const float y = (x[i] * scale) * args.weight[i];
      out[i] = args.epilogue == Epilogue::kAdd ? out[i] + y : y;
    }
  }
}

void HeadNorm(ThreadPool&, const HeadNormArgs& args) {
  for (uint32_t i = 0; i < args.rows * args.num_heads; ++i) {
    float* x = args.x + size_t{i / args.num_heads} * args.stride +
               size_t{i % args.num_heads} * args.head_dim;
    const float scale = InverseRms(x, args.head_dim, args.eps);
    for (uint32_t d = 0; d < args.head_dim; ++d) x[d] = (x[d] * scale) * args.weight[d];
  }
}

void Scale(ThreadPool&, float* x, size_t count, float factor) {
  for (size_t i = 0; i < count; ++i) x[i] *= factor;
}

void Softcap(ThreadPool&, float* x, size_t count, float cap) {
  const float factor = 2.0f / cap;
  for (size_t i = 0; i < count; ++i) {
    x[i] = cap * (1.0f - 2.0f / (1.0f + ReferenceExp(x[i] * factor)));
  }
}

void ReluSquared(ThreadPool&, float* x, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const float positive = 0.0f > x[i] ? 0.0f : x[i];
    x[i] = positive * positive;
  }
}

// Block `b` of all rows in turn.
void QuantizeBlock(const float* x, size_t b, const A16View& out) {
  int16_t* const q = out.q + b * kQuantBlock;
  float* const scale = out.scale + b;
  float* const sum = out.sum + b;
  float* const half_sum = out.half_sum + 2 * b;
  int32_t* const half_total = out.half_total + 2 * b;
  float absmax = 0.0f;
  bool finite = true;
  for (uint32_t i = 0; i < kQuantBlock; ++i) {
    finite = finite && std::isfinite(x[i]);
    absmax = std::fabs(x[i]) > absmax ? std::fabs(x[i]) : absmax;
  }
  if (!finite || absmax < 0x1p-100f) {
    *scale = *sum = finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
    half_sum[0] = half_sum[1] = *sum;
    half_total[0] = half_total[1] = 0;
    std::memset(q, 0, kQuantBlock * sizeof(*q));
    return;
  }
  const float inverse = 32767.0f / absmax;
  half_total[0] = half_total[1] = 0;
  for (uint32_t i = 0; i < kQuantBlock; ++i) {
    q[i] = static_cast<int16_t>(std::nearbyint(x[i] * inverse));
    half_total[i / 16] += q[i];
  }
  *scale = absmax / 32767.0f;
  *sum = *scale * static_cast<float>(half_total[0] + half_total[1]);
  for (int i = 0; i < 2; ++i) half_sum[i] = *scale * static_cast<float>(half_total[i]);
}

void QuantizeA16(ThreadPool&, const float* x, uint32_t rows, A16View out) {
  const size_t blocks = size_t{rows} * (out.k / kQuantBlock);
  for (size_t b = 0; b < blocks; ++b) QuantizeBlock(x + b * kQuantBlock, b, out);
}

float DotA16(const MatMulArgs& args, uint32_t row, uint32_t n) {
  const PackedMatrix& w = *args.weights;
  const uint32_t blocks = w.k() / kQuantBlock;
  float acc = 0.0f;
  for (uint32_t b = 0; b < blocks; ++b) {
    const WeightBlock block = w.Block(n, b);
    const BlockScales scales = ScalesOf(w.traits().scales, block);
    const size_t a = size_t{row} * blocks + b;
    const uint32_t count = kQuantBlock / static_cast<uint32_t>(ScalesPerBlock(w.traits().scales));
    for (uint32_t first = 0; first < kQuantBlock; first += count) {
      int32_t dot = 0;
      for (uint32_t i = first; i < first + count; ++i) {
        dot += int32_t{block.q[i]} * args.a16.q[a * kQuantBlock + i];
      }
      const float scale = scales.scale[first / 16] * args.a16.scale[a];
      acc = std::fma(scale, static_cast<float>(dot), acc);
      if (!w.traits().has_min()) continue;
      const float sum = count == 16 ? args.a16.half_sum[2 * a + first / 16] : args.a16.sum[a];
      acc = std::fma(scales.min[first / 16], sum, acc);
    }
  }
  return acc;
}

float FloatWeight(const PackedMatrix& w, uint32_t n, uint32_t k) {
  const uint32_t bits = w.ElementBits(n, k);
  if (w.type() == WeightType::kF16) return FloatFromHalf(static_cast<uint16_t>(bits));
  if (w.type() == WeightType::kBf16) return FloatFromBf16(static_cast<uint16_t>(bits));
  return std::bit_cast<float>(bits);
}

float DotFloat(const MatMulArgs& args, uint32_t row, uint32_t n) {
  const uint32_t k = args.weights->k();
  float acc = 0.0f;
  for (uint32_t i = 0; i < k; ++i) {
    acc = std::fma(args.x[size_t{row} * k + i], FloatWeight(*args.weights, n, i), acc);
  }
  return acc;
}

void MatMul(ThreadPool&, const MatMulArgs& args) {
  for (uint32_t row = 0; row < args.m; ++row) {
    for (uint32_t n = 0; n < args.weights->n(); ++n) {
      const float y = args.weights->uses_a16() ? DotA16(args, row, n) : DotFloat(args, row, n);
      float* out = args.out + size_t{row} * args.out_stride + n;
      *out = args.epilogue == Epilogue::kAdd ? *out + y : y;
    }
  }
}

void SiluMul(ThreadPool&, const float* gate_up, uint32_t rows, uint32_t k, float* out) {
  for (uint32_t r = 0; r < rows; ++r) {
    for (uint32_t i = 0; i < k; ++i) {
      const float gate = gate_up[size_t{r} * 2 * k + i];
      const float up = gate_up[size_t{r} * 2 * k + k + i];
      out[size_t{r} * k + i] = gate / (1.0f + ReferenceExp(-gate)) * up;
    }
  }
}

void GeluMul(ThreadPool&, const float* gate_up, uint32_t rows, uint32_t k, float* out) {
  for (uint32_t r = 0; r < rows; ++r) {
    for (uint32_t i = 0; i < k; ++i) {
      const float gate = gate_up[size_t{r} * 2 * k + i];
      const float up = gate_up[size_t{r} * 2 * k + k + i];
      const float t = std::fma(gate * gate, 0.0713548163f, 1.5957691216f) * gate;
      out[size_t{r} * k + i] = gate / (1.0f + ReferenceExp(-t)) * up;
    }
  }
}

void ClampedSwiglu(ThreadPool&, const float* gate_up, uint32_t rows, uint32_t k, float* out) {
  for (uint32_t r = 0; r < rows; ++r) {
    for (uint32_t i = 0; i < k; ++i) {
      const float* at = gate_up + size_t{r} * 2 * k + i;
      const float gate = at[0] > kSwigluLimit ? kSwigluLimit : at[0];
      float up = at[k] > kSwigluLimit ? kSwigluLimit : at[k];
      up = up < -kSwigluLimit ? -kSwigluLimit : up;
      const float glu = gate / (1.0f + ReferenceExp(-kSwigluAlpha * gate));
      out[size_t{r} * k + i] = glu * (up + 1.0f);
    }
  }
}

void Combine(ThreadPool&, const CombineArgs& args) {
  for (uint32_t r = 0; r < args.rows; ++r) {
    for (uint32_t i = 0; i < args.k; ++i) {
      float sum = 0.0f;
      for (uint32_t j = 0; j < args.top_k; ++j) {
        const size_t pair = size_t{r} * args.top_k + j;
        sum = std::fma(args.weights[pair], args.y[size_t{args.slots[pair]} * args.k + i], sum);
      }
      args.x[size_t{r} * args.k + i] += sum;
    }
  }
}

void AddBias(ThreadPool&, float* x, const float* bias, uint32_t rows, uint32_t k) {
  for (size_t i = 0; i < size_t{rows} * k; ++i) x[i] += bias[i % k];
}

// Without a table nothing turns.
void Rotate(const float* in, const float* cos_sin, uint32_t dim, bool interleaved, float* out) {
  if (cos_sin == nullptr) {
    std::memmove(out, in, dim * sizeof(float));
    return;
  }
  std::vector<float> result(dim);
  for (uint32_t i = 0; i < dim / 2; ++i) {
    const uint32_t first = interleaved ? 2 * i : i;
    const uint32_t second = interleaved ? 2 * i + 1 : i + dim / 2;
    const float cos = cos_sin[2 * i];
    const float sin = cos_sin[2 * i + 1];
    result[first] = std::fma(in[first], cos, -(in[second] * sin));
    result[second] = std::fma(in[second], cos, in[first] * sin);
  }
  std::memcpy(out, result.data(), dim * sizeof(float));
}

// The table's row of a position; null without a table.
const float* AnglesAt(const RopeAppendArgs& args, uint32_t position) {
  if (args.cos_sin == nullptr) return nullptr;
  return args.cos_sin + size_t{position} * args.kv.layout->head_dim;
}

void AppendHead(const RopeAppendArgs& args, const AttentionSpan& span, uint32_t r, uint32_t head) {
  const KvLayout& layout = *args.kv.layout;
  const uint32_t position = span.first_pos + r;
  const size_t column =
      (size_t{span.first_row} + r) * args.qkv_stride + size_t{head} * layout.head_dim;
  std::vector<float> rotated(layout.head_dim);
  Rotate(args.k + column, AnglesAt(args, position), layout.head_dim, args.interleaved,
         rotated.data());
  const uint32_t block = span.kv.blocks[position / layout.block_size];
  const uint32_t token = position % layout.block_size;
  StoreKvRow(layout, 0, args.kv.Piece(block, args.layer, 0, head), token, rotated.data());
  StoreKvRow(layout, 1, args.kv.Piece(block, args.layer, 1, head), token, args.v + column);
}

void RopeAppend(ThreadPool&, const RopeAppendArgs& args) {
  const KvLayout& layout = *args.kv.layout;
  for (const AttentionSpan& span : args.spans) {
    for (uint32_t r = 0; r < span.num_rows; ++r) {
      float* q = args.q + (size_t{span.first_row} + r) * args.qkv_stride;
      const float* cos_sin = AnglesAt(args, span.first_pos + r);
      for (uint32_t head = 0; head < args.num_heads; ++head) {
        float* q_head = q + size_t{head} * layout.head_dim;
        Rotate(q_head, cos_sin, layout.head_dim, args.interleaved, q_head);
      }
      for (uint32_t head = 0; head < layout.num_kv_heads; ++head) AppendHead(args, span, r, head);
    }
    ZeroUnusedSlots(args, span);
  }
}

void LatentAppend(ThreadPool&, const LatentAppendArgs& args) {
  const KvLayout& layout = *args.kv.layout;
  const uint32_t latent_dim = layout.head_dim - args.rope_dims;
  for (const AttentionSpan& span : args.spans) {
    const uint32_t end = span.first_pos + span.num_rows;
    for (uint32_t position = span.first_pos; position < end; ++position) {
      const size_t row = size_t{span.first_row} + position - span.first_pos;
      const float* cos_sin = args.cos_sin + size_t{position} * args.rope_dims;
      for (uint32_t head = 0; head < args.num_heads; ++head) {
        const size_t at = row * args.num_heads + head;
        Rotate(args.q + (at + 1) * args.q_head_dim - args.rope_dims, cos_sin, args.rope_dims, true,
               args.absorbed + at * layout.head_dim + latent_dim);
      }
      std::vector<float> latent(args.latents + row * layout.head_dim,
                                args.latents + (row + 1) * layout.head_dim);
      Rotate(latent.data() + latent_dim, cos_sin, args.rope_dims, true, latent.data() + latent_dim);
      std::byte* piece =
          args.kv.Piece(span.kv.blocks[position / layout.block_size], args.layer, 0, 0);
      for (uint32_t d = 0; d < layout.head_dim; ++d) {
        StoreKv(layout.dtype, piece, KIndex(layout, position % layout.block_size, d), latent[d]);
      }
    }
    const uint32_t used = end % layout.block_size;
    if (used == 0 || used > span.num_rows) continue;
    std::byte* piece = args.kv.Piece(span.kv.blocks[end / layout.block_size], args.layer, 0, 0);
    for (uint32_t token = used; token < layout.block_size; ++token) {
      for (uint32_t d = 0; d < layout.head_dim; ++d) {
        StoreKv(layout.dtype, piece, KIndex(layout, token, d), 0.0f);
      }
    }
  }
}

size_t AttentionScratchBytes(uint32_t, uint32_t, uint32_t, uint32_t) { return 0; }

}  // namespace

const Ops& ReferenceOps() {
  static constexpr Ops kOps = {
      .isa = Isa::kAuto,
      .name = "reference",
      .arithmetic = "a16.fma.1",
      .embed = EmbedRows,
      .rms_norm = RmsNorm,
      .head_norm = HeadNorm,
      .scale = Scale,
      .softcap = Softcap,
      .relu_squared = ReluSquared,
      .quantize_a16 = QuantizeA16,
      .matmul = MatMul,
      .silu_mul = SiluMul,
      .gelu_mul = GeluMul,
      .clamped_swiglu = ClampedSwiglu,
      .route = RouteRows,
      .combine = Combine,
      .add_bias = AddBias,
      .rope_append = RopeAppend,
      .attention = ReferenceAttention,
      .latent_append = LatentAppend,
      .conv_append = ReferenceConvAppend,
      .short_conv = ReferenceShortConv,
      .gated_delta = ReferenceGatedDelta,
      .sigmoid_mul = ReferenceSigmoidMul,
      .attention_scratch_bytes = AttentionScratchBytes,
  };
  return kOps;
}

}  // namespace baton::kernels
