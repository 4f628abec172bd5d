// BATON_KERNEL_NEWER(threads, ctas): a BATON_KERNEL that names how many ctas share an SM at least,
// for GPUs that came after Hopper alone. ptxas of CUDA 13.0 spills registers there to let more ctas
// in than the kernel's shared memory has room for. Code for other GPUs stays as it was measured.
#ifndef BATON_KERNELS_SIMT_NEWER_CTAS_H_
#define BATON_KERNELS_SIMT_NEWER_CTAS_H_

#include "kernels/simt/types.h"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define BATON_KERNEL_NEWER(threads, ctas) BATON_KERNEL(threads, ctas)
#else
#define BATON_KERNEL_NEWER(threads, ctas) BATON_KERNEL(threads)
#endif

#endif  // BATON_KERNELS_SIMT_NEWER_CTAS_H_
