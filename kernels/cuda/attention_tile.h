// One warp's share of attention: sixteen (token, head) pairs against tiles of 64 keys on the tensor
// cores. Included by the attention kernels, which differ in who walks the tiles, and by their
// reference.
//
// The sum of a row, the same at every length and in every kernel (numerics "attn.mma.1"):
//  1. Tiles of 64 keys and splits of 256 keys lie at absolute positions. A split starts at maximum
//     -inf, weight 0 and sums 0.
//  2. Scores of a tile: mma.m16n8k16 from zero, k ascending over the dims; times scale log2(e),
//     once, in fp32; -inf where the row does not see the key.
//  3. m' = max(m, tile). weight and sums are multiplied by 2^(m - m'), which is exactly 1 when the
//     maximum stays. p = 2^(s - m') by Exp2, rounded to bf16. Both sums take the same rounded p, so
//     weights add up to 1 and a constant V comes out as itself.
//  4. Lane t of a row's four adds its p of keys 8n + 2t, 8n + 2t + 1, n ascending; at the split's
//     end (w0 + w1) + (w2 + w3). sums += p v: mma.m16n8k16, keys ascending.
//  5. Splits fold ascending, the first that sees a key by copy: m' = max; total = fma(split,
//     2^(m_split - m'), total * 2^(m_total - m')). Last: sums * (1 / weight), rounded to bf16.
// A tile, or a split, of which a row sees nothing leaves the row's bits alone: factors are 1, its p
// are 0, and a weight of 0 marks a split that does not fold. So skipping it changes nothing.
#ifndef BATON_KERNELS_CUDA_ATTENTION_TILE_H_
#define BATON_KERNELS_CUDA_ATTENTION_TILE_H_

#include <bit>
#include <cstdint>

#include "kernels/cuda/attention_items.h"
#include "kernels/cuda/row_shapes.h"
#include "kernels/simt/device.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {

using simt::FragmentA;
using simt::FragmentB;
using simt::FragmentC;
using simt::Matrices;

inline constexpr float kNothing = -__builtin_inff();  // the maximum of no keys

inline constexpr float kExp2Round = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer

// 2^f for |f| <= 1/2, by Cephes' polynomial (http://www.netlib.org/cephes, exp2f).
BATON_DEVICE float Exp2OfFraction(float f) {
  float p = 1.535336188319500e-4f;
  p = simt::fma(p, f, 1.339887440266574e-3f);
  p = simt::fma(p, f, 9.618437357674640e-3f);
  p = simt::fma(p, f, 5.550332471162809e-2f);
  p = simt::fma(p, f, 2.402264791363012e-1f);
  p = simt::fma(p, f, 6.931472028550421e-1f);
  return simt::fma(p, f, 1.0f);
}

// 2^x for x <= 0: exactly 1 at 0, 0 below -126, NaN for NaN; relative error below 1.5e-7. x = n + f
// with |f| <= 1/2.
BATON_DEVICE float Exp2(float x) {
  const float clamped = x < -126.0f ? -126.0f : x;
  const float biased = clamped + kExp2Round;
  const float p = Exp2OfFraction(clamped - (biased - kExp2Round));
  const uint32_t power = std::bit_cast<uint32_t>(biased) - 0x4B400000u;
  const float scale = std::bit_cast<float>((power + 127) << 23);
  return x < -126.0f ? 0.0f : p * scale;
}

// A split so far: of each of a lane's two rows the maximum (in units of log2), the lane's part of
// the weight, and head_dim / 4 of the sums.
template <uint32_t kDim>
struct SplitState {
  FragmentC sums[kDim / 8];
  float largest[2];
  float weight[2];
};

template <uint32_t kDim>
BATON_DEVICE void Begin(SplitState<kDim>& split) {
  BATON_UNROLL
  for (FragmentC& c : split.sums) c = {{0.0f, 0.0f, 0.0f, 0.0f}};
  BATON_UNROLL
  for (uint32_t half = 0; half < 2; ++half) {
    split.largest[half] = kNothing;
    split.weight[half] = 0.0f;
  }
}

// scores [kKeys / 8] += q K^T of the warp's sixteen pairs.
template <uint32_t kDim, uint32_t kKeys>
BATON_DEVICE void MultiplyKeys(const Vec16 (*q)[kDim / kVec], const Vec16 (*k)[kDim / kVec],
                               FragmentC* scores) {
  const uint32_t lane = simt::lane();
  const uint32_t pair = lane % 16;
  const uint32_t key = lane % 8 + lane / 16 * 8;
  [[maybe_unused]] constexpr uint32_t kSteps = kDim == 256 ? 2 : kDim / 16;  // as kCopies
  BATON_UNROLL_BY(kSteps)
  for (uint32_t chunk = 0; chunk < kDim / kVec; chunk += 2) {
    const Matrices a = simt::ldmatrix_x4(&q[pair][Swizzled(pair, chunk + lane / 16)]);
    const FragmentA rows = {{a.regs[0], a.regs[1], a.regs[2], a.regs[3]}};
    BATON_UNROLL
    for (uint32_t j = 0; j < kKeys / 16; ++j) {
      const uint32_t r = 16 * j + key;
      const Matrices b = simt::ldmatrix_x4(&k[r][Swizzled(r, chunk + lane / 8 % 2)]);
      simt::mma_bf16_m16n8k16(scores[2 * j], rows, FragmentB{{b.regs[0], b.regs[1]}});
      simt::mma_bf16_m16n8k16(scores[2 * j + 1], rows, FragmentB{{b.regs[2], b.regs[3]}});
    }
  }
}

// sums += p V of kKeys keys; `weights` [kKeys / 16]. It adds kSums dims, from chunk `first` on.
template <uint32_t kDim, uint32_t kKeys, uint32_t kSums = kDim>
BATON_DEVICE void AddValues(const FragmentA* weights, const Vec16 (*v)[kDim / kVec],
                            SplitState<kSums>& split, uint32_t first = 0) {
  const uint32_t lane = simt::lane();
  BATON_UNROLL
  for (uint32_t j = 0; j < kKeys / 16; ++j) {
    const uint32_t r = 16 * j + lane % 16;
    BATON_UNROLL
    for (uint32_t chunk = 0; chunk < kSums / kVec; chunk += 2) {
      const Matrices b = simt::ldmatrix_x4_trans(&v[r][Swizzled(r, first + chunk + lane / 16)]);
      simt::mma_bf16_m16n8k16(split.sums[chunk], weights[j], FragmentB{{b.regs[0], b.regs[1]}});
      simt::mma_bf16_m16n8k16(split.sums[chunk + 1], weights[j], FragmentB{{b.regs[2], b.regs[3]}});
    }
  }
}

// Scores are exponents of 2.
BATON_DEVICE float ScoreScale(const AttentionParams& params) {
  return params.scale * 1.44269504088896341f;  // log2(e)
}

// A tile's first key, and what scores are multiplied with.
struct TileScores {
  uint32_t first_key;
  float scale;
};

// Scales and masks the scores of one of a lane's rows; the row's largest, the same in its lanes.
BATON_DEVICE float MaskRow(const TileScores& tile, const PairRows& rows, uint32_t half,
                           FragmentC (&scores)[kTileKeys / 8]) {
  const bool is_whole = rows.SeeAll(tile.first_key, kTileKeys);
  const uint32_t first = tile.first_key + simt::lane() % 4 * 2;
  float largest = kNothing;
  BATON_UNROLL
  for (uint32_t n = 0; n < kTileKeys / 8; ++n) {
    BATON_UNROLL
    for (uint32_t v = 0; v < 2; ++v) {
      float& score = scores[n].values[2 * half + v];
      score *= tile.scale;
      if (!is_whole && !rows.keys[half].Has(first + 8 * n + v)) score = kNothing;
      largest = score > largest ? score : largest;
    }
  }
  BATON_UNROLL
  for (uint32_t step = 1; step <= 2; step *= 2) {
    const float other = simt::shfl_xor(largest, step);
    largest = other > largest ? other : largest;
  }
  return largest;
}

// The base that is subtracted from a tile's scores, and the factor for weight and sums before it.
struct Rise {
  float base;
  float factor;
};

// Moves a row's maximum on to one that has the tile's.
BATON_DEVICE Rise RaiseRow(float of_tile, float& largest) {
  const float before = largest;
  largest = of_tile > before ? of_tile : before;
  const float base = largest == kNothing ? 0.0f : largest;  // -inf less -inf would be NaN
  return {base, Exp2(before - base)};
}

// The weights of a row's two neighbouring keys, as they are multiplied; their part of the weight.
BATON_DEVICE uint32_t WeighPair(const FragmentC& scores, uint32_t half, float base) {
  return Pair(Exp2(scores.values[2 * half] - base), Exp2(scores.values[2 * half + 1] - base));
}
BATON_DEVICE float AddPair(float weight, uint32_t pair) {
  weight += simt::from_bf16({static_cast<uint16_t>(pair)});
  return weight + simt::from_bf16({static_cast<uint16_t>(pair >> 16)});
}

template <uint32_t kDim>
BATON_DEVICE void ScaleSums(float factor, uint32_t half, SplitState<kDim>& split) {
  BATON_UNROLL
  for (FragmentC& c : split.sums) {
    c.values[2 * half] *= factor;
    c.values[2 * half + 1] *= factor;
  }
}

// Turns a tile's scores into weights, as A operands of its sixteens; raises the maximum.
template <uint32_t kDim>
BATON_DEVICE void WeighTile(const TileScores& tile, const PairRows& rows,
                            FragmentC (&scores)[kTileKeys / 8], SplitState<kDim>& split,
                            FragmentA (&weights)[kTileKeys / 16]) {
  BATON_UNROLL
  for (uint32_t half = 0; half < 2; ++half) {
    const Rise rise = RaiseRow(MaskRow(tile, rows, half, scores), split.largest[half]);
    float weight = split.weight[half] * rise.factor;
    BATON_UNROLL
    for (uint32_t n = 0; n < kTileKeys / 8; ++n) {
      const uint32_t pair = WeighPair(scores[n], half, rise.base);
      weights[n / 2].regs[n % 2 * 2 + half] = pair;
      weight = AddPair(weight, pair);
    }
    split.weight[half] = weight;
    ScaleSums(rise.factor, half, split);
  }
}

// Adds up the lanes' parts of the weights.
template <uint32_t kDim>
BATON_DEVICE void End(SplitState<kDim>& split) {
  BATON_UNROLL
  for (float& weight : split.weight) {
    BATON_UNROLL
    for (uint32_t step = 1; step <= 2; step *= 2) weight += simt::shfl_xor(weight, step);
  }
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_ATTENTION_TILE_H_
