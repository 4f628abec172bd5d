// Kernels of tensor copies and wgmma with one planted fault each, which the runner must name.
#ifndef BATON_TESTS_KERNELS_SIMT_FAULTY_WGMMA_H_
#define BATON_TESTS_KERNELS_SIMT_FAULTY_WGMMA_H_

#include <cstdint>

#include "absl/status/status.h"

namespace baton::kernels::simt_test {

// The fault; what each kernel does wrong is said in the source.
enum class WgmmaFault : uint8_t {
  kNone,
  kAcrossWarpgroups,
  kTooFewThreads,
  kTwoPlaces,
  kDifferentOperands,
  kTileMisaligned,
  kStepBeyondTile,
  kNoSwizzle,
  kColumnsMisaligned,
  kColumnsNoSwizzle,
  kColumnsOutside,
  kTileOutside,
  kNoFence,
  kNoFenceAfterWait,
  kNoProxyFence,
  kSumsRead,
  kSumsWritten,
  kSumsWrittenBetween,
  kTileWritten,
  kTileWrittenAfterTooFew,
  kOperandWritten,
  kColumnsNotFenced,
  kColumnsWritten,
  kNotWaited,
  kTileFilledAgain,
  kNoMap,
  kCopyMisaligned,
  kCopyWithoutFence,
  kCopyReadEarly,
};

// A matrix of bf16 ones [64][64], and 128 words.
struct FaultyWgmmaParams {
  const uint16_t* in;
  uint32_t* out;
};

absl::Status RunFaultyWgmma(WgmmaFault fault, const FaultyWgmmaParams& params);

}  // namespace baton::kernels::simt_test

#endif  // BATON_TESTS_KERNELS_SIMT_FAULTY_WGMMA_H_
