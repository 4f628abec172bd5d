// The device primitives that kernels are written in: one source, two bodies. nvcc compiles the GPU
// body (PTX), every other compiler the runner body (fibers on this processor). A kernel uses
// nothing else of CUDA: no PTX, no threadIdx, no __shared__, no <<<>>>. gpu_body.h lists the
// primitives and what each orders.
#ifndef BATON_KERNELS_SIMT_DEVICE_H_
#define BATON_KERNELS_SIMT_DEVICE_H_

#ifdef __CUDACC__
#include "kernels/simt/gpu_body.h"
#include "kernels/simt/gpu_launch.h"
#include "kernels/simt/gpu_wgmma.h"
#include "kernels/simt/gpu_wgmma_products.h"
#else
#include "kernels/simt/runner_body.h"
#endif

#endif  // BATON_KERNELS_SIMT_DEVICE_H_
