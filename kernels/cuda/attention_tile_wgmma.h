// A warpgroup's share of attention by wgmma: 64 pairs against a tile of 64 keys, with the bits of
// attention_tile.h, whose fragments a lane has. Rows in shared memory are SharedRows::kTiles; what
// threads wrote there went through fence_proxy_async. All 128 threads call.
#ifndef BATON_KERNELS_CUDA_ATTENTION_TILE_WGMMA_H_
#define BATON_KERNELS_CUDA_ATTENTION_TILE_WGMMA_H_

#include <cstdint>

#include "kernels/cuda/attention_tile.h"
#include "kernels/simt/device.h"

namespace baton::cuda {
inline namespace BATON_BODY {

// scores [kTileKeys / 8] = q K^T of 64 pairs.
template <uint32_t kDim>
BATON_DEVICE void MultiplyKeyTiles(const Vec16 (*q)[kDim / kVec], const Vec16 (*k)[kDim / kVec],
                                   FragmentC (&scores)[kTileKeys / 8]) {
  constexpr uint32_t kSteps = simt::kTileColumns / 16;  // of a tile
  constexpr uint32_t kTileChunks = kTileKeys * simt::kTileColumns / kVec;
  simt::wgmma_fence();
  BATON_UNROLL
  for (uint32_t tile = 0; tile < kDim / simt::kTileColumns; ++tile) {
    const simt::TileDescriptor a = simt::describe_tile(q[0] + tile * kTileChunks);
    const simt::TileDescriptor b = simt::describe_tile(k[0] + tile * kTileChunks);
    BATON_UNROLL
    for (uint32_t step = 0; step < kSteps; ++step) {
      simt::wgmma_bf16_m64k16(scores, TileStep(a, step), TileStep(b, step),
                              simt::guard(tile > 0 || step > 0));
    }
  }
  simt::wgmma_commit();
  simt::wgmma_finish(scores);
}

// sums += p V of 64 keys.
template <uint32_t kDim>
BATON_DEVICE void AddValueTiles(const FragmentA (&weights)[kTileKeys / 16],
                                const Vec16 (*v)[kDim / kVec], SplitState<kDim>& split) {
  constexpr uint32_t kTileBytes = kTileKeys * simt::kTileColumns * sizeof(Bf16);
  const simt::ColumnsDescriptor values = simt::describe_columns(v[0], kTileBytes);
  simt::wgmma_fence();
  BATON_UNROLL
  for (uint32_t j = 0; j < kTileKeys / 16; ++j) {
    simt::wgmma_bf16_m64k16(split.sums, weights[j], ColumnsStep(values, j));
  }
  simt::wgmma_commit();
  simt::wgmma_finish(split.sums, weights);
}

}  // namespace BATON_BODY
}  // namespace baton::cuda

#endif  // BATON_KERNELS_CUDA_ATTENTION_TILE_WGMMA_H_
