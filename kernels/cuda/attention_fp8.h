// K and V in fp8 (kv_fp8.h) as operands of attention_tile.h: exact, so a row has the bits that bf16
// of the same values gives. Included by the attention kernels.
//
// Decode turns codes into bf16 in the registers they are multiplied from: a lane's four bytes of K
// or V become two operands by nine instructions, and shared memory is touched half as often as with
// bf16. In prefill four warps multiply with the same codes, so the cta turns them into bf16 rows in
// shared memory once; in registers each warp would spend twice the time of its products on it.
#ifndef BATON_KERNELS_CUDA_ATTENTION_FP8_H_
#define BATON_KERNELS_CUDA_ATTENTION_FP8_H_

#include <cstdint>

#include "kernels/cuda/attention_items.h"
#include "kernels/cuda/attention_tile.h"
#include "kernels/cuda/kv_fp8.h"
#include "kernels/simt/device.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {

// Two keys' scales in one register, the lower key's in the lower half, each times 2^120.
using ScalePair = uint32_t;

// A code's bits, shifted to where bf16 has sign, exponent and mantissa, are its value times 2^-120,
// subnormals included; the scale's factor gives it back.
BATON_DEVICE ScalePair WithOffset(uint32_t scales) {
  constexpr uint32_t kTwoTo120 = 0x7B807B80u;
  return simt::mul_bf16x2(scales, kTwoTo120);
}

// Bytes 0 and 2 of four, and 1 and 3, as two bf16; exact.
BATON_DEVICE uint32_t EvenCodes(uint32_t four, ScalePair scales) {
  return simt::mul_bf16x2(simt::and_or(four << 8, 0x80008000u, four << 4 & 0x07F007F0u), scales);
}
BATON_DEVICE uint32_t OddCodes(uint32_t four, ScalePair scales) {
  return simt::mul_bf16x2(simt::and_or(four, 0x80008000u, four >> 4 & 0x07F007F0u), scales);
}

// The scale of one key of a tile in both halves.
BATON_DEVICE ScalePair ScaleOfKey(const Vec16* scales, uint32_t key) {
  const uint32_t pair = scales[key / kVec].words[key % kVec / 2];
  const uint32_t scale = key % 2 == 0 ? pair & 0xFFFFu : pair >> 16;
  return WithOffset(scale | scale << 16);
}

// The scales of keys `key`, even, and key + 1 of a tile whose first is `first_key`. A value that
// the item does not see must be zero, for its weight of zero would leave a NaN alone.
BATON_DEVICE ScalePair ScalesOfValues(const Vec16* scales, const KeyRange& seen, uint32_t first_key,
                                      uint32_t key) {
  uint32_t pair = scales[key / kVec].words[key % kVec / 2];
  if (!seen.Has(first_key + key)) pair &= 0xFFFF0000u;
  if (!seen.Has(first_key + key + 1)) pair &= 0xFFFFu;
  return WithOffset(pair);
}

// scores [kKeys / 8] += q K^T of the warp's sixteen pairs. Keys that a pair does not see may give
// anything.
template <uint32_t kDim, uint32_t kKeys>
BATON_DEVICE void MultiplyCodes(const Vec16 (*q)[kDim / kVec], const CodedKeys<kDim, kKeys>& k,
                                FragmentC* scores) {
  constexpr uint32_t kChunks = kKeyChunks<KvElement::kFp8, kDim>;
  const uint32_t lane = simt::lane();
  const uint32_t pair = lane % 16;
  const uint32_t key = lane % 8 + lane / 16 * 8;
  ScalePair scales[kKeys / 8];
  BATON_UNROLL
  for (uint32_t n = 0; n < kKeys / 8; ++n) scales[n] = ScaleOfKey(k.scales, 8 * n + lane / 4);
  [[maybe_unused]] constexpr uint32_t kSteps = kDim == 256 ? 1 : kChunks / 2;  // as kCopies
  BATON_UNROLL_BY(kSteps)
  for (uint32_t chunk = 0; chunk < kChunks; chunk += 2) {
    FragmentA rows[2];
    BATON_UNROLL
    for (uint32_t step = 0; step < 2; ++step) {
      const uint32_t at = 2 * (chunk + step) + lane / 16;
      const Matrices a = simt::ldmatrix_x4(&q[pair][Swizzled(pair, at)]);
      rows[step] = {{a.regs[0], a.regs[1], a.regs[2], a.regs[3]}};
    }
    BATON_UNROLL
    for (uint32_t j = 0; j < kKeys / 16; ++j) {
      const uint32_t r = 16 * j + key;
      const Matrices b =
          simt::ldmatrix_x4(&k.rows[r][KeyChunkAt<kChunks>(r, chunk + lane / 8 % 2)]);
      BATON_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {  // eight keys i / 2, sixteen dims i % 2
        const ScalePair scale = scales[2 * j + i / 2];
        simt::mma_bf16_m16n8k16(
            scores[2 * j + i / 2], rows[i % 2],
            FragmentB{{EvenCodes(b.regs[i], scale), OddCodes(b.regs[i], scale)}});
      }
    }
  }
}

// The first of some keys, and which of them the item sees.
struct SeenTile {
  const KeyRange& seen;
  uint32_t first_key;
};

// sums += p V of kKeys keys; `weights` [kKeys / 16]. It adds kSums dims, from chunk `first` on.
template <uint32_t kDim, uint32_t kKeys, uint32_t kSums = kDim>
BATON_DEVICE void AddCodes(const FragmentA* weights, const CodedKeys<kDim, kKeys>& v,
                           const SeenTile& tile, SplitState<kSums>& split, uint32_t first = 0) {
  constexpr uint32_t kChunks = kKeyChunks<KvElement::kFp8, kDim>;
  const uint32_t lane = simt::lane();
  BATON_UNROLL
  for (uint32_t j = 0; j < kKeys / 16; ++j) {
    const uint32_t r = 16 * j + lane % 16;
    const uint32_t key = 16 * j + lane % 4 * 2;
    const ScalePair low = ScalesOfValues(v.scales, tile.seen, tile.first_key, key);
    const ScalePair high = ScalesOfValues(v.scales, tile.seen, tile.first_key, key + 8);
    BATON_UNROLL
    for (uint32_t chunk = 0; chunk < kSums / 16; chunk += 2) {
      const Matrices b =
          simt::ldmatrix_x4_trans(&v.rows[r][KeyChunkAt<kChunks>(r, first + chunk + lane / 16)]);
      BATON_UNROLL
      for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t near = b.regs[2 * i];
        const uint32_t far = b.regs[2 * i + 1];
        FragmentC* const sums = split.sums + 2 * (chunk + i);
        simt::mma_bf16_m16n8k16(sums[0], weights[j],
                                FragmentB{{EvenCodes(near, low), EvenCodes(far, high)}});
        simt::mma_bf16_m16n8k16(sums[1], weights[j],
                                FragmentB{{OddCodes(near, low), OddCodes(far, high)}});
      }
    }
  }
}

// The keys as rows of bf16, by kThreads threads; zeros where the item does not see one.
template <uint32_t kDim, uint32_t kKeys, uint32_t kThreads, SharedRows kAs>
BATON_DEVICE void WidenKeys(const CodedKeys<kDim, kKeys>& from, const SeenTile& tile,
                            Vec16 (*to)[kDim / kVec]) {
  constexpr uint32_t kChunks = kKeyChunks<KvElement::kFp8, kDim>;
  constexpr uint32_t kRows = kThreads / kChunks;
  // Larger ones spill, as in CopyRows.
  [[maybe_unused]] constexpr uint32_t kTurns = kDim == 128 ? kKeys / kRows : 1;
  [[maybe_unused]] constexpr uint32_t kHalves = kDim == 256 ? 1 : 2;
  const uint32_t chunk = simt::thread() % kChunks;
  BATON_UNROLL_BY(kTurns)
  for (uint32_t first = 0; first < kKeys; first += kRows) {
    const uint32_t row = first + simt::thread() / kChunks;
    const ScalePair any = ScaleOfKey(from.scales, row);  // a branch costs more than the load
    const ScalePair scale = tile.seen.Has(tile.first_key + row) ? any : 0;
    const Vec16 codes = from.rows[row][KeyChunkAt<kChunks>(row, chunk)];
    BATON_UNROLL_BY(kHalves)
    for (uint32_t half = 0; half < 2; ++half) {  // dims [8 half, 8 half + 8) of sixteen
      Vec16 wide;
      BATON_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t four = codes.words[i];
        wide.words[i] = half == 0 ? EvenCodes(four, scale) : OddCodes(four, scale);
      }
      *ChunkOf<kAs, kDim, kKeys>(to, row, 2 * chunk + half) = wide;
    }
  }
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_ATTENTION_FP8_H_
