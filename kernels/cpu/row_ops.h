// Row operations of kernels/cpu on the 16-lane vector: norm, quantisation, activation, bias.
// Included by one translation unit per instruction set. All are bound by memory: each element is
// read once or twice from L1/L2 and written once; fewer than kRowGrain elements stay on the calling
// thread, since waking a worker costs about as much as 16 Ki elements.
#ifndef BATON_KERNELS_CPU_ROW_OPS_H_
#define BATON_KERNELS_CPU_ROW_OPS_H_

#include <bit>
#include <limits>

#include "kernels/cpu/simd_math.h"
#include "kernels/ops.h"

namespace baton::BATON_ISA {

inline constexpr uint32_t kRowGrain = 16384;  // elements

// Calls body(row) for every row, divided over the pool when there is enough work.
template <typename Body>
BATON_INLINE void ForRows(ThreadPool& pool, uint32_t rows, uint32_t k, Body&& body) {
  const uint32_t min_rows = k >= kRowGrain ? 1 : kRowGrain / (k > 0 ? k : 1);
  pool.RunRanges(rows, min_rows, 4 * pool.num_threads(), [&](TaskRange range, uint32_t) {
    for (uint32_t row = range.begin; row < range.end; ++row) body(row);
  });
}

BATON_INLINE void RmsNormRow(const RmsNormArgs& args, uint32_t row) {
  const uint32_t k = args.k;
  const uint32_t whole = k & ~15u;
  const float* x = args.x + size_t{row} * k;
  const float* weight = args.weight;
  float* out = args.out + size_t{row} * k;
  F32x16 squares = Zero();
  for (uint32_t i = 0; i < whole; i += 16) {
    const F32x16 v = Load(x + i);
    squares = Fma(v, v, squares);
  }
  if (whole < k) {
    const F32x16 v = LoadN(x + whole, k - whole);
    squares = Fma(v, v, squares);
  }
  const float mean = SumTree(squares) / static_cast<float>(k);
  const F32x16 scale = Set1(1.0f / __builtin_sqrtf(mean + args.eps));
  for (uint32_t i = 0; i < whole; i += 16) {
    Store(out + i, Mul(Mul(Load(x + i), scale), Load(weight + i)));
  }
  if (whole < k) {
    const uint32_t n = k - whole;
    StoreN(out + whole, Mul(Mul(LoadN(x + whole, n), scale), LoadN(weight + whole, n)), n);
  }
}

inline void RmsNorm(ThreadPool& pool, const RmsNormArgs& args) {
  ForRows(pool, args.rows, args.k, [&](uint32_t row) { RmsNormRow(args, row); });
}

// One block of 32: see A16View. Magnitudes are compared as bits, so that NaN is the largest.
BATON_INLINE void QuantizeBlock(const float* x, int16_t* q, float* scale, float* sum) {
  constexpr int32_t kInfinityBits = 0x7F800000;
  constexpr int32_t kSmallestBits = (127 - 100)
                                    << 23;  // 2^-100: its reciprocal times 32767 is finite
  const F32x16 low = Load(x);
  const F32x16 high = Load(x + 16);
  const I32x16 magnitude = SetI(0x7FFFFFFF);
  const int32_t max_bits =
      MaxAllI(MaxI(AndI(BitsOf(low), magnitude), AndI(BitsOf(high), magnitude)));
  if (max_bits >= kInfinityBits || max_bits < kSmallestBits) [[unlikely]] {
    const float mark = max_bits >= kInfinityBits ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
    *scale = mark;
    *sum = mark;
    StoreI16(q, SetI(0));
    StoreI16(q + 16, SetI(0));
    return;
  }
  const float absmax = std::bit_cast<float>(max_bits);
  const F32x16 inverse = Set1(32767.0f / absmax);
  const I32x16 q_low = ToInt(Mul(low, inverse));
  const I32x16 q_high = ToInt(Mul(high, inverse));
  StoreI16(q, q_low);
  StoreI16(q + 16, q_high);
  *scale = absmax / 32767.0f;
  *sum = *scale * static_cast<float>(SumAllI(AddI(q_low, q_high)));
}

inline void QuantizeA16(ThreadPool& pool, const float* x, uint32_t rows, A16View out) {
  const uint32_t blocks = out.k / kQuantBlock;
  ForRows(pool, rows, out.k, [&](uint32_t row) {
    for (uint32_t b = 0; b < blocks; ++b) {
      const size_t block = size_t{row} * blocks + b;
      QuantizeBlock(x + block * kQuantBlock, out.q + block * kQuantBlock, out.scale + block,
                    out.sum + block);
    }
  });
}

// silu(gate) * up = gate / (1 + e^-gate) * up.
BATON_INLINE F32x16 SiluMul16(F32x16 gate, F32x16 up) {
  const F32x16 e = Exp(Sub(Zero(), gate));
  return Mul(Div(gate, Add(Set1(1.0f), e)), up);
}

inline void SiluMul(ThreadPool& pool, const float* gate_up, uint32_t rows, uint32_t k, float* out) {
  const uint32_t whole = k & ~15u;
  ForRows(pool, rows, k, [&](uint32_t row) {
    const float* gate = gate_up + size_t{row} * 2 * k;
    const float* up = gate + k;
    float* row_out = out + size_t{row} * k;
    for (uint32_t i = 0; i < whole; i += 16) {
      Store(row_out + i, SiluMul16(Load(gate + i), Load(up + i)));
    }
    if (whole < k) {
      const uint32_t n = k - whole;
      StoreN(row_out + whole, SiluMul16(LoadN(gate + whole, n), LoadN(up + whole, n)), n);
    }
  });
}

inline void AddBias(ThreadPool& pool, float* x, const float* bias, uint32_t rows, uint32_t k) {
  const uint32_t whole = k & ~15u;
  ForRows(pool, rows, k, [&](uint32_t row) {
    float* row_x = x + size_t{row} * k;
    for (uint32_t i = 0; i < whole; i += 16) {
      Store(row_x + i, Add(Load(row_x + i), Load(bias + i)));
    }
    for (uint32_t i = whole; i < k; ++i) row_x[i] += bias[i];
  });
}

}  // namespace baton::BATON_ISA

#endif  // BATON_KERNELS_CPU_ROW_OPS_H_
