// The gated delta net of devices by the processor's reference operation, on host memory, with the
// kernels' bits. Slow; for tests and for checks on a GPU. Pure.
#ifndef BATON_KERNELS_CUDA_DELTA_REFERENCE_H_
#define BATON_KERNELS_CUDA_DELTA_REFERENCE_H_

#include "kernels/cuda/kernel_table.h"
#include "kvcache/kv_view.h"

namespace baton::kernels::cuda {

// The blocks that `params` names, as the processor sees them: params.state.base is where slice
// `slice` of block 0 begins.
struct DeltaView {
  kv::KvView kv;
  uint32_t slice;
};

// Writes params.out, the states, their copies and params.broken as the three kernels do. `gates`
// and `inputs` stay as they are.
void ReferenceDeltaNet(const DeltaParams& params, const DeltaView& view);

// Writes params.x by the processor's operation.
void ReferenceSigmoidMulBits(const SigmoidMulParams& params);

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_DELTA_REFERENCE_H_
