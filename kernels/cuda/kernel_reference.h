// The results of the CUDA kernels, in the plainest form, on host memory: in double where the
// kernels round, exactly where they promise bits. Slow; for tests and for checks on a GPU. Pure.
#ifndef BATON_KERNELS_CUDA_KERNEL_REFERENCE_H_
#define BATON_KERNELS_CUDA_KERNEL_REFERENCE_H_

#include <vector>

#include "kernels/cuda/kernel_table.h"
#include "kernels/simt/tensor_core.h"

namespace baton::kernels::cuda {

// Sums before their rounding, and the size of what was added: what an error is relative to.
struct SummedRows {
  std::vector<double> values;      // [num_rows][dim]
  std::vector<double> magnitudes;  // [num_rows][dim]
};

// residual + x, or the norm of x where params has x_weight: exact without.
SummedRows ReferenceResidual(const RmsNormParams& params);

// out [num_rows][dim] before its rounding, of the residual as the kernel left it.
std::vector<double> ReferenceRmsNorm(const RmsNormParams& params);

// out [num_rows][dim] before its rounding.
std::vector<double> ReferenceSiluMul(const GateMulParams& params);
std::vector<double> ReferenceGeluMul(const GateMulParams& params);

// Writes params.out with the kernel's bits.
void ReferenceEmbed(const EmbedParams& params);

// Writes the output of params with the bits of a generation's tensor cores
// (kernels/simt/tensor_core.h).
void ReferenceGemmBits(const GemmParams& params, simt::TensorCore core = simt::TensorCore::kHopper);

// y [m][n] in double, ascending k, with the bias, before the rounding of a bf16 output.
std::vector<double> ReferenceGemm(const GemmParams& params);

// e^x, relative error below 1e-14.
double ExpInDouble(double x);

// How far a kernel's value may be from the exact one, before its rounding to bf16.
struct Tolerance {
  double relative;
  double absolute = 0;
};

// The tolerance of gelu_mul for one pair. An error of t, of 3 units in its last place, is an error
// of e^-t: 2e-7 |t| of the result.
Tolerance GeluMulTolerance(Bf16 gate, Bf16 up);

// True when `got` is the bf16 of some value within the tolerance. A NaN never is.
bool IsRoundingOf(Bf16 got, double exact, const Tolerance& tolerance);

// |got - exact| / |exact| over all elements, in the Euclidean norm; infinity for any NaN.
double RelativeError(const float* got, const std::vector<double>& exact);

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_KERNEL_REFERENCE_H_
