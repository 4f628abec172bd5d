// Kernels with one planted fault each, which the runner must name.
#ifndef BATON_TESTS_KERNELS_SIMT_FAULTY_KERNELS_H_
#define BATON_TESTS_KERNELS_SIMT_FAULTY_KERNELS_H_

#include <cstdint>

#include "absl/status/status.h"

namespace baton::kernels::simt_test {

// The fault; what each kernel does wrong is said in the source.
enum class Fault : uint8_t {
  kBarrierMissedByWarp,
  kBarriersAtTwoPlaces,
  kShuffleWithoutLane,
  kTwoWarpOps,
  kSpinForever,
  kLoopForever,
  kMbarrierNeverFull,
  kTooManyArrivals,
  kReadPastEnd,
  kWritePastEnd,
  kReadBeforeBegin,
  kCopyPastEnd,
  kHostMemory,
  kNullPointer,
  kStackOverflow,
  kSharedPastEnd,
  kSharedTooSmall,
  kCopyNotWaited,
  kCopyMisaligned,
  kBulkWithoutFence,
  kBulkAtExit,
  kRaceShared,
  kRaceSharedRead,
  kRaceBetweenCtas,
  kRaceByte,
  kRaceHalf,
  kRaceDouble,
  kRaceVector,
  kRaceStruct,
  kRaceWithCopy,
  kRaceCopySource,
  kArriveBeforeReads,
  kShuffleOrdersNothing,
  kRelaxedFlag,
};

// Two buffers of `bytes` bytes.
struct FaultyParams {
  unsigned char* in;
  unsigned char* out;
  uint32_t bytes;
};

absl::Status RunFaulty(Fault fault, const FaultyParams& params);

// out[thread] = the bits of an fp32, a bf16 and a word that nobody wrote into shared memory.
absl::Status ReadFreshShared(uint32_t* out);
// One thread more than fits, or a grid of zero.
absl::Status LaunchTooManyThreads();
absl::Status LaunchEmptyGrid();

}  // namespace baton::kernels::simt_test

#endif  // BATON_TESTS_KERNELS_SIMT_FAULTY_KERNELS_H_
