// The gated delta net: a short convolution, then a matrix for each head that every token decays and
// corrects; and Mamba-2, whose tokens decay it and add to it. Included by one translation unit per
// instruction set.
//
// One step of a sequence reads and writes its state once: 2 MiB a layer for 16 heads of 128 x 128,
// so decode is bound by memory. A prompt keeps kTileColumns columns of a head's matrix in L1 for
// the whole span, and is bound by 5 * k_dim * v_dim operations a head and token. Columns of a
// matrix never meet, so threads divide spans, heads and tiles of columns, and no sum. The plain
// recurrent form serves prompts and decode alike: a state's bits depend on its tokens alone.
#ifndef BATON_KERNELS_CPU_GATED_DELTA_H_
#define BATON_KERNELS_CPU_GATED_DELTA_H_

#include "kernels/cpu/delta_inputs.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/ops.h"

namespace baton::kernels::BATON_ISA {

inline constexpr uint32_t kTileVectors = 4;
inline constexpr uint32_t kTileColumns = kTileVectors * kDeltaLanes;

// One tile of columns of one head's matrix of one span.
struct DeltaTile {
  const GatedDeltaArgs& args;
  const AttentionSpan& span;
  uint32_t head;    // of v
  uint32_t column;  // first, of the head

  size_t first_byte() const {
    const size_t row = size_t{head} * args.shape.k_dim;
    return (row * args.shape.v_dim + column) * sizeof(float);
  }
};

enum class Copy : uint8_t { kLoad = 0, kStore = 1 };

// Between the state and `matrix` [k_dim][kVectors * 16].
template <uint32_t kVectors, Copy kCopy>
BATON_INLINE void CopyTile(const DeltaTile& tile, float* matrix) {
  const DeltaShape& shape = tile.args.shape;
  constexpr size_t kVectorBytes = kDeltaLanes * sizeof(float);
  StateCursor row(tile.args, tile.span, tile.first_byte());
  for (uint32_t i = 0; i < shape.k_dim; ++i) {
    StateCursor at = row;
    for (uint32_t v = 0; v < kVectors; ++v, matrix += kDeltaLanes) {
      if constexpr (kCopy == Copy::kLoad) {
        Store(matrix, Load(at.at()));
      } else {
        Store(at.at(), Load(matrix));
      }
      at.Advance(kVectorBytes);
    }
    row.Advance(size_t{shape.v_dim} * sizeof(float));
  }
}

// One token as a tile sees it.
struct DeltaToken {
  const float* q;  // [k_dim]
  const float* k;  // [k_dim]
  const float* v;  // of the tile's columns
  float beta;
  float decay;
  float skip;  // of Mamba-2
};

// The part of v that the matrix does not give for k: v_c - decay * (sum over i of S[i][c] k[i]).
template <uint32_t kVectors>
BATON_INLINE void Errors(const DeltaToken& token, uint32_t k_dim, const float* matrix,
                         F32x16 (&errors)[kVectors]) {
  F32x16 sums[kVectors];
  for (uint32_t c = 0; c < kVectors; ++c) sums[c] = Zero();
  const float* at = matrix;
  for (uint32_t i = 0; i < k_dim; ++i) {
    const F32x16 key = Set1(token.k[i]);
    for (uint32_t c = 0; c < kVectors; ++c, at += kDeltaLanes) {
      sums[c] = Fma(Load(at), key, sums[c]);
    }
  }
  for (uint32_t c = 0; c < kVectors; ++c) {
    errors[c] = Sub(Load(token.v + c * kDeltaLanes), Mul(Set1(token.decay), sums[c]));
  }
}

// One token: the state decays, is corrected to give more of v for k, or v is added for k; then it
// is read by q.
//   delta_c = error_c * beta, or of Mamba-2 v_c * step
//   S[i][c] = fma(k[i], delta_c, S[i][c] * decay);  out_c = sum over i of S[i][c] q[i]
//   and of Mamba-2 out_c = fma(skip, v_c, out_c)
// Sums are fma chains, i ascending from 0.
template <uint32_t kVectors, DeltaRule kRule>
BATON_INLINE void DeltaStep(const DeltaToken& token, uint32_t k_dim, float* matrix, float* out) {
  constexpr bool kAdds = kRule == DeltaRule::kAdd;
  F32x16 deltas[kVectors];
  if constexpr (kAdds) {
    for (uint32_t c = 0; c < kVectors; ++c) deltas[c] = Load(token.v + c * kDeltaLanes);
  } else {
    Errors<kVectors>(token, k_dim, matrix, deltas);
  }
  F32x16 sums[kVectors];
  for (uint32_t c = 0; c < kVectors; ++c) {
    deltas[c] = Mul(deltas[c], Set1(token.beta));
    sums[c] = Zero();
  }
  const F32x16 decays = Set1(token.decay);
  float* to = matrix;
  for (uint32_t i = 0; i < k_dim; ++i) {
    const F32x16 key = Set1(token.k[i]);
    const F32x16 query = Set1(token.q[i]);
    for (uint32_t c = 0; c < kVectors; ++c, to += kDeltaLanes) {
      const F32x16 state = Fma(key, deltas[c], Mul(Load(to), decays));
      Store(to, state);
      sums[c] = Fma(state, query, sums[c]);
    }
  }
  for (uint32_t c = 0; c < kVectors; ++c) {
    if constexpr (kAdds) sums[c] = Fma(Set1(token.skip), Load(token.v + c * kDeltaLanes), sums[c]);
    Store(out + c * kDeltaLanes, sums[c]);
  }
}

template <uint32_t kVectors, DeltaRule kRule>
inline void RunTile(const DeltaTile& tile, float* matrix) {
  const GatedDeltaArgs& args = tile.args;
  const DeltaShape& shape = args.shape;
  CopyTile<kVectors, Copy::kLoad>(tile, matrix);
  const size_t k_offset = size_t{shape.KeyHeadOf(tile.head)} * shape.k_dim;
  const size_t v_offset = size_t{tile.head} * shape.v_dim + tile.column;
  const float skip = args.skips == nullptr ? 0.0f : args.skips[tile.head];
  for (uint32_t r = 0; r < tile.span.num_rows; ++r) {
    const size_t row = size_t{tile.span.first_row} + r;
    const float* q = args.input + row * shape.input_size();
    const float* gates = q + shape.num_channels() + shape.value_size();
    const float* k = q + shape.key_size();
    const DeltaToken token{q + k_offset,
                           k + k_offset,
                           k + shape.key_size() + v_offset,
                           gates[tile.head],
                           gates[shape.num_v_heads + tile.head],
                           skip};
    float* out = args.out + row * shape.value_size() + v_offset;
    DeltaStep<kVectors, kRule>(token, shape.k_dim, matrix, out);
  }
  CopyTile<kVectors, Copy::kStore>(tile, matrix);
}

template <DeltaRule kRule>
inline void RunTiles(device::ThreadPool& pool, const GatedDeltaArgs& args) {
  const DeltaShape& shape = args.shape;
  const uint32_t tiles_a_head = (shape.v_dim + kTileColumns - 1) / kTileColumns;
  const uint32_t tiles_a_span = shape.num_v_heads * tiles_a_head;
  static_assert(size_t{kMaxDeltaKeyDim} * kTileColumns * sizeof(float) <=
                device::ThreadPool::kScratchBytes);
  const auto total = static_cast<uint32_t>(args.spans.size()) * tiles_a_span;
  pool.RunRanges(total, 1, 8 * pool.num_threads(), [&](device::TaskRange range, uint32_t thread) {
    auto* matrix = reinterpret_cast<float*>(pool.scratch(thread).data());
    for (uint32_t i = range.begin; i < range.end; ++i) {
      const uint32_t of_span = i % tiles_a_span;
      const DeltaTile tile{args, args.spans[i / tiles_a_span], of_span / tiles_a_head,
                           of_span % tiles_a_head * kTileColumns};
      const uint32_t left = (shape.v_dim - tile.column) / kDeltaLanes;
      if (left >= kTileVectors) {
        RunTile<kTileVectors, kRule>(tile, matrix);
      } else if (left == 3) {
        RunTile<3, kRule>(tile, matrix);
      } else if (left == 2) {
        RunTile<2, kRule>(tile, matrix);
      } else {
        RunTile<1, kRule>(tile, matrix);
      }
    }
  });
}

// Each head's output: norm(out) * norm weights * silu(z).
inline void GateRows(device::ThreadPool& pool, const GatedDeltaArgs& args, uint32_t rows) {
  const DeltaShape& shape = args.shape;
  ForRows(pool, rows, shape.value_size(), [&](uint32_t row) {
    const float* z = args.input + size_t{row} * shape.input_size() + shape.num_channels();
    float* out = args.out + size_t{row} * shape.value_size();
    for (uint32_t h = 0; h < shape.num_v_heads; ++h, z += shape.v_dim, out += shape.v_dim) {
      const F32x16 scale = InverseRms(out, shape.v_dim, args.eps);
      for (uint32_t i = 0; i < shape.v_dim; i += kDeltaLanes) {
        const F32x16 normed = Mul(Mul(Load(out + i), scale), Load(args.norm + i));
        Store(out + i, Mul(normed, Silu16(Load(z + i))));
      }
    }
  });
}

// Mamba-2's output: norm(out * silu(z)) * norm weights, all heads of one head of k normed together.
inline void NormGatedRows(device::ThreadPool& pool, const GatedDeltaArgs& args, uint32_t rows) {
  const DeltaShape& shape = args.shape;
  const uint32_t group = shape.norm_size();
  ForRows(pool, rows, shape.value_size(), [&](uint32_t row) {
    const float* z = args.input + size_t{row} * shape.input_size() + shape.num_channels();
    float* out = args.out + size_t{row} * shape.value_size();
    const float* norm = args.norm;
    for (uint32_t g = 0; g < shape.num_k_heads; ++g, z += group, out += group, norm += group) {
      for (uint32_t i = 0; i < group; i += kDeltaLanes) {
        Store(out + i, Mul(Load(out + i), Silu16(Load(z + i))));
      }
      RmsNormRow(out, norm, group, args.eps, out);
    }
  });
}

inline void GatedDelta(device::ThreadPool& pool, const GatedDeltaArgs& args) {
  uint32_t rows = 0;
  for (const AttentionSpan& span : args.spans) rows += span.num_rows;
  ConvolveSpans(pool, args);
  PrepareRows(pool, args, rows);
  if (args.shape.rule == DeltaRule::kAdd) {
    RunTiles<DeltaRule::kAdd>(pool, args);
    NormGatedRows(pool, args, rows);
  } else {
    RunTiles<DeltaRule::kCorrect>(pool, args);
    GateRows(pool, args, rows);
  }
}

inline void SigmoidMul(device::ThreadPool& pool, const SigmoidMulArgs& args) {
  const uint32_t whole = args.k & ~15u;
  const auto gated = [](F32x16 x, F32x16 gate) {
    return Div(x, Add(Set1(1.0f), Exp(Sub(Zero(), gate))));
  };
  ForRows(pool, args.rows, args.k, [&](uint32_t row) {
    const float* gate = args.gate + size_t{row} * args.gate_stride;
    float* x = args.x + size_t{row} * args.k;
    for (uint32_t i = 0; i < whole; i += 16) Store(x + i, gated(Load(x + i), Load(gate + i)));
    if (whole == args.k) return;
    const uint32_t n = args.k - whole;
    StoreN(x + whole, gated(LoadN(x + whole, n), LoadN(gate + whole, n)), n);
  });
}

}  // namespace baton::kernels::BATON_ISA

#endif  // BATON_KERNELS_CPU_GATED_DELTA_H_
