#include "kernels/weight_type.h"

#include <cstring>

namespace baton {
namespace {

uint16_t LoadU16(const std::byte* bytes) {
  uint16_t value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

// 16 bytes; byte j holds element j in its low and element j + 16 in its high nibble.
void UnpackNibbles(const std::byte* bytes, int offset, int8_t* q) {
  for (int j = 0; j < 16; ++j) {
    const int byte = static_cast<int>(bytes[j]);
    q[j] = static_cast<int8_t>((byte & 15) - offset);
    q[j + 16] = static_cast<int8_t>((byte >> 4) - offset);
  }
}

void UnpackQ4_0(const std::byte* raw, WeightBlock* block) {
  block->scale = LoadU16(raw);
  block->min = 0;
  UnpackNibbles(raw + 2, 8, block->q);
}

void UnpackQ4_1(const std::byte* raw, WeightBlock* block) {
  block->scale = LoadU16(raw);
  block->min = LoadU16(raw + 2);
  UnpackNibbles(raw + 4, 0, block->q);
}

void UnpackQ8_0(const std::byte* raw, WeightBlock* block) {
  block->scale = LoadU16(raw);
  block->min = 0;
  std::memcpy(block->q, raw + 2, kQuantBlock);
}

constexpr WeightTraits kTraits[kNumWeightTypes] = {
    {"F32", 1, 4, PackedDigits::kNone, false, nullptr},
    {"F16", 1, 2, PackedDigits::kNone, false, nullptr},
    {"BF16", 1, 2, PackedDigits::kNone, false, nullptr},
    {"Q4_0", 32, 18, PackedDigits::kNibblesOff8, false, UnpackQ4_0},
    {"Q4_1", 32, 20, PackedDigits::kNibbles, true, UnpackQ4_1},
    {"Q8_0", 32, 34, PackedDigits::kBytes, false, UnpackQ8_0},
};

}  // namespace

const WeightTraits& TraitsOf(WeightType type) { return kTraits[static_cast<int>(type)]; }

}  // namespace baton
