// The parameters of gates: alone, and as the end of the product that makes them. Included through
// kernel_table.h.
#ifndef BATON_KERNELS_CUDA_GATE_PARAMS_H_
#define BATON_KERNELS_CUDA_GATE_PARAMS_H_

#include <cstdint>

#include "kernels/cuda/gemm_params.h"
#include "kernels/simt/types.h"

namespace baton::kernels::cuda {

// out = gate / (1 + exp(-t)) * up. silu_mul: t = gate. gelu_mul: t = fma(gate^2, 0.0713548163,
// 1.5957691216) gate. Below t = -88.73 the exponential is infinite and the result is a zero, where
// the exact one is less than 2.7e-37 |up|; the relative error of gelu_mul grows with t
// (kernel_reference.h). `dim` is a multiple of 8, at least 8.
struct GateMulParams {
  const simt::Bf16* gate_up;  // [num_rows][2][dim]
  simt::Bf16* out;            // [num_rows][dim]
  uint32_t num_rows;
  uint32_t dim;
};

// x *= 1 / (1 + exp(-gate)), the bits of Ops::sigmoid_mul rounded to bf16. `dim` is a multiple of
// 8, at least 8.
struct SigmoidMulParams {
  const simt::Bf16* gate;  // [num_rows][dim]
  simt::Bf16* x;           // [num_rows][dim], read and written
  uint32_t num_rows;
  uint32_t dim;
};

// Which of the two functions of GateMulParams.
enum class GateKind : uint8_t { kSilu, kGelu };

// gemm_bf16 of gates and ups into bf16, then silu_mul or gelu_mul of them, in one launch and with
// the bits of the two. Row i of w makes a gate and row i + n / 2 its up, i < n / 2. At most
// kMaxJoinedRows rows, and a path of few rows.
struct GatedGemmParams {
  GemmParams product;  // y_bf16 is [m][n / 2] and gets what is gated; no bias; n is even
  GateKind gate;
  NormedRows norm = {};
};

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_GATE_PARAMS_H_
