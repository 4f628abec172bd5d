// The state of one sequence of a net with a fixed state, and what is done to its inputs before the
// state moves on: the short convolution, lengths of q and k, gates. Included by gated_delta.h.
#ifndef BATON_KERNELS_CPU_DELTA_INPUTS_H_
#define BATON_KERNELS_CPU_DELTA_INPUTS_H_

#include "kernels/cpu/row_ops.h"
#include "kernels/delta_gates.h"
#include "kernels/ops.h"

namespace baton::kernels::BATON_ISA {

// Added to the sum of squares of a head of q or k before its root (transformers and FLA).
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

BATON_INLINE F32x16 Silu16(F32x16 x) { return Div(x, Add(Set1(1.0f), Exp(Sub(Zero(), x)))); }

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
  const F32x16 bias = args.conv_bias == nullptr ? Zero() : Load(args.conv_bias + channel);
  for (int32_t j = 0; j < num_tail; ++j) {
    Store(to.at(), inputs.At(num_rows - num_tail + j));
    to.Advance(channels * sizeof(float));
  }
  for (int32_t row = num_rows - 1; row >= 0; --row) {
    F32x16 sum = bias;
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

// Logits of each head to its step and decay.
inline void StepRows(device::ThreadPool& pool, const GatedDeltaArgs& args, uint32_t rows) {
  const DeltaShape& shape = args.shape;
  // An exp and a log cost as much as some 16 elements.
  ForRows(pool, rows, 16 * shape.num_v_heads, [&](uint32_t row) {
    float* step =
        args.input + size_t{row} * shape.input_size() + shape.num_channels() + shape.value_size();
    StepGates(args.rates, args.dt_bias, shape.num_v_heads, step, step + shape.num_v_heads);
  });
}

// Heads of q and k to length 1 (q divided by sqrt(k_dim) too), logits to beta and decay.
inline void PrepareRows(device::ThreadPool& pool, const GatedDeltaArgs& args, uint32_t rows) {
  const DeltaShape& shape = args.shape;
  if (shape.rule == DeltaRule::kAdd) return StepRows(pool, args, rows);
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

}  // namespace baton::kernels::BATON_ISA

#endif  // BATON_KERNELS_CPU_DELTA_INPUTS_H_
