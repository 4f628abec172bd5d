// KvGather and KvScatter in the plainest form, on host memory: copies and the hash of src/base. In
// a library of its own, for builds that have no runner too. Pure.
#ifndef BATON_KERNELS_CUDA_KV_SLICES_REFERENCE_H_
#define BATON_KERNELS_CUDA_KV_SLICES_REFERENCE_H_

#include "kvcache/kv_slices.h"

namespace baton::kernels::cuda {

// Write what the kernels write, with the same bits.
void ReferenceKvGather(const kv::KvSlicesParams& params);
void ReferenceKvScatter(const kv::KvSlicesParams& params);

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_KV_SLICES_REFERENCE_H_
