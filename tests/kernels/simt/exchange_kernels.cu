#include "kernels/cuda/exchange.h"
#include "tests/kernels/simt/exchange_kernels.h"

namespace baton::kernels::simt_test {
namespace {

using simt::thread;

BATON_KERNEL(cuda::kExchangeThreads) ExchangeLoopKernel(ExchangeLoopParams params) {
  const uint32_t rank = simt::block().z;
  for (uint32_t round = 0; round < params.num_rounds; ++round) {
    cuda::AllReduceParams reduce = params.reduce;
    for (uint32_t r = 0; r < cuda::kMaxRanks; ++r) reduce.parts[r] = params.parts[round % 2][r];
    float* const part = params.parts[round % 2][rank];
    for (size_t e = thread(); e < reduce.num_elements; e += cuda::kExchangeThreads) {
      part[e] = static_cast<float>((rank + 1) * (round + 1) + e);
    }
    cuda::AllReduceCta(reduce);
    simt::sync_block();  // as between kernels
    for (size_t e = thread(); e < reduce.num_elements; e += cuda::kExchangeThreads) {
      params.sums[rank][e] += simt::from_bf16(reduce.outs[rank][e]);
    }
  }
}

}  // namespace

absl::Status RunExchangeLoop(const ExchangeLoopParams& params) {
  return simt::launch({.name = "ExchangeLoop",
                       .grid = {1, 1, params.reduce.ranks.num_ranks},
                       .num_threads = cuda::kExchangeThreads,
                       .cooperative = true},
                      ExchangeLoopKernel, params);
}

}  // namespace baton::kernels::simt_test
