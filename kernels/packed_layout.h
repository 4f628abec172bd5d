// Where the parts of a packed panel of a quantised matrix lie: constant functions of the packed
// forms of its digits and scales, shared by packing and the kernels. Pure, any thread. The order
// inside a block is in packed_matrix.h.
#ifndef BATON_KERNELS_PACKED_LAYOUT_H_
#define BATON_KERNELS_PACKED_LAYOUT_H_

#include <cstddef>

#include "kernels/weight_type.h"

namespace baton::kernels {

// Rows (outputs) of a panel.
inline constexpr uint32_t kPanelRows = 16;
// Blocks of a super-block.
inline constexpr uint32_t kSuperBlocks = kSuperBlock / kQuantBlock;

// The offset that is added to a digit so that it is stored without a sign.
constexpr int OffsetOf(PackedDigits digits) {
  switch (digits) {
    case PackedDigits::kNibblesOff8:
      return 8;
    case PackedDigits::kFiveOff16:
      return 16;
    case PackedDigits::kSixOff32:
      return 32;
    default:
      return 0;
  }
}

// Bytes of the nibbles of one block of a panel; planes of upper bits follow them.
inline constexpr size_t kNibbleBytes = kPanelRows * kQuantBlock / 2;

// Bytes of the digits of one block of a panel.
constexpr size_t DigitBytes(PackedDigits digits) {
  switch (digits) {
    case PackedDigits::kBytes:
      return 2 * kNibbleBytes;
    case PackedDigits::kFive:
    case PackedDigits::kFiveOff16:
      return kNibbleBytes + size_t{kPanelRows} * 4;
    case PackedDigits::kSixOff32:
      return kNibbleBytes + size_t{kPanelRows} * 8;
    case PackedDigits::kThree:
      return size_t{kPanelRows} * 12;
    case PackedDigits::kTwo:
      return size_t{kPanelRows} * 8;
    default:
      return kNibbleBytes;
  }
}

// Bytes of the scales in front of the digits of each block of a panel.
constexpr size_t BlockScaleBytes(PackedScales scales) {
  switch (scales) {
    case PackedScales::kHalfAndMin:
      return size_t{kPanelRows} * 4;
    case PackedScales::kSuper:
    case PackedScales::kPowerOfTwo:
      return kPanelRows;
    default:
      return size_t{kPanelRows} * 2;
  }
}

// Bytes of the scales in front of each super-block of a panel.
constexpr size_t SuperScaleBytes(PackedScales scales) {
  switch (scales) {
    case PackedScales::kSuperAndMin:
    case PackedScales::kSuperTwoAndMins:
      return size_t{kPanelRows} * 4;
    case PackedScales::kSuper:
    case PackedScales::kSuperTwo:
      return size_t{kPanelRows} * 2;
    default:
      return 0;
  }
}

constexpr size_t BlockBytes(PackedDigits digits, PackedScales scales) {
  return BlockScaleBytes(scales) + DigitBytes(digits);
}

// Bytes in front of block `block` of a panel: its own scales begin there.
constexpr size_t BlockOffset(PackedDigits digits, PackedScales scales, uint32_t block) {
  const size_t blocks = block * BlockBytes(digits, scales);
  if (SuperScaleBytes(scales) == 0) return blocks;
  return blocks + (block / kSuperBlocks + 1) * SuperScaleBytes(scales);
}

// Bytes in front of the scales of the super-block that block `block` belongs to.
constexpr size_t SuperOffset(PackedDigits digits, PackedScales scales, uint32_t block) {
  return block / kSuperBlocks *
         (kSuperBlocks * BlockBytes(digits, scales) + SuperScaleBytes(scales));
}

}  // namespace baton::kernels

#endif  // BATON_KERNELS_PACKED_LAYOUT_H_
