// The gated delta net: a short convolution, then a matrix for each head that every token decays and
// corrects. Included by one translation unit per instruction set.
//
// One step of a sequence reads and writes its state once: 2 MiB a layer for 16 heads of 128 x 128,
// so decode is bound by memory. A prompt keeps kTileColumns columns of a head's matrix in L1 for
// the whole span, and is bound by 5 * k_dim * v_dim operations a head and token. Columns of a
// matrix never meet, so threads divide spans, heads and tiles of columns, and no sum. The plain
// recurrent form serves prompts and decode alike: a state's bits depend on its tokens alone.
#ifndef BATON_KERNELS_CPU_GATED_DELTA_H_
#define BATON_KERNELS_CPU_GATED_DELTA_H_

#include <cstring>

#include "kernels/cpu/row_ops.h"
#include "kernels/delta_gates.h"
#include "kernels/ops.h"

namespace baton::kernels::BATON_ISA {

inline constexpr uint32_t kTileVectors = 4;
inline constexpr uint32_t kTileColumns = kTileVectors * kDeltaLanes;
// What the sum of squares of a head of q or k is raised by before its root (transformers and FLA).
inline constexpr float kDeltaL2Epsilon = 1e-6f;

// Walks over the state of one sequence in steps of whole vectors, which no slice cuts.
class StateCursor {
 public:
  StateCursor(const GatedDeltaArgs& args, const AttentionSpan& span, size_t offset)
      : args_(&args), blocks_(span.kv.state.data()), slice_bytes_(args.kv.layout->SliceBytes()) {
    const size_t at = args.offset + offset;
    block_ = at / slice_bytes_;
    within_ = at % slice_bytes_;
  }
  void Advance(size_t bytes) {
    within_ += bytes;
    while (within_ >= slice_bytes_) {
      within_ -= slice_bytes_;
      ++block_;
    }
  }
  float* at() const {
    std::byte* const slice = args_->kv.Piece(blocks_[block_], args_->slice, 0, 0);
    return reinterpret_cast<float*>(slice + within_);
  }

 private:
  const GatedDeltaArgs* args_;
  const uint32_t* blocks_;
  size_t slice_bytes_;
  size_t block_;
  size_t within_;
};

BATON_INLINE F32x16 Silu16(F32x16 x) {
  return Div(x, Add(Set1(1.0f), Exp(Sub(Zero(), x))));
}

// The inputs of 16 channels from the last tokens before a span on: those of the tail, then x.
struct ChannelInputs {
  F32x16 tail[kMaxConvTaps];  // [num_tail] used, the oldest first
  uint32_t num_tail;
  const float* x;  // of the span's first row
  size_t stride;

  // Input `idx` of the span; idx >= -num_tail.
  BATON_INLINE F32x16 At(int32_t idx) const {
    if (idx < 0) return tail[static_cast<int32_t>(num_tail) + idx];
    return Load(x + static_cast<size_t>(idx) * stride);
  }
};

// silu(convolution) of 16 channels of a span, in place; moves their tail on. The last row comes
// first, so that no input is overwritten before its last use.
inline void ConvolveChannels(const GatedDeltaArgs& args, const AttentionSpan& span,
                             uint32_t channel) {
  const DeltaShape& shape = args.shape;
  const size_t stride = shape.input_size();
  const size_t channels = shape.num_channels();
  const auto num_rows = static_cast<int32_t>(span.num_rows);
  float* const x = args.input + size_t{span.first_row} * stride + channel;
  ChannelInputs inputs;
  inputs.num_tail = shape.num_taps - 1;
  inputs.x = x;
  inputs.stride = stride;
  const size_t first_byte = shape.matrix_bytes() + size_t{channel} * sizeof(float);
  StateCursor from(args, span, first_byte);
  for (uint32_t j = 0; j < inputs.num_tail; ++j) {
    inputs.tail[j] = Load(from.at());
    from.Advance(channels * sizeof(float));
  }
  StateCursor to(args, span, first_byte);
  const auto num_tail = static_cast<int32_t>(inputs.num_tail);
  for (int32_t j = 0; j < num_tail; ++j) {
    Store(to.at(), inputs.At(num_rows - num_tail + j));
    to.Advance(channels * sizeof(float));
  }
  for (int32_t row = num_rows - 1; row >= 0; --row) {
    F32x16 sum = Zero();
    for (int32_t j = 0; j <= num_tail; ++j) {
      const F32x16 tap = Load(args.taps + static_cast<size_t>(j) * channels + channel);
      sum = Fma(tap, inputs.At(row - num_tail + j), sum);
    }
    Store(x + static_cast<size_t>(row) * stride, Silu16(sum));
  }
}

inline void ConvolveSpans(device::ThreadPool& pool, const GatedDeltaArgs& args) {
  const uint32_t vectors = args.shape.num_channels() / kDeltaLanes;
  for (const AttentionSpan& span : args.spans) {
    const uint32_t grain = 1 + kRowGrain / (kDeltaLanes * args.shape.num_taps * span.num_rows);
    pool.RunRanges(vectors, grain, 4 * pool.num_threads(), [&](device::TaskRange range, uint32_t) {
      for (uint32_t v = range.begin; v < range.end; ++v) {
        ConvolveChannels(args, span, v * kDeltaLanes);
      }
    });
  }
}

// x *= factor / sqrt(sum of x^2 + epsilon), for one head of q or k.
BATON_INLINE void NormalizeHead(float* x, uint32_t dim, float factor) {
  F32x16 squares = Zero();
  for (uint32_t i = 0; i < dim; i += kDeltaLanes) {
    const F32x16 v = Load(x + i);
    squares = Fma(v, v, squares);
  }
  const float length = __builtin_sqrtf(SumTree(squares) + kDeltaL2Epsilon);
  const F32x16 scale = Set1(factor / length);
  for (uint32_t i = 0; i < dim; i += kDeltaLanes) Store(x + i, Mul(Load(x + i), scale));
}

// Heads of q and k to length 1 (q divided by sqrt(k_dim) too), logits to beta and decay.
inline void PrepareRows(device::ThreadPool& pool, const GatedDeltaArgs& args, uint32_t rows) {
  const DeltaShape& shape = args.shape;
  const float q_factor = 1.0f / __builtin_sqrtf(static_cast<float>(shape.k_dim));
  ForRows(pool, rows, 2 * shape.key_size(), [&](uint32_t row) {
    float* q = args.input + size_t{row} * shape.input_size();
    for (uint32_t h = 0; h < shape.num_k_heads; ++h) {
      NormalizeHead(q + size_t{h} * shape.k_dim, shape.k_dim, q_factor);
      NormalizeHead(q + shape.key_size() + size_t{h} * shape.k_dim, shape.k_dim, 1.0f);
    }
    float* beta = q + shape.num_channels() + shape.value_size();
    DeltaGates(args.rates, args.dt_bias, shape.num_v_heads, beta, beta + shape.num_v_heads);
  });
}

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

// One token: the state decays, then is corrected to give more of v for k, then is read by q.
//   read_c  = decay * (sum over i of S[i][c] k[i])
//   delta_c = (v_c - read_c) * beta
//   S[i][c] = fma(k[i], delta_c, S[i][c] * decay);  out_c = sum over i of S[i][c] q[i]
// Sums are fma chains, i ascending from 0.
template <uint32_t kVectors>
BATON_INLINE void DeltaStep(const float* q, const float* k, const float* v, float beta, float decay,
                            uint32_t k_dim, float* matrix, float* out) {
  F32x16 sums[kVectors];
  for (uint32_t c = 0; c < kVectors; ++c) sums[c] = Zero();
  const float* at = matrix;
  for (uint32_t i = 0; i < k_dim; ++i) {
    const F32x16 key = Set1(k[i]);
    for (uint32_t c = 0; c < kVectors; ++c, at += kDeltaLanes) {
      sums[c] = Fma(Load(at), key, sums[c]);
    }
  }
  const F32x16 decays = Set1(decay);
  F32x16 deltas[kVectors];
  for (uint32_t c = 0; c < kVectors; ++c) {
    deltas[c] = Mul(Sub(Load(v + c * kDeltaLanes), Mul(decays, sums[c])), Set1(beta));
    sums[c] = Zero();
  }
  float* to = matrix;
  for (uint32_t i = 0; i < k_dim; ++i) {
    const F32x16 key = Set1(k[i]);
    const F32x16 query = Set1(q[i]);
    for (uint32_t c = 0; c < kVectors; ++c, to += kDeltaLanes) {
      const F32x16 state = Fma(key, deltas[c], Mul(Load(to), decays));
      Store(to, state);
      sums[c] = Fma(state, query, sums[c]);
    }
  }
  for (uint32_t c = 0; c < kVectors; ++c) Store(out + c * kDeltaLanes, sums[c]);
}

template <uint32_t kVectors>
inline void RunTile(const DeltaTile& tile, float* matrix) {
  const GatedDeltaArgs& args = tile.args;
  const DeltaShape& shape = args.shape;
  CopyTile<kVectors, Copy::kLoad>(tile, matrix);
  const size_t k_offset = size_t{tile.head % shape.num_k_heads} * shape.k_dim;
  const size_t v_offset = size_t{tile.head} * shape.v_dim + tile.column;
  for (uint32_t r = 0; r < tile.span.num_rows; ++r) {
    const size_t row = size_t{tile.span.first_row} + r;
    const float* q = args.input + row * shape.input_size();
    const float* gates = q + shape.num_channels() + shape.value_size();
    const float* k = q + shape.key_size();
    DeltaStep<kVectors>(q + k_offset, k + k_offset, k + shape.key_size() + v_offset,
                        gates[tile.head], gates[shape.num_v_heads + tile.head], shape.k_dim, matrix,
                        args.out + row * shape.value_size() + v_offset);
  }
  CopyTile<kVectors, Copy::kStore>(tile, matrix);
}

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
        RunTile<kTileVectors>(tile, matrix);
      } else if (left == 3) {
        RunTile<3>(tile, matrix);
      } else if (left == 2) {
        RunTile<2>(tile, matrix);
      } else {
        RunTile<1>(tile, matrix);
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

inline void GatedDelta(device::ThreadPool& pool, const GatedDeltaArgs& args) {
  uint32_t rows = 0;
  for (const AttentionSpan& span : args.spans) rows += span.num_rows;
  ConvolveSpans(pool, args);
  PrepareRows(pool, args, rows);
  RunTiles(pool, args);
  GateRows(pool, args, rows);
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
