// The short convolution of devices in the plainest form, on host memory, with the kernel's bits.
// Slow; for tests and for checks on a GPU. Pure.
#ifndef BATON_KERNELS_CUDA_CONV_REFERENCE_H_
#define BATON_KERNELS_CUDA_CONV_REFERENCE_H_

#include "kernels/cuda/kernel_table.h"

namespace baton::kernels::cuda {

// Writes params.out and the blocks as ShortConv does: every input first, then every row from them.
void ReferenceShortConvBits(const ShortConvParams& params);

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_CONV_REFERENCE_H_
