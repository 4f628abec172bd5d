// The results of the kernels of a mixture of experts, in the plainest form, on host memory, with
// the kernels' bits. Slow; for tests and for checks on a GPU. Pure.
#ifndef BATON_KERNELS_CUDA_EXPERTS_REFERENCE_H_
#define BATON_KERNELS_CUDA_EXPERTS_REFERENCE_H_

#include "kernels/cuda/kernel_table.h"
#include "kernels/simt/tensor_core.h"

namespace baton::kernels::cuda {

// Writes params.experts and weights.
void ReferenceRoute(const RouteParams& params);

// Writes all outputs of params, as many tiles as it counts.
void ReferenceSortPairs(const SortPairsParams& params);

// Writes y of the slots of all tiles, as ReferenceGemmBits does.
void ReferenceGroupedGemmBits(const GroupedGemmParams& params,
                              simt::TensorCore core = simt::TensorCore::kHopper);

// Writes params.out or out_float.
void ReferenceCombine(const CombineParams& params);

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_EXPERTS_REFERENCE_H_
