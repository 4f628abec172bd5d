// Small correct kernels that use every primitive, for the tests of the runner: they must give the
// right answer in every order, and no false report. gpu_check runs them on a GPU.
#ifndef BATON_TESTS_KERNELS_SIMT_RING_KERNELS_H_
#define BATON_TESTS_KERNELS_SIMT_RING_KERNELS_H_

#include <cstdint>

#include "absl/status/status.h"

#include "kernels/simt/types.h"

namespace baton::kernels::simt_test {

// Words in, words out; what `count` and `scratch` are for is said at each kernel.
struct WordParams {
  const uint32_t* in;
  uint32_t* out;
  uint32_t* scratch;
  uint32_t count;
};

inline constexpr uint32_t kReduceThreads = 96;
inline constexpr uint32_t kPipelineThreads = 64;
inline constexpr uint32_t kRingThreads = 96;
inline constexpr uint32_t kGridThreads = 64;
inline constexpr uint32_t kCombineCtas = 5;

inline namespace BATON_BODY {

// out[cta] = sum of in[cta * kReduceThreads ...): shuffles in a warp, then shared memory.
absl::Status BlockReduce(const WordParams& params, uint32_t num_ctas);
// out[i] = 3 in[i] for `count` words through a pipeline of three cp.async stages.
absl::Status AsyncPipeline(const WordParams& params);
// out[i] = in[i] + 1 for `count` tiles of 64 words: one thread issues bulk copies into a ring of
// two slots, two warps consume and give the slots back.
absl::Status BulkRing(const WordParams& params);
// out[0] = sum of `count` words: kCombineCtas partial sums (scratch[1...]), added up by the cta
// that arrives last (scratch[0] counts; zero before and after).
absl::Status LastCtaCombine(const WordParams& params);
// Every cta writes scratch[1 + cta], waits for all others (scratch[0]), and out[cta] = their sum.
absl::Status GridBarrier(const WordParams& params, uint32_t num_ctas);
// The transpose of a tile of 32 words by one warp through shared memory with sync_warp: out[i] =
// in[31 - i].
absl::Status WarpReverse(const WordParams& params);
// Four 8 x 8 matrices of 16-bit elements, in [128 words] as rows of four words: out[lane][matrix]
// is lane's pair of each, and of each transposed one when `transposed`.
absl::Status WarpLoadMatrices(const WordParams& params, bool transposed);

}  // namespace BATON_BODY

}  // namespace baton::kernels::simt_test

#endif  // BATON_TESTS_KERNELS_SIMT_RING_KERNELS_H_
