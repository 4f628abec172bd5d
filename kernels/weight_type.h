// Weight types: the element formats of a matrix in a model file, as kernels see them. Pure data;
// any thread.
//
// The element of a quantised type is scale * q (+ min) with a small integer q. After unpacking
// there is one scale (and min) per 32 elements of a row, or two scales (one for each 16). A new
// type plugs in by a row in the table of weight_type.cc. The row has its raw block, the function
// that takes 32 elements of it apart, and the packed forms of its digits and scales. Packing and
// all kernels work from those.
#ifndef BATON_KERNELS_WEIGHT_TYPE_H_
#define BATON_KERNELS_WEIGHT_TYPE_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace baton::kernels {

// Elements that share one scale, in weights and in activations.
inline constexpr uint32_t kQuantBlock = 32;

// Elements of a super-block (K quants): they share an fp16 scale that 6- or 8-bit factors multiply.
inline constexpr uint32_t kSuperBlock = 256;

enum class WeightType : uint8_t {
  kF32 = 0,
  kF16,
  kBf16,
  kQ4_0,
  kQ4_1,
  kQ8_0,
  kQ5_0,
  kQ5_1,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kMxfp4,
  kIq4Nl,
  kIq4Xs,
  kQ3_K,
  kQ2_K,
};
inline constexpr int kNumWeightTypes = 16;

// How the integers of a quantised type are stored after packing.
enum class PackedDigits : uint8_t {
  kNone,         // float type
  kNibbles,      // 0..15
  kNibblesOff8,  // -8..7, stored as q + 8
  kBytes,        // -128..127
  kFive,         // 0..31: a nibble and a bit plane
  kFiveOff16,    // -16..15, stored as q + 16
  kSixOff32,     // -32..31, stored as q + 32: a nibble and two-bit planes
  kFp4,          // of kFp4Values, stored as the index
  kIq4,          // of kIq4Values, stored as the index
  kThree,        // -4..3, stored as three bits of two's complement
  kTwo,          // 0..3
};

// e2m1 numbers (OCP Microscaling), doubled so that they are integers; bit 3 is the sign.
inline constexpr int8_t kFp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// The 16 levels of IQ4_NL and IQ4_XS (kvalues_iq4nl of ggml): finer near zero.
inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};

// How the scales of a quantised type are stored after packing.
enum class PackedScales : uint8_t {
  kNone,         // float type
  kHalf,         // fp16 scale
  kHalfAndMin,   // fp16 scale, fp16 min
  kSuperAndMin,  // of 256: fp16 scale and min; of 32: a byte for each that it is multiplied by
  kSuper,        // of 256: fp16 scale; of 32: a signed byte that it is multiplied by
  kSuperTwo,     // of 256: fp16 scale; of 32: a signed byte for each 16 that it is multiplied by
  kPowerOfTwo,   // a byte e; scale 2^(e - 128)
  // 256 weights have an fp16 scale and min. Each 16 of them have a byte: its low nibble multiplies
  // the scale, its high nibble the min.
  kSuperTwoAndMins,
};

constexpr bool HasMin(PackedScales scales) {
  return scales == PackedScales::kHalfAndMin || scales == PackedScales::kSuperAndMin ||
         scales == PackedScales::kSuperTwoAndMins;
}
// Scales of one block of 32, and as many mins in a type that has any.
constexpr int ScalesPerBlock(PackedScales scales) {
  return scales == PackedScales::kSuperTwo || scales == PackedScales::kSuperTwoAndMins ? 2 : 1;
}

// One block of a quantised row in its coded form; ScalesOf says what it means.
struct WeightBlock {
  int8_t q[kQuantBlock];
  uint16_t scale;  // IEEE half bits; of the super-block where there is one
  uint16_t min;    // as scale, to be added (so a K quant's dmin, negated); 0 without HasMin
  // kSuperAndMin: of scale, of min; kSuper and kSuperTwo: of scale; kSuperTwoAndMins: nibbles of
  // both; kPowerOfTwo: e.
  uint8_t factors[2];
};

// The scales of a block, which give its elements: x[i] = scale[i / 16] * q[i] + min[i / 16], each
// exact in fp32.
struct BlockScales {
  float scale[2];
  float min[2];
};

// The properties of a weight type; one row of a constant table.
struct WeightTraits {
  std::string_view name;    // "Q4_1", as in model files
  uint32_t block_elements;  // elements of one raw block (1 for float types)
  uint32_t block_bytes;     // bytes of one raw block
  PackedDigits digits;
  PackedScales scales;
  // Takes the idx-th 32 elements of one raw block apart; null for float types.
  void (*unpack)(const std::byte* raw, uint32_t idx, WeightBlock* block);

  bool quantized() const { return unpack != nullptr; }
  bool has_min() const { return HasMin(scales); }
};

const WeightTraits& TraitsOf(WeightType type);
BlockScales ScalesOf(PackedScales scales, const WeightBlock& block);
// False when a scale or min of the block is an infinity or a NaN.
bool HasFiniteScales(PackedScales scales, const WeightBlock& block);

// Bytes of one raw row of `k` elements; k a multiple of block_elements.
inline size_t RawRowBytes(WeightType type, uint32_t k) {
  const WeightTraits& traits = TraitsOf(type);
  return size_t{k} / traits.block_elements * traits.block_bytes;
}

}  // namespace baton::kernels

#endif  // BATON_KERNELS_WEIGHT_TYPE_H_
