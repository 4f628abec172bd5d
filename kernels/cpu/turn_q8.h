// The turn of kernels/kv_q8.h on the 16-lane vector: the bits of TurnQ8. Included by one
// translation unit per instruction set. A row of 64 costs 4 * 8 + 4 operations of 16 lanes.
#ifndef BATON_KERNELS_CPU_TURN_Q8_H_
#define BATON_KERNELS_CPU_TURN_Q8_H_

#include "kernels/kv_q8.h"

namespace baton::kernels::BATON_ISA {

// -1 in the lanes whose index has bit 0, 1, 2, 3, else 1.
alignas(64) inline constexpr float kTurnSigns[4][16] = {
    {1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1},
    {1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1},
    {1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1},
    {1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1}};

// Sums and differences of lanes 2^kBit apart. The product with 1 or -1 is exact.
template <int kBit>
BATON_INLINE F32x16 TurnLanes(F32x16 x) {
  return Fma(x, Load(kTurnSigns[kBit]), SwapLanes<1 << kBit>(x));
}

// TurnQ8 of `row` [dim rounded up to 16]; elements from `dim` on may become anything.
BATON_INLINE void TurnRow(float* row, uint32_t dim) {
  const uint32_t width = Q8TurnWidth(dim);
  for (uint32_t d = 0; d < dim; d += 16) {
    F32x16 x = Load(row + d);
    if (width > 1) x = TurnLanes<0>(x);
    if (width > 2) x = TurnLanes<1>(x);
    if (width > 4) x = TurnLanes<2>(x);
    if (width > 8) x = TurnLanes<3>(x);
    Store(row + d, x);
  }
  for (uint32_t apart = 16; apart < width; apart *= 2) {
    for (uint32_t d = 0; d < dim; d += 16) {
      if ((d & apart) != 0) continue;
      const F32x16 first = Load(row + d);
      const F32x16 second = Load(row + d + apart);
      Store(row + d, Add(first, second));
      Store(row + d + apart, Sub(first, second));
    }
  }
}

}  // namespace baton::kernels::BATON_ISA

#endif  // BATON_KERNELS_CPU_TURN_Q8_H_
