// A kernel in which each rank computes its parts and exchanges them, again and again: what on
// several GPUs many kernels do, in one launch, so that a meeting that comes too early shows.
#ifndef BATON_TESTS_KERNELS_SIMT_EXCHANGE_KERNELS_H_
#define BATON_TESTS_KERNELS_SIMT_EXCHANGE_KERNELS_H_

#include <cstdint>

#include "absl/status/status.h"

#include "kernels/cuda/exchange_params.h"

namespace baton::kernels::simt_test {

// Rounds i, from 0 on, that all ranks do together. Each rank r writes (r + 1) (i + 1) + e to
// element e of parts[i % 2], its part of the round. It then exchanges, and adds its out to sums[r].
struct ExchangeLoopParams {
  cuda::AllReduceParams reduce;  // its parts are not used
  float* parts[2][cuda::kMaxRanks];
  float* sums[cuda::kMaxRanks];  // [num_elements]
  uint32_t num_rounds;
};

// All ranks, one cta each.
absl::Status RunExchangeLoop(const ExchangeLoopParams& params);

}  // namespace baton::kernels::simt_test

#endif  // BATON_TESTS_KERNELS_SIMT_EXCHANGE_KERNELS_H_
