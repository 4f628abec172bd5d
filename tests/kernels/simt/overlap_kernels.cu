#include "kernels/simt/device.h"
#include "tests/kernels/simt/overlap_kernels.h"

namespace baton::kernels::simt_test {
inline namespace BATON_BODY {
namespace {

using namespace simt;  // NOLINT: the primitives are the language here

// [thread]
struct OverlapShared {
  Vec16 copied[kOverlapThreads];
};

BATON_KERNEL(kOverlapThreads) OverlapKernel(OverlapParams params) {
  auto& memory = shared<OverlapShared>();
  const uint32_t at = block().x * kOverlapThreads + thread();
  const bool is_first = thread() == 0;
  const uint32_t* const from = params.early == Early::kCopies ? params.sums : params.constants;
  cp_async16(&memory.copied[thread()], from + at / 4 * 4);
  cp_async_commit();
  if (params.early == Early::kPrefetches) prefetch(params.sums + at);
  if (params.early == Early::kPrefetchesOutside) prefetch(params.sums - 1 - at);
  if (params.early == Early::kWrites && is_first) params.sums[at] = 0;
  uint32_t sum = 0;
  if (params.early == Early::kReads && is_first) sum = params.sums[at];
  if (params.early == Early::kReturns && is_first) {
    cp_async_wait<0>();
    return;
  }
  wait_for_previous();
  if (params.early != Early::kReads || !is_first) sum = params.sums[at];
  cp_async_wait<0>();
  params.sums[at] = sum + memory.copied[thread()].words[at % 4];
}

}  // namespace

absl::Status AddAgainAndAgain(const OverlapParams& params, uint32_t num_ctas, uint32_t times,
                              void* stream) {
  absl::Status status;
  for (uint32_t i = 0; i < times && status.ok(); ++i) {
    status = launch({.name = "OverlapKernel",
                     .grid = {num_ctas, 1, 1},
                     .num_threads = kOverlapThreads,
                     .shared_bytes = sizeof(OverlapShared),
                     .overlaps = true,
                     .stream = stream},
                    OverlapKernel, params);
  }
  return status;
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::simt_test
