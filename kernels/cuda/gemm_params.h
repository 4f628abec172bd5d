// The parameters of the products of dense matrices. Included through kernel_table.h.
#ifndef BATON_KERNELS_CUDA_GEMM_PARAMS_H_
#define BATON_KERNELS_CUDA_GEMM_PARAMS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/simt/types.h"

namespace baton::kernels::cuda {

// Which kernel multiplies. All give the same bits; kAuto chooses by shape, the others are for tests
// and timing. The kernels of few rows (the first three) take up to kGemmMaxSpreadRows. The kernels
// of wgmma, kNarrow and the last three, need a device that has it (KernelTable::has_wgmma). The
// last one takes one segment of K.
enum class GemmPath : uint8_t {
  kAuto,
  kRows8,
  kRows32,
  kNarrow,
  kTile64,
  kTile128,
  kWgmma128,
  kWgmma192,
  kWgmma256
};
inline constexpr uint32_t kHopperSms = 132;
// Rows up to which a product ends with the work of the kernel after it (gemm_gated, gemm_rope). For
// so many rows weights are read once, and launches are a part of a decode step that counts.
inline constexpr uint32_t kMaxJoinedRows = 32;

// y = x w^T + bias: fp32 sums over the segments of gemm_segments.h by the tensor cores' arithmetic,
// the bias added in fp32, then one rounding if y is bf16. Bits are promised except which NaN a NaN
// is. `k` is a multiple of 8, at least 8; no limit on m but the grid's. Up to kGemmMaxSpreadRows
// rows of x, w is read while the kernel before in the stream runs: that one must not write it.
struct GemmParams {
  const simt::Bf16* x;                    // [m][k]
  const simt::Bf16* w;                    // [n][k]; see above
  float* y_float = nullptr;               // [m][n]; exactly one of the two is given
  simt::Bf16* y_bf16 = nullptr;           // [m][n]
  const float* bias_float = nullptr;      // [n]; at most one of the two is given
  const simt::Bf16* bias_bf16 = nullptr;  // [n]
  uint32_t m;
  uint32_t n;
  uint32_t k;
  // The memory that spread segments need (GemmPartialBytes() > 0), else unused. Launches of
  // different streams need their own.
  void* partials = nullptr;      // partial_bytes >= GemmPartialBytes(m, n, k), any content
  uint32_t* counters = nullptr;  // [kGemmCounters], zero before and after each launch
  size_t partial_bytes = 0;
  GemmPath path = GemmPath::kAuto;
  bool allows_wgmma = false;      // for kAuto: the device passed CheckWgmma (wgmma_check.h)
  uint32_t num_sms = kHopperSms;  // at least 1; a wrong number costs time, never bits
};

// Rows and columns up to which a norm is divided between the product before it, which leaves the
// squares, and the one after it, which scales what it reads: a thread of RmsNorm has at most one
// group of eight elements then, so groups can be added up by anyone.
inline constexpr uint32_t kMaxNormedRows = 8;
inline constexpr uint32_t kMaxNormedDim = 4096;

// gemm_bf16 into bf16, which is then added to a residual as rms_norm does, with its bits. By wgmma
// alone (GemmPath::kNarrow), at most kMaxNormedRows rows; n is a multiple of 8, at most
// kMaxNormedDim.
struct SumGemmParams {
  GemmParams product;  // y_bf16 is the residual [m][n], read and written; no bias
  float* squares;      // [m][n / 8], written: of each eight elements of the new residual the sum
};

// The norm of the rows of x: x / sqrt(mean(x^2) + eps) * weight is what is multiplied, with the
// bits that rms_norm gives. By wgmma alone, at most kMaxNormedRows rows of kMaxNormedDim.
struct NormedRows {
  const simt::Bf16* weight = nullptr;  // [k]; null: x is multiplied as it is
  const float* squares = nullptr;      // [m][k / 8], of x: SumGemmParams
  float eps = 0;
};

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_GEMM_PARAMS_H_
