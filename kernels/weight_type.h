// Weight types: the element formats of a matrix in a model file, as kernels see them. Pure data;
// any thread.
//
// A quantised type is a format whose element is scale * q (+ min) with a small integer q, one scale
// (and min) per 32 elements of a row. A new one plugs in by a row in the table of weight_type.cc:
// its raw block and the function that takes it apart; packing and all kernels work from that.
#ifndef BATON_KERNELS_WEIGHT_TYPE_H_
#define BATON_KERNELS_WEIGHT_TYPE_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace baton {

// Elements that share one scale, in weights and in activations.
inline constexpr uint32_t kQuantBlock = 32;

enum class WeightType : uint8_t { kF32 = 0, kF16, kBf16, kQ4_0, kQ4_1, kQ8_0 };
inline constexpr int kNumWeightTypes = 6;

// One block of a quantised row: x[i] = scale * q[i] + min.
struct WeightBlock {
  int8_t q[kQuantBlock];
  uint16_t scale;  // IEEE half bits
  uint16_t min;    // IEEE half bits; 0 unless has_min
};

// How the integers of a quantised type are stored after packing.
enum class PackedDigits : uint8_t {
  kNone,         // float type
  kNibbles,      // 0..15
  kNibblesOff8,  // -8..7, stored as q + 8
  kBytes,        // -128..127
};

// What a weight type is; one row of a constant table.
struct WeightTraits {
  std::string_view name;    // "Q4_1", as in model files
  uint32_t block_elements;  // elements of one raw block (1 for float types)
  uint32_t block_bytes;     // bytes of one raw block
  PackedDigits digits;
  bool has_min;
  // Takes one raw block (of kQuantBlock elements) apart; null for float types.
  void (*unpack)(const std::byte* raw, WeightBlock* block);

  bool quantized() const { return unpack != nullptr; }
};

const WeightTraits& TraitsOf(WeightType type);

// Bytes of one raw row of `k` elements; k a multiple of block_elements.
inline size_t RawRowBytes(WeightType type, uint32_t k) {
  const WeightTraits& traits = TraitsOf(type);
  return size_t{k} / traits.block_elements * traits.block_bytes;
}

}  // namespace baton

#endif  // BATON_KERNELS_WEIGHT_TYPE_H_
