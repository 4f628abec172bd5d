// Four elements of a lane of a head, and what K and V become in fp8: the order of rope_append.cu.
// Included by kernels only.
#ifndef BATON_KERNELS_CUDA_ROPE_CODES_H_
#define BATON_KERNELS_CUDA_ROPE_CODES_H_

#include <cstdint>

#include "kernels/cuda/kv_fp8.h"
#include "kernels/cuda/row_shapes.h"
#include "kernels/simt/device.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {

inline constexpr uint32_t kQuad = 4;  // elements of a half of a lane

// Four bf16 that a lane moves in one access.
struct alignas(8) Quad {
  uint32_t words[2];
};

BATON_DEVICE float QuadElement(const Quad& quad, uint32_t i) {
  const uint32_t word = quad.words[i / 2];
  return simt::from_bf16({static_cast<uint16_t>(i % 2 == 0 ? word : word >> 16)});
}

BATON_DEVICE uint32_t Larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

// Bits of bf16 of the largest magnitude; the order of the bits is that of the numbers.
BATON_DEVICE uint32_t LargestOf(const Quad& quad) {
  uint32_t largest = 0;
  BATON_UNROLL
  for (const uint32_t word : quad.words) {
    largest = Larger(largest, Larger(word & 0x7FFFu, word >> 16 & 0x7FFFu));
  }
  return largest;
}

// The largest of all elements of the head, which all its lanes get. All lanes of the warp call it.
BATON_DEVICE uint32_t LargestOfHead(const Quad& low, const Quad& high, uint32_t lanes) {
  uint32_t largest = Larger(LargestOf(low), LargestOf(high));
  for (uint32_t step = lanes / 2; step > 0; step /= 2) {
    largest = Larger(largest, simt::shfl_xor(largest, step));
  }
  return largest;
}

// Four codes of the lane and of the one with the dims that are eight away, in the order of the
// piece: those of the first two dims of both in the lane of the lower dims, else of the last two.
BATON_DEVICE uint32_t CodesOf(const Quad& quad, float inverse, uint32_t lane) {
  const uint32_t own =
      simt::to_e4m3x2(QuadElement(quad, 0) * inverse, QuadElement(quad, 1) * inverse) |
      simt::to_e4m3x2(QuadElement(quad, 2) * inverse, QuadElement(quad, 3) * inverse) << 16;
  const uint32_t other = simt::shfl_xor(own, 2u);
  const bool is_lower = lane % 4 < 2;
  const uint32_t lower = is_lower ? own : other >> 16;
  const uint32_t upper = is_lower ? other : own >> 16;
  return (lower & 0xFFu) | (upper & 0xFFu) << 8 | (lower & 0xFF00u) << 8 | (upper & 0xFF00u) << 16;
}

// A head's K or V in fp8: this lane's codes, and its scale.
struct CodedHead {
  uint32_t low;   // of [0, head_dim / 2)
  uint32_t high;  // of [head_dim / 2, head_dim)
  uint16_t scale;
};

// All lanes of the warp call it.
BATON_DEVICE CodedHead CodeHead(const Quad& low, const Quad& high, uint32_t lane, uint32_t lanes) {
  const uint16_t scale = Fp8Scale(LargestOfHead(low, high, lanes));
  const float inverse = Fp8Inverse(scale);
  return {CodesOf(low, inverse, lane), CodesOf(high, inverse, lane), scale};
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_ROPE_CODES_H_
