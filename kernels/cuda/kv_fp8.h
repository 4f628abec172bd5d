// K and V in fp8 on a device: a row (one token's K or V of one head) is head_dim e4m3 codes and a
// scale 2^e as bf16; element = code * 2^e, which bf16 holds exactly, so attention over fp8 is
// attention over those bf16. Pure; any thread, host or device.
//
// The largest magnitude of a row becomes a code in (224, 448], so a code is the element rounded to
// nearest even once: within 2^-4 of it, or within 2^(e - 10) (2^-17 of the row's largest) where
// that is more. e is in [-51, 7]: elements beyond 57344 become 57344, those of rows below 2^-44
// lose bits earlier, and what is stored is zero or at least 2^-60 (attention_params.h). A NaN or an
// infinity in a row makes all of it NaN, by its scale; its codes are zeros and 0x7F and mean
// nothing.
//
// Order of a row's codes: byte 2j + h of sixteen holds dim 8h + j. The four bytes that ldmatrix
// gives a lane of K's row are then k (2t, 2t + 8, 2t + 1, 2t + 9) of its m16n8k16 step.
// ldmatrix.trans gives the lane two bytes of each of two rows of V, and these are n and n + 8. So
// neither needs a shuffle, and no product changes its place in a sum.
#ifndef BATON_KERNELS_CUDA_KV_FP8_H_
#define BATON_KERNELS_CUDA_KV_FP8_H_

#include <bit>
#include <cstdint>

namespace baton::kernels::cuda {

inline constexpr int32_t kMinFp8Exponent = -51;
inline constexpr int32_t kMaxFp8Exponent = 7;
inline constexpr uint16_t kNanFp8Scale = 0x7FC0;

// Where a dim's code lies in its row.
constexpr uint32_t Fp8Place(uint32_t dim) { return dim / 16 * 16 + dim % 8 * 2 + dim % 16 / 8; }

// The scale, bits of bf16, of a row whose largest magnitude has these bits of bf16.
constexpr uint16_t Fp8Scale(uint32_t largest) {
  if (largest >= 0x7F80u) return kNanFp8Scale;
  // 1.m * 2^E: up to 1.8125 a code of 2^8 rounds to 448 at most; above, one of 2^7 has 256.
  const int32_t exponent = static_cast<int32_t>((largest + 23) >> 7) - 127 - 8;
  const int32_t low = exponent < kMinFp8Exponent ? kMinFp8Exponent : exponent;
  return static_cast<uint16_t>(((low > kMaxFp8Exponent ? kMaxFp8Exponent : low) + 127) << 7);
}

// The factor that turns elements into codes: 1 / scale, 0 for a row of NaN.
constexpr float Fp8Inverse(uint16_t scale) {
  return scale == kNanFp8Scale
             ? 0.0f
             : std::bit_cast<float>((uint32_t{254} - (uint32_t{scale} >> 7)) << 23);
}

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_KV_FP8_H_
