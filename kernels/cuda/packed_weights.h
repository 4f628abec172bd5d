// Quantised weights as they lie in a device's memory. Pure; any thread.
//
// A weight is s q (+ m) with the small integer or e4m3 code q of the model file
// (kernels/ARITHMETIC.md), rounded to bf16. The products multiply exactly what a matrix that was
// dequantised to bf16 holds, so a product has the same bits whichever of the two a device
// keeps. (A zero may have the other sign, which no product shows.)
//
// A tile is 16 rows of w by 64 of K, what a warp multiplies of a stage; the tiles of 16 rows follow
// one another by k, what lies beyond the matrix is zero: [ceil(n / 16)][ceil(k / 64)]. In it:
//   digits   of lane l in steps of 16 of K, as its pairs of an A fragment (simt::FragmentA):
//              4 bits: [lane][step] a word; bits 4i.. of it the lower, bits 16 + 4i.. the upper
//                element of pair i
//              8 bits: [step / 2][lane][step % 2] two words; bytes 0 to 3 of word i / 2 are pairs
//                i and i + 1 of it, the lower element first
//              kE4m3: the same words; bytes 0 and 2 are pair i, bytes 1 and 3 pair i + 1
//   scales   [words of a row][16 rows], a word for the 64 of K:
//              kQ4_0, kQ8_0: fp16 s of both groups of 32
//              kQ4_1: the same, then fp16 m of both groups
//              kQ4_K: fp16 d and -dmin of the super-block, then for each group the bytes that they
//                are multiplied by
//              kQ6_K: fp16 d of the super-block (twice), then a signed byte for each step
//              kE4m3: fp32 s times 2^120 (fp8_rows.h)
#ifndef BATON_KERNELS_CUDA_PACKED_WEIGHTS_H_
#define BATON_KERNELS_CUDA_PACKED_WEIGHTS_H_

#include <cstddef>
#include <cstdint>

namespace baton::kernels::cuda {

// kBf16: not packed, row-major.
enum class PackedFormat : uint8_t { kBf16, kQ4_0, kQ4_1, kQ4_K, kQ8_0, kQ6_K, kE4m3 };
inline constexpr PackedFormat kPackedFormats[] = {PackedFormat::kQ4_0, PackedFormat::kQ4_1,
                                                  PackedFormat::kQ4_K, PackedFormat::kQ8_0,
                                                  PackedFormat::kQ6_K, PackedFormat::kE4m3};
inline constexpr uint32_t kNumPackedFormats = 6;

inline constexpr uint32_t kPackedRows = 16;
inline constexpr uint32_t kPackedK = 64;

// The index of a packed format in kPackedFormats.
constexpr uint32_t PackedIndex(PackedFormat format) { return static_cast<uint32_t>(format) - 1; }
static_assert(sizeof(kPackedFormats) / sizeof(kPackedFormats[0]) == kNumPackedFormats &&
              PackedIndex(kPackedFormats[0]) == 0 &&
              PackedIndex(kPackedFormats[kNumPackedFormats - 1]) == kNumPackedFormats - 1);

constexpr uint32_t PackedDigitBits(PackedFormat format) {
  return format == PackedFormat::kQ8_0 || format == PackedFormat::kQ6_K ||
                 format == PackedFormat::kE4m3
             ? 8
             : 4;
}
// The offset that is added to a digit so that it is stored without a sign.
constexpr uint32_t PackedOffset(PackedFormat format) {
  if (format == PackedFormat::kQ8_0 || format == PackedFormat::kQ6_K) return 128;
  return format == PackedFormat::kQ4_0 ? 8 : 0;
}
constexpr uint32_t PackedScaleWords(PackedFormat format) {
  return format == PackedFormat::kQ4_0 || format == PackedFormat::kQ8_0 ||
                 format == PackedFormat::kE4m3
             ? 1
             : 2;
}
constexpr uint32_t PackedDigitBytes(PackedFormat format) {
  return kPackedRows * kPackedK / 8 * PackedDigitBits(format);
}
// A multiple of 16.
constexpr uint32_t PackedTileBytes(PackedFormat format) {
  return PackedDigitBytes(format) + 4 * kPackedRows * PackedScaleWords(format);
}
constexpr uint32_t PackedTilesOfRow(uint32_t k) { return (k - 1) / kPackedK + 1; }
// Bytes of a matrix [n][k] in a packed format; n, k >= 1. Matrices of the same k and format whose n
// are multiples of kPackedRows may be joined by rows.
constexpr size_t PackedBytes(PackedFormat format, uint32_t n, uint32_t k) {
  return size_t{(n - 1) / kPackedRows + 1} * PackedTilesOfRow(k) * PackedTileBytes(format);
}

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_PACKED_WEIGHTS_H_
