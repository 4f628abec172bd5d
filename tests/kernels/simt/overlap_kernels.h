// Kernels that begin while the kernel before them runs: a correct one, which gpu_check runs on a
// GPU too, and what each of the others does wrong.
#ifndef BATON_TESTS_KERNELS_SIMT_OVERLAP_KERNELS_H_
#define BATON_TESTS_KERNELS_SIMT_OVERLAP_KERNELS_H_

#include <cstdint>

#include "absl/status/status.h"

#include "kernels/simt/types.h"

namespace baton::kernels::simt_test {

inline constexpr uint32_t kOverlapThreads = 64;

// The work of a thread before wait_for_previous, or instead of it.
enum class Early : uint8_t {
  kCopiesConstants,
  kPrefetches,
  kPrefetchesOutside,
  kReads,
  kWrites,
  kCopies,
  kReturns
};

// sums[i] += constants[i] of kOverlapThreads x `num_ctas` words; the constants nobody writes.
struct OverlapParams {
  const uint32_t* constants;
  uint32_t* sums;
  Early early;
};

inline namespace BATON_BODY {

// Puts `times` launches of it into the stream (null: the default one), one after the other.
absl::Status AddAgainAndAgain(const OverlapParams& params, uint32_t num_ctas, uint32_t times,
                              void* stream);

}  // namespace BATON_BODY

}  // namespace baton::kernels::simt_test

#endif  // BATON_TESTS_KERNELS_SIMT_OVERLAP_KERNELS_H_
