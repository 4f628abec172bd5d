// Stretches of packed panels, unpacked to int16 pairs in working memory of a thread. Included by
// one translation unit per instruction set.
#ifndef BATON_KERNELS_CPU_STRETCH_A16_H_
#define BATON_KERNELS_CPU_STRETCH_A16_H_

#include <algorithm>

#include "kernels/cpu/core_a16.h"
#include "kernels/ops.h"

namespace baton::kernels::BATON_ISA {

// Blocks of neighbouring panels unpacked at a time: 24 KiB of int16, which leaves room for the
// activations in a 32 KiB L1.
inline constexpr uint32_t kChunkBlocks = 24 / kTilePanels;
// Rows of a task: their accumulators (16 fp32 each) stay in L1/L2.
inline constexpr uint32_t kTaskRows = 192;
static_assert(kTaskRows % kTileRows == 0);

// Per-thread working memory of the unpacking path. Panels are those of one tile, 1 or kTilePanels.
struct alignas(64) A16Scratch {
  int16_t digits[kChunkBlocks * kTilePanels * kQuantBlock * kPanelRows];  // [block][pair][panel]...
  float scale[2 * kChunkBlocks * kTilePanels][kPanelRows];  // [block][1 or 2 of it][panel]
  float min[2 * kChunkBlocks * kTilePanels][kPanelRows];
  float acc[kTaskRows * kTilePanels][kPanelRows];  // [row][panel]
};
static_assert(sizeof(A16Scratch) <= device::ThreadPool::kScratchBytes);
// Bytes from the scales to the mins.
inline constexpr int kMinOffset = sizeof(A16Scratch::scale);

// Unpacks blocks of panels [panel, panel + kPanels).
template <PackedDigits kDigits, PackedScales kScales, int kPanels>
inline void UnpackStretch(const PackedMatrix& w, uint32_t panel, device::TaskRange blocks,
                          A16Scratch* s) {
  constexpr int kParts = ScalesPerBlock(kScales);
  for (uint32_t i = 0; i < blocks.size(); ++i) {
    for (uint32_t p = 0; p < kPanels; ++p) {
      const std::byte* super = w.panel(panel + p) + SuperOffset(kDigits, kScales, blocks.begin + i);
      const std::byte* block = w.panel(panel + p) + BlockOffset(kDigits, kScales, blocks.begin + i);
      const uint32_t at = i * kParts * kPanels + p;
      Store(s->scale[at], LoadScale<kScales, 0>(super, block));
      if constexpr (kParts == 2) Store(s->scale[at + kPanels], LoadScale<kScales, 1>(super, block));
      if constexpr (HasMin(kScales)) {
        Store(s->min[at], LoadMin<kScales, 0>(super, block));
        if constexpr (kParts == 2) Store(s->min[at + kPanels], LoadMin<kScales, 1>(super, block));
      }
      UnpackDigits<kDigits, kPanels>(block + BlockScaleBytes(kScales),
                                     s->digits + (i * kQuantBlock * kPanels + 2 * p) * kPanelRows);
    }
  }
}

// The packed blocks that a thread unpacks next. Some lines are asked for with each tile that it
// multiplies: unpacking waits for memory otherwise, since nothing else runs beside it.
struct NextStretch {
  const std::byte* at;  // of the first panel
  size_t panel_bytes;   // to the next
  uint32_t num_lines;   // of a panel
  uint32_t lines_of_a_tile;

  template <int kPanels>
  BATON_INLINE void Fetch(uint32_t tile) const {
    const uint32_t begin = tile * lines_of_a_tile;
    const uint32_t end = std::min(num_lines, begin + lines_of_a_tile);
    for (uint32_t p = 0; p < kPanels; ++p) {
      for (uint32_t line = begin; line < end; ++line) {
        __builtin_prefetch(at + p * panel_bytes + size_t{line} * 64, 0, 2);
      }
    }
  }
};

// Blocks `blocks` of the panels from `panel` on, asked for beside `num_tiles` tiles; none where the
// matrix ends.
template <PackedDigits kDigits, PackedScales kScales, int kPanels>
inline NextStretch NextOf(const PackedMatrix& w, uint32_t panel, device::TaskRange blocks,
                          uint32_t num_tiles) {
  if (panel + kPanels > w.num_panels()) return {};
  const size_t begin = BlockOffset(kDigits, kScales, blocks.begin);
  const size_t end = blocks.end * kQuantBlock < w.k() ? BlockOffset(kDigits, kScales, blocks.end)
                                                      : w.panel_bytes();
  const auto num_lines = static_cast<uint32_t>((end - begin + 63) / 64);
  return {w.panel(panel) + begin, w.panel_bytes(), num_lines,
          (num_lines + num_tiles - 1) / num_tiles};
}

// Names the tile of a form, so that an instruction set can have its own for some.
template <ScaleForm kForm, int kRows, int kPanels>
struct TileShape {};

template <ScaleForm kForm, int kRows, int kPanels>
BATON_INLINE void RunTile(TileShape<kForm, kRows, kPanels>, const PanelStretch& stretch,
                          const A16Rows& rows, float* acc) {
  Tile<kForm, kRows, kPanels>(stretch, rows, acc);
}

}  // namespace baton::kernels::BATON_ISA

#endif  // BATON_KERNELS_CPU_STRETCH_A16_H_
