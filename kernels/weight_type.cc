#include "kernels/weight_type.h"

#include <bit>
#include <cstring>

#include "kernels/math.h"

namespace baton::kernels {
namespace {

uint16_t LoadU16(const std::byte* bytes) {
  uint16_t value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

uint32_t LoadU32(const std::byte* bytes) {
  uint32_t value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

// 16 bytes; byte j holds element j in its low and element j + 16 in its high nibble.
void UnpackNibbles(const std::byte* bytes, int8_t* q) {
  for (int j = 0; j < 16; ++j) {
    const int byte = static_cast<int>(bytes[j]);
    q[j] = static_cast<int8_t>(byte & 15);
    q[j + 16] = static_cast<int8_t>(byte >> 4);
  }
}

// Adds bit j of `bits`, times 16, to element j.
void AddFifthBits(uint32_t bits, int8_t* q) {
  for (uint32_t j = 0; j < kQuantBlock; ++j) {
    q[j] = static_cast<int8_t>(q[j] + ((bits >> j & 1) << 4));
  }
}

void Subtract(int offset, int8_t* q) {
  for (uint32_t j = 0; j < kQuantBlock; ++j) q[j] = static_cast<int8_t>(q[j] - offset);
}

void UnpackQ4_0(const std::byte* raw, uint32_t, WeightBlock* block) {
  block->scale = LoadU16(raw);
  UnpackNibbles(raw + 2, block->q);
  Subtract(8, block->q);
}

void UnpackQ4_1(const std::byte* raw, uint32_t, WeightBlock* block) {
  block->scale = LoadU16(raw);
  block->min = LoadU16(raw + 2);
  UnpackNibbles(raw + 4, block->q);
}

void UnpackQ5_0(const std::byte* raw, uint32_t, WeightBlock* block) {
  block->scale = LoadU16(raw);
  UnpackNibbles(raw + 6, block->q);
  AddFifthBits(LoadU32(raw + 2), block->q);
  Subtract(16, block->q);
}

void UnpackQ5_1(const std::byte* raw, uint32_t, WeightBlock* block) {
  block->scale = LoadU16(raw);
  block->min = LoadU16(raw + 2);
  UnpackNibbles(raw + 8, block->q);
  AddFifthBits(LoadU32(raw + 4), block->q);
}

void UnpackQ8_0(const std::byte* raw, uint32_t, WeightBlock* block) {
  block->scale = LoadU16(raw);
  std::memcpy(block->q, raw + 2, kQuantBlock);
}

// Q4_K, Q5_K: fp16 d, fp16 dmin, then 12 bytes that hold eight 6-bit scales and eight 6-bit mins.
// The first four of each are in the low 6 bits of bytes 0..3 and 4..7. The others are in the
// nibbles of bytes 8..11, with their upper two bits on top of bytes 0..3 and 4..7. Element = d *
// scale * q - dmin * min.
void UnpackSuperScales(const std::byte* raw, uint32_t idx, WeightBlock* block) {
  block->scale = LoadU16(raw);
  block->min = static_cast<uint16_t>(LoadU16(raw + 2) ^ 0x8000);
  const auto byte = [&](uint32_t i) { return static_cast<uint32_t>(raw[4 + i]); };
  if (idx < 4) {
    block->factors[0] = static_cast<uint8_t>(byte(idx) & 63);
    block->factors[1] = static_cast<uint8_t>(byte(idx + 4) & 63);
  } else {
    block->factors[0] = static_cast<uint8_t>((byte(idx + 4) & 15) | (byte(idx - 4) >> 6) << 4);
    block->factors[1] = static_cast<uint8_t>(byte(idx + 4) >> 4 | (byte(idx) >> 6) << 4);
  }
}

// Runs of 32 bytes; run i holds block 2i in its low and block 2i + 1 in its high nibbles.
void UnpackRunOfNibbles(const std::byte* runs, uint32_t idx, int8_t* q) {
  const std::byte* run = runs + idx / 2 * kQuantBlock;
  for (uint32_t j = 0; j < kQuantBlock; ++j) {
    q[j] = static_cast<int8_t>(static_cast<int>(run[j]) >> (idx % 2 * 4) & 15);
  }
}

void UnpackQ4_K(const std::byte* raw, uint32_t idx, WeightBlock* block) {
  UnpackSuperScales(raw, idx, block);
  UnpackRunOfNibbles(raw + 16, idx, block->q);
}

// 32 bytes between scales and nibbles: bit idx of byte j is the fifth bit of element j.
void UnpackQ5_K(const std::byte* raw, uint32_t idx, WeightBlock* block) {
  UnpackSuperScales(raw, idx, block);
  UnpackRunOfNibbles(raw + 48, idx, block->q);
  for (uint32_t j = 0; j < kQuantBlock; ++j) {
    block->q[j] =
        static_cast<int8_t>(block->q[j] + ((static_cast<int>(raw[16 + j]) >> idx & 1) << 4));
  }
}

// 128 bytes of low nibbles, 64 of upper bit pairs, 16 signed scales, fp16 d. Each half of 128
// elements: blocks 0 and 1 in the low nibbles of its 64 bytes, blocks 2 and 3 in the high ones;
// block i's upper bits in bits 2i, 2i + 1 of its 32 bytes.
void UnpackQ6_K(const std::byte* raw, uint32_t idx, WeightBlock* block) {
  const uint32_t half = idx / 4;
  const uint32_t i = idx % 4;
  const std::byte* low = raw + half * 64 + i % 2 * kQuantBlock;
  const std::byte* high = raw + 128 + half * 32;
  for (uint32_t j = 0; j < kQuantBlock; ++j) {
    const int nibble = static_cast<int>(low[j]) >> (i / 2 * 4) & 15;
    const int upper = static_cast<int>(high[j]) >> (2 * i) & 3;
    block->q[j] = static_cast<int8_t>((nibble | upper << 4) - 32);
  }
  block->scale = LoadU16(raw + 208);
  std::memcpy(block->factors, raw + 192 + 2 * idx, 2);
}

void UnpackMxfp4(const std::byte* raw, uint32_t, WeightBlock* block) {
  block->factors[0] = static_cast<uint8_t>(raw[0]);
  UnpackNibbles(raw + 1, block->q);
  for (int8_t& q : block->q) q = kFp4Values[q];
}

void UnpackIq4Nl(const std::byte* raw, uint32_t, WeightBlock* block) {
  block->scale = LoadU16(raw);
  UnpackNibbles(raw + 2, block->q);
  for (int8_t& q : block->q) q = kIq4Values[q];
}

// fp16 d, 16 bits and 4 bytes of scales, 128 bytes of nibbles. A block's scale is 6 bits less 32:
// its lower four in nibble idx of the bytes, its upper two in bits 2 idx, 2 idx + 1 of the 16.
void UnpackIq4Xs(const std::byte* raw, uint32_t idx, WeightBlock* block) {
  block->scale = LoadU16(raw);
  const int low = static_cast<int>(raw[4 + idx / 2]) >> (idx % 2 * 4) & 15;
  const int high = LoadU16(raw + 2) >> (2 * idx) & 3;
  block->factors[0] = static_cast<uint8_t>((low | high << 4) - 32);
  UnpackNibbles(raw + 8 + size_t{idx} * 16, block->q);
  for (int8_t& q : block->q) q = kIq4Values[q];
}

// 32 bytes of third bits, 64 of bit pairs, 12 of scales, fp16 d. Block idx has bit idx of the third
// bits; bits 2i, 2i + 1 of the 32 bytes of its half of 128 elements, i = idx % 4. A third bit that
// is not set means 4 less. The scale of 16 elements is 6 bits less 32: scale s has its lower four
// in a nibble of byte s % 8 and its upper two in bits 2 (s / 4), 2 (s / 4) + 1 of byte 8 + s % 4.
void UnpackQ3_K(const std::byte* raw, uint32_t idx, WeightBlock* block) {
  const std::byte* pairs = raw + 32 + idx / 4 * kQuantBlock;
  for (uint32_t j = 0; j < kQuantBlock; ++j) {
    const int third = static_cast<int>(raw[j]) >> idx & 1;
    const int low = static_cast<int>(pairs[j]) >> (idx % 4 * 2) & 3;
    block->q[j] = static_cast<int8_t>(low - 4 + 4 * third);
  }
  const std::byte* scales = raw + 96;
  for (uint32_t part = 0; part < 2; ++part) {
    const uint32_t s = 2 * idx + part;
    const int low = static_cast<int>(scales[s % 8]) >> (s / 8 * 4) & 15;
    const int high = static_cast<int>(scales[8 + s % 4]) >> (s / 4 * 2) & 3;
    block->factors[part] = static_cast<uint8_t>((low | high << 4) - 32);
  }
  block->scale = LoadU16(raw + 108);
}

// 16 bytes of nibbles (scale, min) for 16 elements each, 64 of bit pairs, fp16 d, fp16 dmin. Block
// idx has bits 2i, 2i + 1 of the 32 bytes of its half, i = idx % 4. Element = d * scale * q - dmin
// * min.
void UnpackQ2_K(const std::byte* raw, uint32_t idx, WeightBlock* block) {
  const std::byte* pairs = raw + 16 + idx / 4 * kQuantBlock;
  for (uint32_t j = 0; j < kQuantBlock; ++j) {
    block->q[j] = static_cast<int8_t>(static_cast<int>(pairs[j]) >> (idx % 4 * 2) & 3);
  }
  std::memcpy(block->factors, raw + 2 * idx, 2);
  block->scale = LoadU16(raw + 80);
  block->min = static_cast<uint16_t>(LoadU16(raw + 82) ^ 0x8000);
}

using D = PackedDigits;
using S = PackedScales;
constexpr WeightTraits kTraits[kNumWeightTypes] = {
    {"F32", 1, 4, D::kNone, S::kNone, nullptr},
    {"F16", 1, 2, D::kNone, S::kNone, nullptr},
    {"BF16", 1, 2, D::kNone, S::kNone, nullptr},
    {"Q4_0", 32, 18, D::kNibblesOff8, S::kHalf, UnpackQ4_0},
    {"Q4_1", 32, 20, D::kNibbles, S::kHalfAndMin, UnpackQ4_1},
    {"Q8_0", 32, 34, D::kBytes, S::kHalf, UnpackQ8_0},
    {"Q5_0", 32, 22, D::kFiveOff16, S::kHalf, UnpackQ5_0},
    {"Q5_1", 32, 24, D::kFive, S::kHalfAndMin, UnpackQ5_1},
    {"Q4_K", 256, 144, D::kNibbles, S::kSuperAndMin, UnpackQ4_K},
    {"Q5_K", 256, 176, D::kFive, S::kSuperAndMin, UnpackQ5_K},
    {"Q6_K", 256, 210, D::kSixOff32, S::kSuperTwo, UnpackQ6_K},
    {"MXFP4", 32, 17, D::kFp4, S::kPowerOfTwo, UnpackMxfp4},
    {"IQ4_NL", 32, 18, D::kIq4, S::kHalf, UnpackIq4Nl},
    {"IQ4_XS", 256, 136, D::kIq4, S::kSuper, UnpackIq4Xs},
    {"Q3_K", 256, 110, D::kThree, S::kSuperTwo, UnpackQ3_K},
    {"Q2_K", 256, 84, D::kTwo, S::kSuperTwoAndMins, UnpackQ2_K},
};

bool IsFiniteHalf(uint16_t half) { return (half & 0x7C00) != 0x7C00; }

// 2^(e - 128); the two smallest are subnormal.
float PowerOfTwo(uint8_t e) {
  return std::bit_cast<float>(e < 2 ? 0x00200000u << e : (uint32_t{e} - 1) << 23);
}

}  // namespace

const WeightTraits& TraitsOf(WeightType type) { return kTraits[static_cast<int>(type)]; }

BlockScales ScalesOf(PackedScales scales, const WeightBlock& block) {
  const float scale = FloatFromHalf(block.scale);
  const float min = FloatFromHalf(block.min);
  switch (scales) {
    case PackedScales::kSuperAndMin: {
      const float product = scale * static_cast<float>(block.factors[0]);
      const float least = min * static_cast<float>(block.factors[1]);
      return {{product, product}, {least, least}};
    }
    case PackedScales::kSuper:
    case PackedScales::kSuperTwo: {
      const auto factor = [&](int i) {
        return static_cast<float>(static_cast<int8_t>(block.factors[i]));
      };
      const float first = scale * factor(0);
      return {{first, scales == PackedScales::kSuper ? first : scale * factor(1)}, {}};
    }
    case PackedScales::kSuperTwoAndMins: {
      const auto low = [&](int i) { return static_cast<float>(block.factors[i] & 15); };
      const auto high = [&](int i) { return static_cast<float>(block.factors[i] >> 4); };
      return {{scale * low(0), scale * low(1)}, {min * high(0), min * high(1)}};
    }
    case PackedScales::kPowerOfTwo: {
      const float power = PowerOfTwo(block.factors[0]);
      return {{power, power}, {}};
    }
    default:
      return {{scale, scale}, {min, min}};
  }
}

bool HasFiniteScales(PackedScales scales, const WeightBlock& block) {
  if (scales == PackedScales::kPowerOfTwo) return block.factors[0] != 255;  // e8m0's NaN
  return IsFiniteHalf(block.scale) && IsFiniteHalf(block.min);
}

}  // namespace baton::kernels
