// The end of a product of few rows that makes q, k and v. Included by those kernels only.
//
// A tile is stored as any other. 64 columns are a head or a part of one: the cta that stores the
// last tile of a head reads the head back for its rows of x, and norms, rotates and appends it as
// rope_append.cu does (rope_lanes.h). With 64 dims a head no ctas meet for it.
#ifndef BATON_KERNELS_CUDA_GEMM_ROPE_H_
#define BATON_KERNELS_CUDA_GEMM_ROPE_H_

#include <cstdint>

#include "kernels/cuda/gemm_spread.h"
#include "kernels/cuda/rope_lanes.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {

// See the file comment.
struct RopeTail {
  static constexpr uint32_t kRuns = 1;
  static_assert(kRopeThreads == kRowsThreads);

  RopeAppendParams rope;
  uint32_t* arrivals;  // [group of kGroup rows][head]; zero before and after

  template <uint32_t kGroup>
  BATON_DEVICE void Finish(const GemmParams& params, const RowsMemory& memory,
                           const RowsSums<kGroup>& sums) const {
    StoreTail{}.Finish<kGroup>(params, memory, sums);
    // Heads are read by other threads than have stored them.
    simt::sync_block();
    const uint32_t tiles_a_head = rope.kv.head_dim / kGemmRowTile;
    if (tiles_a_head > 1 && !IsLastOfHead(tiles_a_head, memory)) return;
    if (simt::thread() >= kRowsThreads) return;
    const uint32_t first_row = simt::block().z * kGroup;
    const uint32_t end = first_row + kGroup < params.m ? first_row + kGroup : params.m;
    const uint32_t lanes = rope.kv.head_dim / kVec;
    for (uint32_t row = first_row; row < end; row += kRowsThreads / lanes) {
      AppendRow(row + simt::thread() / lanes, end, simt::block().x / tiles_a_head);
    }
  }

 private:
  // Whether this cta stored the last tile of its head, which it may read then. All threads call.
  BATON_DEVICE bool IsLastOfHead(uint32_t tiles_a_head, const RowsMemory& memory) const {
    if (simt::thread() == 0) {
      const uint32_t num_heads = simt::grid().x / tiles_a_head;
      uint32_t* arrived = arrivals + simt::block().z * num_heads + simt::block().x / tiles_a_head;
      simt::fence();
      *memory.is_last = simt::atomic_add(arrived, 1) == tiles_a_head - 1 ? 1 : 0;
      simt::fence();
      if (*memory.is_last != 0) simt::atomic_exchange(arrived, 0);
    }
    simt::sync_block();
    return *memory.is_last != 0;
  }

  // A lane's part of a head of one row. All lanes of a warp call, for rows beyond the end too.
  BATON_DEVICE void AppendRow(uint32_t row, uint32_t end, uint32_t head) const {
    const uint32_t sequence = simt::guard(row < end) ? rope.sequences[row] : kPaddingRow;
    const bool is_head = simt::guard(sequence != kPaddingRow);
    const uint32_t position = is_head ? rope.positions[row] : 0;
    const RopePlace place = {
        row, sequence, position, head, simt::thread() % (rope.kv.head_dim / kVec), is_head};
    if (rope.kv.element == KvElement::kFp8) {
      AppendHead<KvElement::kFp8>(rope, place);
    } else {
      AppendHead<KvElement::kBf16>(rope, place);
    }
  }
};

using RopedLaunch = TailLaunch<RopeTail>;

// The launches that GemmRope chooses from. `path` is not kAuto.
absl::Status LaunchRopedRows(const RopedLaunch& launch, GemmPath path, void* stream);
absl::Status LaunchRopedNarrow(const RopedLaunch& launch, const NormedRows& norm, void* stream);

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_GEMM_ROPE_H_
