// The parts that the GEMM kernels share: stages of both operands in shared memory, fragments out of
// them, the walk through the segments of K, and the last step of an output. gemm_shapes.h has what
// a cta makes of a stage. Included by the GEMM's sources only.
//
// A stage holds rows x 64 of K of each operand. A row is 128 bytes, eight chunks of 16; chunk c of
// row r lies at c ^ (r % 8), so the eight rows of an ldmatrix touch all 32 banks once.
#ifndef BATON_KERNELS_CUDA_GEMM_TILE_H_
#define BATON_KERNELS_CUDA_GEMM_TILE_H_

#include <bit>
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/cuda/gemm_segments.h"
#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/row_shapes.h"
#include "kernels/simt/device.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {

inline constexpr uint32_t kGemmStages = 4;
inline constexpr uint32_t kGemmStepK = 16;  // of K an mma
inline constexpr uint32_t kGemmChunks = kGemmStageK / kVec;
static_assert(kGemmStages * kGemmStageK <= kGemmMinSegmentK, "a segment fills the pipeline");

// [chunk] of one row of a stage, swizzled.
using GemmRow = simt::Vec16[kGemmChunks];

// A launch: the call, and how K is cut.
struct GemmLaunch {
  GemmParams params;
  GemmSplit split;
};

// One operand's part in a stage: rows of k elements, from `first_row` on.
struct GemmOperand {
  const Bf16* data;
  uint32_t num_rows;
  uint32_t first_row;
  uint32_t k;
};

// kRows rows of K [k_begin, k_begin + kGemmStageK); what lies beyond the operand becomes zero.
template <uint32_t kRows, uint32_t kThreads>
BATON_DEVICE void CopyRows(const GemmOperand& from, uint32_t k_begin, GemmRow* to) {
  constexpr uint32_t kCopies = kRows * kGemmChunks;
  BATON_UNROLL
  for (uint32_t i = 0; i < (kCopies + kThreads - 1) / kThreads; ++i) {
    const uint32_t at = i * kThreads + simt::thread();
    if (kCopies % kThreads != 0 && at >= kCopies) break;
    const uint32_t row = at / kGemmChunks;
    const uint32_t chunk = at % kGemmChunks;
    const uint32_t column = k_begin + chunk * kVec;
    const bool inside = simt::guard(from.first_row + row < from.num_rows && column < from.k);
    const size_t offset = size_t{from.first_row + row} * from.k + column;
    simt::cp_async16(&to[row][Swizzled(row, chunk)], inside ? from.data + offset : from.data,
                     inside ? 16 : 0);
  }
}

// Rows [row, row + 16) and K [8 chunk, 8 chunk + 16) as an A fragment: lane l names row l % 16 and
// half l / 16 of K.
BATON_DEVICE simt::FragmentA LoadA(const GemmRow* from, uint32_t row, uint32_t chunk) {
  const uint32_t r = row + simt::lane() % 16;
  const simt::Matrices m = simt::ldmatrix_x4(&from[r][Swizzled(r, chunk + simt::lane() / 16)]);
  return {{m.regs[0], m.regs[1], m.regs[2], m.regs[3]}};
}

// The B fragments of rows [row, row + 8) and [row + 8, row + 16): matrices (row, k), (row, k + 8),
// (row + 8, k), (row + 8, k + 8).
BATON_DEVICE simt::Matrices LoadTwoB(const GemmRow* from, uint32_t row, uint32_t chunk) {
  const uint32_t r = row + simt::lane() % 8 + simt::lane() / 16 * 8;
  return simt::ldmatrix_x4(&from[r][Swizzled(r, chunk + simt::lane() / 8 % 2)]);
}

// The B fragments of rows [row, row + 8) for two steps of K: matrices k, k + 8, k + 16, k + 24.
BATON_DEVICE simt::Matrices LoadTwoSteps(const GemmRow* from, uint32_t row, uint32_t chunk) {
  const uint32_t r = row + simt::lane() % 8;
  return simt::ldmatrix_x4(&from[r][Swizzled(r, chunk + simt::lane() / 8)]);
}

// The stages of both operands of a shape (gemm_shapes.h): [stage][row][chunk].
template <typename Shape>
struct GemmStages {
  GemmRow x[kGemmStages][Shape::kRowsX];
  GemmRow w[kGemmStages][Shape::kRowsW];
};

template <size_t kCount>
BATON_DEVICE void Clear(simt::FragmentC (&sums)[kCount]) {
  BATON_UNROLL
  for (uint32_t i = 0; i < kCount; ++i) sums[i] = {{0.0f, 0.0f, 0.0f, 0.0f}};
}
template <size_t kRows, size_t kColumns>
BATON_DEVICE void Clear(simt::FragmentC (&sums)[kRows][kColumns]) {
  BATON_UNROLL
  for (uint32_t i = 0; i < kRows; ++i) Clear(sums[i]);
}

// totals += sums; sums = 0: the end of a segment.
template <size_t kCount>
BATON_DEVICE void AddSegment(simt::FragmentC (&totals)[kCount], simt::FragmentC (&sums)[kCount]) {
  BATON_UNROLL
  for (uint32_t i = 0; i < kCount; ++i) {
    BATON_UNROLL
    for (uint32_t v = 0; v < 4; ++v) totals[i].values[v] += sums[i].values[v];
    sums[i] = {{0.0f, 0.0f, 0.0f, 0.0f}};
  }
}
template <size_t kRows, size_t kColumns>
BATON_DEVICE void AddSegment(simt::FragmentC (&totals)[kRows][kColumns],
                             simt::FragmentC (&sums)[kRows][kColumns]) {
  BATON_UNROLL
  for (uint32_t i = 0; i < kRows; ++i) AddSegment(totals[i], sums[i]);
}

// Begins the copies of a stage, if it is below `end`; always ends a group.
template <typename Stages>
BATON_DEVICE void CopyStage(const Stages& stages, uint32_t stage, uint32_t end) {
  if (simt::guard(stage < end)) stages.Copy(stage);
  simt::cp_async_commit();
}

// totals = the segments of `split`, each from zero, added in index order to +0. `stages` has
// Copy(stage) put the cta's part of a stage of K into its slot of kCount, and Multiply(stage, sums)
// add its products.
template <typename Stages, typename Sums>
BATON_DEVICE void AddSegments(const GemmSplit& split, uint32_t k, const Stages& stages,
                              Sums& totals) {
  Sums sums;
  Clear(sums);
  Clear(totals);
  const uint32_t num_stages = (k + kGemmStageK - 1) / kGemmStageK;
  const uint32_t stages_a_segment = split.segment_k / kGemmStageK;
  BATON_UNROLL
  for (uint32_t stage = 0; stage < Stages::kCount - 1; ++stage) {
    CopyStage(stages, stage, num_stages);
  }
  uint32_t left = stages_a_segment;
  for (uint32_t stage = 0; stage < num_stages; ++stage) {
    // The thread's own copies of this stage have landed. After the barrier everyone's copies have
    // landed, and everyone has read the stage before, whose slot is filled next.
    simt::cp_async_wait<Stages::kCount - 2>();
    simt::sync_block();
    CopyStage(stages, stage + Stages::kCount - 1, num_stages);
    stages.Multiply(stage, sums);
    if (--left == 0 || stage + 1 == num_stages) {
      AddSegment(totals, sums);
      left = stages_a_segment;
    }
  }
}

// The bias is added in fp32, before the one rounding of a bf16 output.
BATON_DEVICE float WithBias(const GemmParams& params, uint32_t column, float sum) {
  if (params.bias_float != nullptr) return sum + params.bias_float[column];
  if (params.bias_bf16 != nullptr) return sum + simt::from_bf16(params.bias_bf16[column]);
  return sum;
}

// Outputs are bf16 and there is no bias.
constexpr bool IsPlain(const GemmParams& params) {
  return params.y_bf16 != nullptr && params.bias_float == nullptr && params.bias_bf16 == nullptr;
}

BATON_DEVICE void StoreOutput(const GemmParams& params, uint32_t row, uint32_t column, float sum) {
  const size_t at = size_t{row} * params.n + column;
  const float value = WithBias(params, column, sum);
  if (params.y_float != nullptr) {
    params.y_float[at] = value;
  } else {
    params.y_bf16[at] = simt::to_bf16(value);
  }
}

// The first output of a cta.
struct TileOrigin {
  uint32_t row;     // of x and y
  uint32_t column;  // of y, a row of w
};

// Errors in a call of `kernel`: CheckGemm for every product, CheckPacked also for a packed w,
// CheckSpread also where segments may be spread, CheckGrouped for grouped products.
absl::Status CheckGemm(const char* kernel, const GemmParams& params);
absl::Status CheckPacked(const char* kernel, const PackedMatrixView& w, uint32_t k);
absl::Status CheckSpread(const char* kernel, const GemmParams& params);
absl::Status CheckGrouped(const char* kernel, const GroupedGemmParams& params);

// The launches that GemmBf16 chooses from, after it has checked the call. `path` is not kAuto.
absl::Status LaunchGemmRows(const GemmLaunch& launch, GemmPath path, void* stream);
absl::Status LaunchGemmNarrow(const GemmLaunch& launch, void* stream);
absl::Status LaunchGemmTiles(const GemmLaunch& launch, GemmPath path, void* stream);
absl::Status LaunchGemmWgmma(const GemmLaunch& launch, GemmPath path, void* stream);

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_GEMM_TILE_H_
