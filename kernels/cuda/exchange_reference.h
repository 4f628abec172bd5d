// The results of the exchanges of several ranks, in the plainest form, on host memory, with the
// kernels' bits. Slow; for tests and for checks on a GPU. Pure: flags are not used.
#ifndef BATON_KERNELS_CUDA_EXCHANGE_REFERENCE_H_
#define BATON_KERNELS_CUDA_EXCHANGE_REFERENCE_H_

#include "kernels/cuda/exchange_params.h"

namespace baton::kernels::cuda {

// Writes params.outs of all ranks.
void ReferenceAllReduce(const AllReduceParams& params);

// Writes params.out.
void ReferenceGatherColumns(const GatherColumnsParams& params);

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_EXCHANGE_REFERENCE_H_
