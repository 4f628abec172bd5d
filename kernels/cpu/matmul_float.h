// Matmul of float weights (F32, F16, BF16) with fp32 activations. Included by one translation unit
// per instruction set.
//
// One output is one fp32 fma chain over ascending k; lanes are outputs, so the width of a vector
// changes no bit. The chain's latency (4 cycles) is hidden by kRows rows times kPanels panels in
// flight. Many rows: a stretch of a panel is converted to fp32 in L1 once and shared by all rows of
// the task.
#ifndef BATON_KERNELS_CPU_MATMUL_FLOAT_H_
#define BATON_KERNELS_CPU_MATMUL_FLOAT_H_

#include <algorithm>

#include "kernels/cpu/matmul_a16.h"

namespace baton::kernels::BATON_ISA {

// Elements of k converted at a time: 16 KiB of fp32.
inline constexpr uint32_t kFloatChunk = 256;

// Per-thread working memory of the converting path.
struct alignas(64) FloatScratch {
  float weights[kFloatChunk][kPanelRows];
  float acc[kTaskRows][kPanelRows];
};
static_assert(sizeof(FloatScratch) <= device::ThreadPool::kScratchBytes);

template <WeightType kType>
BATON_INLINE F32x16 LoadWeights(const std::byte* p) {
  if constexpr (kType == WeightType::kF32) return Load(reinterpret_cast<const float*>(p));
  if constexpr (kType == WeightType::kF16) return LoadHalf(p);
  if constexpr (kType == WeightType::kBf16) return LoadBf16(p);
}

template <WeightType kType>
inline constexpr size_t kRowBytes16 = (kType == WeightType::kF32 ? 4 : 2) * kPanelRows;

// A stretch of k of some rows of activations.
struct FloatActivations {
  const float* x;  // row r at x + r * stride
  size_t stride;   // elements
  uint32_t k;
};

// acc [kRows][kPanels] += kRows rows of x times `k` rows of 16 weights of each panel.
template <WeightType kType, int kRows, int kPanels>
BATON_INLINE void FloatTile(const std::byte* w, size_t panel_bytes, const FloatActivations& x,
                            F32x16 (&acc)[kRows][kPanels]) {
  for (uint32_t i = 0; i < x.k; ++i) {
    F32x16 weights[kPanels];
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) {
      weights[p] = LoadWeights<kType>(w + p * panel_bytes + i * kRowBytes16<kType>);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const F32x16 value = Set1(x.x[r * x.stride + i]);
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) acc[r][p] = Fma(value, weights[p], acc[r][p]);
    }
  }
}

// Few rows: straight from the packed panels, kPanels at a time.
template <WeightType kType, int kRows, int kPanels>
inline void FloatStream(const MatMulArgs& args, device::TaskRange panels) {
  const PackedMatrix& w = *args.weights;
  for (uint32_t p = panels.begin; p < panels.end; p += kPanels) {
    F32x16 acc[kRows][kPanels];
    for (auto& row : acc) {
      for (F32x16& sum : row) sum = Zero();
    }
    // Past the last panel the first is computed again instead, and not stored.
    const bool whole = p + kPanels <= panels.end;
    const size_t step = whole ? w.panel_bytes() : 0;
    FloatTile<kType, kRows, kPanels>(w.panel(p), step, {args.x, w.k(), w.k()}, acc);
    for (uint32_t r = 0; r < kRows; ++r) {
      for (uint32_t i = 0; i < (whole ? kPanels : 1); ++i) StoreOutputs(args, r, p + i, acc[r][i]);
    }
    if (!whole) p -= kPanels - 1;
  }
}

template <int kRows>
BATON_INLINE void FloatRows(const FloatScratch& s, const FloatActivations& x,
                            float (*acc)[kPanelRows]) {
  F32x16 sums[kRows][1];
  for (int r = 0; r < kRows; ++r) sums[r][0] = Load(acc[r]);
  FloatTile<WeightType::kF32, kRows, 1>(reinterpret_cast<const std::byte*>(s.weights), 0, x, sums);
  for (int r = 0; r < kRows; ++r) Store(acc[r], sums[r][0]);
}

template <int kRows>
BATON_INLINE void FloatRest(const FloatScratch& s, const FloatActivations& x, uint32_t num_rows,
                            float (*acc)[kPanelRows]) {
  if constexpr (kRows > 0) {
    if (num_rows == kRows) {
      FloatRows<kRows>(s, x, acc);
    } else {
      FloatRest<kRows - 1>(s, x, num_rows, acc);
    }
  }
}

template <WeightType kType>
inline void FloatTask(const MatMulArgs& args, const MatMulTask& task, FloatScratch* s) {
  const PackedMatrix& w = *args.weights;
  const size_t stride = w.k();
  const device::TaskRange task_rows = task.rows;
  for (uint32_t p = task.panels.begin; p < task.panels.end; ++p) {
    for (uint32_t r = 0; r < task_rows.size(); ++r) Store(s->acc[r], Zero());
    for (uint32_t k0 = 0; k0 < w.k(); k0 += kFloatChunk) {
      const uint32_t k = std::min(kFloatChunk, w.k() - k0);
      const std::byte* weights = w.panel(p) + k0 * kRowBytes16<kType>;
      for (uint32_t i = 0; i < k; ++i) {
        Store(s->weights[i], LoadWeights<kType>(weights + i * kRowBytes16<kType>));
      }
      const float* x = args.x + task_rows.begin * stride + k0;
      uint32_t r = 0;
      for (; r + kTileRows <= task_rows.size(); r += kTileRows) {
        FloatRows<kTileRows>(*s, {x + r * stride, stride, k}, s->acc + r);
      }
      FloatRest<kTileRows - 1>(*s, {x + r * stride, stride, k}, task_rows.size() - r, s->acc + r);
    }
    for (uint32_t r = 0; r < task_rows.size(); ++r) {
      StoreOutputs(args, task_rows.begin + r, p, Load(s->acc[r]));
    }
  }
}

template <WeightType kType>
inline void FloatStreamTask(const MatMulArgs& args, device::TaskRange panels) {
  static_assert(kStreamRows == 3);
  switch (args.m) {
    case 1:
      return FloatStream<kType, 1, 4>(args, panels);
    case 2:
      return FloatStream<kType, 2, 2>(args, panels);
    default:
      return FloatStream<kType, 3, 2>(args, panels);
  }
}

template <WeightType kType>
inline void MatMulFloatType(device::ThreadPool& pool, const MatMulArgs& args) {
  const PackedMatrix& w = *args.weights;
  if (args.m <= kStreamRows) {
    pool.RunRanges(
        w.num_panels(), 4, 8 * pool.num_threads(),
        [&](device::TaskRange panels, uint32_t) { FloatStreamTask<kType>(args, panels); });
    return;
  }
  const MatMulTasks tasks = TasksOf(pool, args);
  pool.Run(tasks.row_parts * tasks.panel_parts, [&](uint32_t task, uint32_t thread) {
    auto* scratch = reinterpret_cast<FloatScratch*>(pool.scratch(thread).data());
    FloatTask<kType>(args, TaskAt(tasks, args, task), scratch);
  });
}

inline void MatMul(device::ThreadPool& pool, const MatMulArgs& args) {
  if (args.m == 0) return;
  switch (args.weights->type()) {
    case WeightType::kF32:
      return MatMulFloatType<WeightType::kF32>(pool, args);
    case WeightType::kF16:
      return MatMulFloatType<WeightType::kF16>(pool, args);
    case WeightType::kBf16:
      return MatMulFloatType<WeightType::kBf16>(pool, args);
    default:
      return MatMulA16(pool, args);
  }
}

}  // namespace baton::kernels::BATON_ISA

#endif  // BATON_KERNELS_CPU_MATMUL_FLOAT_H_
