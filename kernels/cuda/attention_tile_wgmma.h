// A warpgroup's share of attention by wgmma: 64 pairs against a tile of 64 keys, with the bits of
// attention_tile.h, whose fragments a lane has. Rows in shared memory are SharedRows::kTiles; what
// threads wrote there went through fence_proxy_async. All 128 threads call.
#ifndef BATON_KERNELS_CUDA_ATTENTION_TILE_WGMMA_H_
#define BATON_KERNELS_CUDA_ATTENTION_TILE_WGMMA_H_

#include <bit>
#include <cstdint>

#include "kernels/cuda/attention_tile.h"
#include "kernels/simt/device.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {

// Begins scores [kTileKeys / 8] = q K^T of 64 pairs, which wgmma_finish ends.
template <uint32_t kDim>
BATON_DEVICE void BeginKeyTiles(const Vec16 (*q)[kDim / kVec], const Vec16 (*k)[kDim / kVec],
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
}

// sums += p V of 64 keys.
template <uint32_t kDim>
BATON_DEVICE void AddValueTiles(const FragmentA (&weights)[kTileKeys / 16],
                                const Vec16 (*v)[kDim / kVec], SplitState<kDim>& split) {
  constexpr uint32_t kTileBytes = kTileKeys * simt::kTileColumns * sizeof(Bf16);
  const simt::ColumnsDescriptor values = simt::describe_columns(v[0], kTileBytes);
  simt::wgmma_fence();  // sums were multiplied
  BATON_UNROLL
  for (uint32_t j = 0; j < kTileKeys / 16; ++j) {
    simt::wgmma_bf16_m64k16(split.sums, weights[j], ColumnsStep(values, j));
  }
  simt::wgmma_commit();
  simt::wgmma_finish(split.sums, weights);
}

// Exp2 of x in [-126, 0], by two instructions less. Its n goes to the exponent of 2^f, which stays
// that of a normal number: at n = -126 f is not negative, and 2^f at least 1.
BATON_DEVICE float Exp2InRange(float x) {
  const float biased = x + kExp2Round;
  const float p = Exp2OfFraction(x - (biased - kExp2Round));
  return std::bit_cast<float>(std::bit_cast<uint32_t>(p) + (std::bit_cast<uint32_t>(biased) << 23));
}

// Adds two neighbouring weights, rounded, to a row's; they as an operand. kInRange: of Exp2InRange.
template <bool kInRange>
BATON_DEVICE uint32_t WeighPair(float low, float high, float& weight) {
  const uint32_t pair =
      kInRange ? simt::pack_bf16(Exp2InRange(low), Exp2InRange(high)) : Pair(Exp2(low), Exp2(high));
  weight = AddPair(weight, pair);
  return pair;
}

// The values that a lane's two rows subtract from a tile's scores.
struct TileBase {
  float of_row[2];
};

// The weights of both rows, n ascending.
template <bool kInRange>
BATON_DEVICE void WeighScores(const FragmentC (&scores)[kTileKeys / 8], const TileBase& base,
                              float (&weight)[2], FragmentA (&weights)[kTileKeys / 16]) {
  BATON_UNROLL
  for (uint32_t n = 0; n < kTileKeys / 8; ++n) {
    BATON_UNROLL
    for (uint32_t half = 0; half < 2; ++half) {
      weights[n / 2].regs[n % 2 * 2 + half] =
          WeighPair<kInRange>(scores[n].values[2 * half] - base.of_row[half],
                              scores[n].values[2 * half + 1] - base.of_row[half], weight[half]);
    }
  }
}

// scores = scaled products, masked in a tile that not all of the warp's pairs see.
BATON_DEVICE void MaskProducts(const TileScores& tile, const PairRows& rows,
                               const FragmentC (&products)[kTileKeys / 8],
                               FragmentC (&scores)[kTileKeys / 8]) {
  BATON_UNROLL
  for (uint32_t n = 0; n < kTileKeys / 8; ++n) {
    BATON_UNROLL
    for (uint32_t v = 0; v < 4; ++v) scores[n].values[v] = products[n].values[v] * tile.scale;
  }
  if (rows.SeeAll(tile.first_key, kTileKeys)) return;
  const uint32_t first = tile.first_key + simt::lane() % 4 * 2;
  BATON_UNROLL
  for (uint32_t n = 0; n < kTileKeys / 8; ++n) {
    BATON_UNROLL
    for (uint32_t v = 0; v < 4; ++v) {
      if (!rows.keys[v / 2].Has(first + 8 * n + v % 2)) scores[n].values[v] = kNothing;
    }
  }
}

// WeighTile of scores of MaskProducts, with its bits. Scores are rarely further than 126 from their
// row's largest, or NaN, unless they are masked, so one comparison of a row's least stands for
// those of each score; sums are multiplied only when that moves them.
template <uint32_t kDim>
BATON_DEVICE void WeighMasked(const FragmentC (&scores)[kTileKeys / 8], SplitState<kDim>& split,
                              FragmentA (&weights)[kTileKeys / 16]) {
  float largest[2] = {kNothing, kNothing};
  float least[2] = {-kNothing, -kNothing};
  BATON_UNROLL
  for (const FragmentC& score : scores) {
    BATON_UNROLL
    for (uint32_t v = 0; v < 4; ++v) {
      largest[v / 2] = simt::larger_or_nan(largest[v / 2], score.values[v]);
      least[v / 2] = simt::smaller(least[v / 2], score.values[v]);
    }
  }
  TileBase base;
  float factor[2];
  bool is_in_range = true;
  bool is_moved = false;
  BATON_UNROLL
  for (uint32_t half = 0; half < 2; ++half) {
    BATON_UNROLL
    for (uint32_t step = 1; step <= 2; step *= 2) {
      largest[half] = simt::larger_or_nan(largest[half], simt::shfl_xor(largest[half], step));
    }
    const float before = split.largest[half];
    const float after = largest[half] > before ? largest[half] : before;
    base.of_row[half] = after == kNothing ? 0.0f : after;
    factor[half] = Exp2(before - base.of_row[half]);
    // A NaN makes its row one, so the maximum may be any.
    is_in_range &= largest[half] == largest[half] && least[half] - base.of_row[half] >= -126.0f;
    is_moved |= before != kNothing && factor[half] != 1.0f;
    split.largest[half] = after;
    split.weight[half] *= factor[half];
  }
  if (is_in_range) {
    WeighScores<true>(scores, base, split.weight, weights);
  } else {
    WeighScores<false>(scores, base, split.weight, weights);
  }
  if (!is_moved) return;  // sums of no key are zero
  BATON_UNROLL
  for (FragmentC& c : split.sums) {
    BATON_UNROLL
    for (uint32_t v = 0; v < 4; ++v) c.values[v] *= factor[v / 2];
  }
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_ATTENTION_TILE_WGMMA_H_
