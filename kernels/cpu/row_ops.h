// Row operations of kernels/cpu on the 16-lane vector: norm, activation, bias.
// Included by one translation unit per instruction set. All are bound by memory: each element is
// read once or twice from L1/L2 and written once; kRowGrain elements cost as much as a wake-up.
#ifndef BATON_KERNELS_CPU_ROW_OPS_H_
#define BATON_KERNELS_CPU_ROW_OPS_H_

#include "kernels/cpu/simd_math.h"
#include "kernels/ops.h"

namespace baton::kernels::BATON_ISA {

inline constexpr uint32_t kRowGrain = 16384;  // elements

// Calls body(row) for every row, divided over the pool when there is enough work.
template <typename Body>
BATON_INLINE void ForRows(device::ThreadPool& pool, uint32_t rows, uint32_t k, Body&& body) {
  const uint32_t min_rows = k >= kRowGrain ? 1 : kRowGrain / (k > 0 ? k : 1);
  pool.RunRanges(rows, min_rows, 4 * pool.num_threads(), [&](device::TaskRange range, uint32_t) {
    for (uint32_t row = range.begin; row < range.end; ++row) body(row);
  });
}

// 1 / sqrt(mean(x^2) + eps) of k elements, in all lanes.
BATON_INLINE F32x16 InverseRms(const float* x, uint32_t k, float eps) {
  const uint32_t whole = k & ~15u;
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
  return Set1(1.0f / __builtin_sqrtf(mean + eps));
}

BATON_INLINE void RmsNormRow(const float* x, const float* weight, uint32_t k, float eps,
                             float* out) {
  const uint32_t whole = k & ~15u;
  const F32x16 scale = InverseRms(x, k, eps);
  for (uint32_t i = 0; i < whole; i += 16) {
    Store(out + i, Mul(Mul(Load(x + i), scale), Load(weight + i)));
  }
  if (whole < k) {
    const uint32_t n = k - whole;
    StoreN(out + whole, Mul(Mul(LoadN(x + whole, n), scale), LoadN(weight + whole, n)), n);
  }
}

// out += norm(x).
BATON_INLINE void RmsNormAddRow(const float* x, const float* weight, uint32_t k, float eps,
                                float* out) {
  const uint32_t whole = k & ~15u;
  const F32x16 scale = InverseRms(x, k, eps);
  for (uint32_t i = 0; i < whole; i += 16) {
    const F32x16 y = Mul(Mul(Load(x + i), scale), Load(weight + i));
    Store(out + i, Add(Load(out + i), y));
  }
  if (whole < k) {
    const uint32_t n = k - whole;
    const F32x16 y = Mul(Mul(LoadN(x + whole, n), scale), LoadN(weight + whole, n));
    StoreN(out + whole, Add(LoadN(out + whole, n), y), n);
  }
}

inline void RmsNorm(device::ThreadPool& pool, const RmsNormArgs& args) {
  const uint32_t k = args.k;
  ForRows(pool, args.rows, k, [&](uint32_t row) {
    const float* x = args.x + size_t{row} * k;
    float* out = args.out + size_t{row} * k;
    if (args.epilogue == Epilogue::kAdd) {
      RmsNormAddRow(x, args.weight, k, args.eps, out);
    } else {
      RmsNormRow(x, args.weight, k, args.eps, out);
    }
  });
}

inline void HeadNorm(device::ThreadPool& pool, const HeadNormArgs& args) {
  ForRows(pool, args.rows, args.num_heads * args.head_dim, [&](uint32_t row) {
    float* x = args.x + size_t{row} * args.stride;
    for (uint32_t head = 0; head < args.num_heads; ++head, x += args.head_dim) {
      RmsNormRow(x, args.weight, args.head_dim, args.eps, x);
    }
  });
}

// silu(gate) * up = gate / (1 + e^-gate) * up.
BATON_INLINE F32x16 SiluMul16(F32x16 gate, F32x16 up) {
  const F32x16 e = Exp(Sub(Zero(), gate));
  return Mul(Div(gate, Add(Set1(1.0f), e)), up);
}

// gelu(gate) * up in its tanh form, as gate / (1 + e^-t) * up. Here t = 2 sqrt(2 / pi) (gate +
// 0.044715 gate^3), since (1 + tanh(t / 2)) / 2 = 1 / (1 + e^-t).
BATON_INLINE F32x16 GeluMul16(F32x16 gate, F32x16 up) {
  const F32x16 cubic = Fma(Mul(gate, gate), Set1(0.0713548163f), Set1(1.5957691216f));
  const F32x16 e = Exp(Sub(Zero(), Mul(cubic, gate)));
  return Mul(Div(gate, Add(Set1(1.0f), e)), up);
}

// The gate of gpt-oss (ops.h). Min and Max give their second argument where one is NaN.
BATON_INLINE F32x16 ClampedSwiglu16(F32x16 gate, F32x16 up) {
  const F32x16 limit = Set1(kSwigluLimit);
  const F32x16 g = Min(limit, gate);
  const F32x16 u = Max(Set1(-kSwigluLimit), Min(limit, up));
  const F32x16 e = Exp(Mul(Set1(-kSwigluAlpha), g));
  return Mul(Div(g, Add(Set1(1.0f), e)), Add(u, Set1(1.0f)));
}

// out[r, i] = activate(gate_up[r, i], gate_up[r, k + i]).
template <F32x16 (*kActivate)(F32x16, F32x16)>
inline void GatedRows(device::ThreadPool& pool, const float* gate_up, uint32_t rows, uint32_t k,
                      float* out) {
  const uint32_t whole = k & ~15u;
  ForRows(pool, rows, k, [&](uint32_t row) {
    const float* gate = gate_up + size_t{row} * 2 * k;
    const float* up = gate + k;
    float* row_out = out + size_t{row} * k;
    for (uint32_t i = 0; i < whole; i += 16) {
      Store(row_out + i, kActivate(Load(gate + i), Load(up + i)));
    }
    if (whole < k) {
      const uint32_t n = k - whole;
      StoreN(row_out + whole, kActivate(LoadN(gate + whole, n), LoadN(up + whole, n)), n);
    }
  });
}

inline void SiluMul(device::ThreadPool& pool, const float* gate_up, uint32_t rows, uint32_t k,
                    float* out) {
  GatedRows<SiluMul16>(pool, gate_up, rows, k, out);
}

inline void GeluMul(device::ThreadPool& pool, const float* gate_up, uint32_t rows, uint32_t k,
                    float* out) {
  GatedRows<GeluMul16>(pool, gate_up, rows, k, out);
}

inline void ClampedSwiglu(device::ThreadPool& pool, const float* gate_up, uint32_t rows, uint32_t k,
                          float* out) {
  GatedRows<ClampedSwiglu16>(pool, gate_up, rows, k, out);
}

// sum over j of weights[j] * y[slots[j], begin + lane], one fma chain for each lane.
BATON_INLINE F32x16 WeightedSum(const CombineArgs& args, uint32_t row, uint32_t begin, uint32_t n) {
  const size_t first = size_t{row} * args.top_k;
  F32x16 sum = Zero();
  for (uint32_t j = 0; j < args.top_k; ++j) {
    const float* y = args.y + size_t{args.slots[first + j]} * args.k + begin;
    sum = Fma(Set1(args.weights[first + j]), n == 16 ? Load(y) : LoadN(y, n), sum);
  }
  return sum;
}

inline void Combine(device::ThreadPool& pool, const CombineArgs& args) {
  const uint32_t whole = args.k & ~15u;
  ForRows(pool, args.rows, args.k * args.top_k, [&](uint32_t row) {
    float* x = args.x + size_t{row} * args.k;
    for (uint32_t i = 0; i < whole; i += 16) {
      Store(x + i, Add(Load(x + i), WeightedSum(args, row, i, 16)));
    }
    const uint32_t n = args.k - whole;
    if (n > 0) StoreN(x + whole, Add(LoadN(x + whole, n), WeightedSum(args, row, whole, n)), n);
  });
}

inline void AddBias(device::ThreadPool& pool, float* x, const float* bias, uint32_t rows,
                    uint32_t k) {
  ForRows(pool, rows, k, [&](uint32_t row) {
    float* row_x = x + size_t{row} * k;
    uint32_t i = 0;
    for (; i + 16 <= k; i += 16) Store(row_x + i, Add(Load(row_x + i), Load(bias + i)));
    for (; i < k; ++i) row_x[i] += bias[i];
  });
}

}  // namespace baton::kernels::BATON_ISA

#endif  // BATON_KERNELS_CPU_ROW_OPS_H_
