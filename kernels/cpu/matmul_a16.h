// Matmul of quantised weights with a16 activations: the driver that every instruction set shares.
// The integer cores are in core_a16.h. Included by one translation unit per instruction set.
//
// Work split: outputs are cut into panels of 16; a task owns some panels (and, for many rows, a
// block of rows). Up to kMaxStreamRows rows a panel is read straight from the packed form, once:
// bytes moved = weights.bytes(), and memory should bind. More rows: a stretch of kTilePanels panels
// is unpacked to int16 pairs in L1 and multiplied with tiles of kTileRows rows; 2 m n k operations,
// and the rate of vpmaddwd/vpdpwssd should bind (NOTES.md has the fractions reached).
//
// The arithmetic of one output, in every path:
//   for each 32-block, ascending:
//     for each of its scales:  idot = sum w_i a_i   (int32, exact, any order)
//                              acc = fma(d_w * d_a, float(idot), acc)
//       with a min then        acc = fma(m_w, asum, acc)
#ifndef BATON_KERNELS_CPU_MATMUL_A16_H_
#define BATON_KERNELS_CPU_MATMUL_A16_H_

#include <algorithm>

#include "kernels/cpu/stretch_a16.h"
#include "kernels/ops.h"

namespace baton::kernels::BATON_ISA {

BATON_INLINE A16Rows RowsAt(const A16View& a, uint32_t row, uint32_t block) {
  const size_t blocks = a.k / kQuantBlock;
  const size_t first = row * blocks + block;
  return {a.q + first * kQuantBlock,
          a.scale + first,
          a.sum + first,
          a.half_sum + 2 * first,
          a.half_total + 2 * first,
          a.k,
          blocks};
}

// How a matmul of many rows is cut: row_parts x panel_parts tasks, about eight a thread. Cuts lie
// between tiles.
struct MatMulTasks {
  uint32_t row_parts;
  uint32_t panel_parts;
};

// Rows and panels of one task.
struct MatMulTask {
  device::TaskRange rows;
  device::TaskRange panels;
};

// Units of which `count` elements fill all but the last.
constexpr uint32_t NumUnits(uint32_t count, uint32_t unit) { return (count + unit - 1) / unit; }

inline MatMulTasks TasksOf(const device::ThreadPool& pool, const MatMulArgs& args) {
  const uint32_t row_parts = NumUnits(args.m, kTaskRows);
  if (pool.num_threads() == 1) return {row_parts, 1};
  const uint32_t wanted = NumUnits(8 * pool.num_threads(), row_parts);
  return {row_parts,
          std::clamp<uint32_t>(wanted, 1, NumUnits(args.weights->num_panels(), kTilePanels))};
}

// Part `part` of [0, total), cut at multiples of `unit`.
inline device::TaskRange PartInUnits(uint32_t total, uint32_t unit, uint32_t num_parts,
                                     uint32_t part) {
  const device::TaskRange units = device::PartOf(NumUnits(total, unit), num_parts, part);
  return {units.begin * unit, std::min(total, units.end * unit)};
}

inline MatMulTask TaskAt(const MatMulTasks& tasks, const MatMulArgs& args, uint32_t task) {
  return {PartInUnits(args.m, kTileRows, tasks.row_parts, task / tasks.panel_parts),
          PartInUnits(args.weights->num_panels(), kTilePanels, tasks.panel_parts,
                      task % tasks.panel_parts)};
}

// Writes (or adds) 16 outputs of one row; the last panel may have fewer columns.
BATON_INLINE void StoreOutputs(const MatMulArgs& args, uint32_t row, uint32_t panel, F32x16 y) {
  const uint32_t n = args.weights->n();
  const uint32_t first = panel * kPanelRows;
  float* out = args.out + size_t{row} * args.out_stride + first;
  const bool add = args.epilogue == Epilogue::kAdd;
  if (first + kPanelRows <= n) {
    Store(out, add ? Add(Load(out), y) : y);
  } else {
    StoreN(out, add ? Add(LoadN(out, n - first), y) : y, n - first);
  }
}

// Few rows: kRows x 16 outputs straight from the packed panel.
template <PackedDigits kDigits, PackedScales kScales, int kRows>
inline void StreamRows(const MatMulArgs& args, uint32_t panel, uint32_t row) {
  const PackedMatrix& w = *args.weights;
  F32x16 acc[kRows];
  StreamPanel<kDigits, kScales, kRows>(w.panel(panel), w.k() / kQuantBlock,
                                       RowsAt(args.a16, row, 0), acc);
  for (int r = 0; r < kRows; ++r) {
    StoreOutputs(args, row + static_cast<uint32_t>(r), panel, acc[r]);
  }
}

// The first group of rows reads a panel from memory, the others from L1.
template <PackedDigits kDigits, PackedScales kScales>
inline void StreamTask(const MatMulArgs& args, device::TaskRange panels) {
  static_assert(kStreamRows == 3);
  for (uint32_t p = panels.begin; p < panels.end; ++p) {
    uint32_t row = 0;
    for (; row + 3 <= args.m; row += 3) StreamRows<kDigits, kScales, 3>(args, p, row);
    if (args.m - row == 2) {
      StreamRows<kDigits, kScales, 2>(args, p, row);
    } else if (args.m - row == 1) {
      StreamRows<kDigits, kScales, 1>(args, p, row);
    }
  }
}

// The tile of 1 to kRows rows.
template <ScaleForm kForm, int kRows, int kPanels>
BATON_INLINE void TileOf(const PanelStretch& stretch, const A16Rows& rows, uint32_t num_rows,
                         float* acc) {
  if constexpr (kRows > 0) {
    if (num_rows == kRows) {
      RunTile(TileShape<kForm, kRows, kPanels>{}, stretch, rows, acc);
    } else {
      TileOf<kForm, kRows - 1, kPanels>(stretch, rows, num_rows, acc);
    }
  }
}

// Writes (or adds) the sums of a tile [num_rows][kPanels][16].
template <int kPanels>
inline void StoreTile(const MatMulArgs& args, uint32_t row, uint32_t num_rows, uint32_t panel,
                      const float* acc) {
  float* out = args.out + size_t{row} * args.out_stride + panel * kPanelRows;
  if ((panel + kPanels) * kPanelRows > args.weights->n()) {
    for (uint32_t i = 0; i < num_rows * kPanels; ++i) {
      StoreOutputs(args, row + i / kPanels, panel + i % kPanels, Load(acc + i * kPanelRows));
    }
    return;
  }
  for (uint32_t r = 0; r < num_rows; ++r, out += args.out_stride, acc += kPanels * kPanelRows) {
    for (uint32_t i = 0; i < kPanels * kPanelRows; i += kPanelRows) {
      const F32x16 y = Load(acc + i);
      Store(out + i, args.epilogue == Epilogue::kAdd ? Add(Load(out + i), y) : y);
    }
  }
}

// All rows of a task times panels [panel, panel + kPanels). Outputs are written tile by tile, so
// that their misses pass while the next tile is computed.
template <PackedDigits kDigits, PackedScales kScales, int kPanels>
inline void TilePanels(const MatMulArgs& args, device::TaskRange task_rows, uint32_t panel,
                       A16Scratch* s) {
  const PackedMatrix& w = *args.weights;
  const uint32_t num_blocks = w.k() / kQuantBlock;
  const uint32_t num_chunks = NumUnits(num_blocks, kChunkBlocks);
  const uint32_t num_tiles = NumUnits(task_rows.size(), kTileRows);
  I32x16 zero = SetI(0);
  KeepInRegister(&zero);  // gcc 12 would make the loop below a `rep stos`, which nothing overtakes
  for (uint32_t chunk = 0; chunk < num_chunks; ++chunk) {
    const device::TaskRange blocks = device::PartOf(num_blocks, num_chunks, chunk);
    UnpackStretch<kDigits, kScales, kPanels>(w, panel, blocks, s);
    const PanelStretch stretch = {s->digits, s->scale[0], s->min[0], blocks.size()};
    const bool is_last = chunk + 1 == num_chunks;
    const NextStretch next = NextOf<kDigits, kScales, kPanels>(
        w, is_last ? panel + kPanels : panel,
        device::PartOf(num_blocks, num_chunks, is_last ? 0 : chunk + 1), num_tiles);
    for (uint32_t tile = 0; tile < num_tiles; ++tile) {
      const uint32_t row = task_rows.begin + tile * kTileRows;
      const uint32_t num_rows = std::min(kTileRows, task_rows.end - row);
      float* const acc = s->acc[tile * kTileRows * kPanels];
      if (chunk == 0) {
        for (uint32_t i = 0; i < num_rows * kPanels; ++i) StoreInts(acc + i * kPanelRows, zero);
      }
      next.Fetch<kPanels>(tile);
      TileOf<FormOf(kScales), kTileRows, kPanels>(stretch, RowsAt(args.a16, row, blocks.begin),
                                                  num_rows, acc);
      if (is_last) StoreTile<kPanels>(args, row, num_rows, panel, acc);
    }
  }
}

template <PackedDigits kDigits, PackedScales kScales>
inline void TileTask(const MatMulArgs& args, const MatMulTask& task, A16Scratch* s) {
  uint32_t panel = task.panels.begin;
  for (; panel + kTilePanels <= task.panels.end; panel += kTilePanels) {
    TilePanels<kDigits, kScales, kTilePanels>(args, task.rows, panel, s);
  }
  for (; panel < task.panels.end; ++panel) {
    TilePanels<kDigits, kScales, 1>(args, task.rows, panel, s);
  }
}

template <PackedDigits kDigits, PackedScales kScales>
inline void MatMulDigits(device::ThreadPool& pool, const MatMulArgs& args) {
  const PackedMatrix& w = *args.weights;
  // A task of less than 32 KiB of weights (about 2 us) is not worth a claim.
  const uint32_t min_panels = std::max<uint32_t>(1, static_cast<uint32_t>(32768 / w.panel_bytes()));
  if (args.m <= kMaxStreamRows) {
    // A task of 2 MiB takes 50 to 80 us.
    const uint32_t max_panels = static_cast<uint32_t>((size_t{2} << 20) / w.panel_bytes());
    pool.RunShrinking(
        w.num_panels(), min_panels, std::max(min_panels, max_panels),
        [&](device::TaskRange panels, uint32_t) { StreamTask<kDigits, kScales>(args, panels); });
    return;
  }
  const MatMulTasks tasks = TasksOf(pool, args);
  pool.Run(tasks.row_parts * tasks.panel_parts, [&](uint32_t task, uint32_t thread) {
    auto* scratch = reinterpret_cast<A16Scratch*>(pool.scratch(thread).data());
    TileTask<kDigits, kScales>(args, TaskAt(tasks, args, task), scratch);
  });
}

inline void MatMulA16(device::ThreadPool& pool, const MatMulArgs& args) {
  using D = PackedDigits;
  using S = PackedScales;
  switch (args.weights->type()) {
    case WeightType::kQ4_0:
      return MatMulDigits<D::kNibblesOff8, S::kHalf>(pool, args);
    case WeightType::kQ4_1:
      return MatMulDigits<D::kNibbles, S::kHalfAndMin>(pool, args);
    case WeightType::kQ8_0:
      return MatMulDigits<D::kBytes, S::kHalf>(pool, args);
    case WeightType::kQ5_0:
      return MatMulDigits<D::kFiveOff16, S::kHalf>(pool, args);
    case WeightType::kQ5_1:
      return MatMulDigits<D::kFive, S::kHalfAndMin>(pool, args);
    case WeightType::kQ4_K:
      return MatMulDigits<D::kNibbles, S::kSuperAndMin>(pool, args);
    case WeightType::kQ5_K:
      return MatMulDigits<D::kFive, S::kSuperAndMin>(pool, args);
    case WeightType::kQ6_K:
      return MatMulDigits<D::kSixOff32, S::kSuperTwo>(pool, args);
    case WeightType::kMxfp4:
      return MatMulDigits<D::kFp4, S::kPowerOfTwo>(pool, args);
    case WeightType::kIq4Nl:
      return MatMulDigits<D::kIq4, S::kHalf>(pool, args);
    case WeightType::kIq4Xs:
      return MatMulDigits<D::kIq4, S::kSuper>(pool, args);
    case WeightType::kQ3_K:
      return MatMulDigits<D::kThree, S::kSuperTwo>(pool, args);
    case WeightType::kQ2_K:
      return MatMulDigits<D::kTwo, S::kSuperTwoAndMins>(pool, args);
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBf16:
      return;
  }
}

}  // namespace baton::kernels::BATON_ISA

#endif  // BATON_KERNELS_CPU_MATMUL_A16_H_
