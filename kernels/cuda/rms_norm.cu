// residual += x, or += the norm of x, and the norm of the result, in one pass over memory.
//
// Work: one cta a row, min(512, dim / 8 rounded up to a warp) threads. Each thread has up to four
// groups of eight elements of x and of the residual in registers. Bytes: 8 an element (x, residual
// in, residual out, out), the weights once from L2. Flops: 5 an element, 9 with the norm of x.
// Limit: memory. Reached: kernels/NOTES.md.
// Order: a thread adds its squares ascending by fma; a warp by the tree 16, 8, 4, 2, 1; the cta
// its warps ascending. It depends on dim only.
#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/row_shapes.h"
#include "kernels/simt/device.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {
namespace {

using simt::Vec16;

constexpr uint32_t kNormThreads = 512;
constexpr uint32_t kGroups = kMaxNormDim / kVec / kNormThreads;
static_assert(kGroups * kVec * kNormThreads == kMaxNormDim && kGroups == 4);
static_assert(kMaxNormedDim == kNormThreads * kVec, "squares of one group a thread");

// A thread's part of a row, zeros after its end: [group of eight].
struct NormRow {
  Vec16 groups[kGroups];
};

// [warp]; of x and of the residual: nobody waits before the second sum.
struct NormShared {
  float x_sums[kNormThreads / simt::kWarpSize];
  float sums[kNormThreads / simt::kWarpSize];
};

// The sum of all threads' values, the same bits in each. `sums`: [warp].
BATON_DEVICE float CtaSum(float value, float* sums) {
  BATON_UNROLL
  for (uint32_t step = simt::kWarpSize / 2; step > 0; step /= 2) {
    value += simt::shfl_xor(value, step);
  }
  if (simt::lane() == 0) sums[simt::warp()] = value;
  simt::sync_block();
  float sum = 0.0f;
  for (uint32_t i = 0; i < simt::num_threads() / simt::kWarpSize; ++i) sum += sums[i];
  return sum;
}

// 1 / sqrt(mean of the row's squares + eps).
BATON_DEVICE float InverseRms(const NormRow& row, const RmsNormParams& params, float* sums) {
  float squares = 0.0f;
  BATON_UNROLL
  for (uint32_t g = 0; g < kGroups; ++g) {
    BATON_UNROLL
    for (uint32_t i = 0; i < kVec; ++i) {
      squares = simt::fma(Element(row.groups[g], i), Element(row.groups[g], i), squares);
    }
  }
  const float mean = CtaSum(squares, sums) / static_cast<float>(params.dim);
  return 1.0f / simt::square_root(mean + params.eps);
}

// Element i of x as it is added to the residual.
BATON_DEVICE float Added(const Vec16& x, uint32_t i, const Vec16* weight, float scale) {
  if (weight == nullptr) return Element(x, i);
  return Element(x, i) * scale * Element(*weight, i);
}

BATON_KERNEL(kNormThreads) RmsNormKernel(RmsNormParams params) {
  auto& memory = simt::shared<NormShared>();
  const uint32_t num_groups = params.dim / kVec;
  const size_t first = size_t{simt::block().x} * num_groups;
  const auto* x = reinterpret_cast<const Vec16*>(params.x) + first;
  const auto* x_weight = reinterpret_cast<const Vec16*>(params.x_weight);
  auto* residual = reinterpret_cast<Vec16*>(params.residual) + first;
  const auto* weight = reinterpret_cast<const Vec16*>(params.weight);
  auto* out = reinterpret_cast<Vec16*>(params.out) + first;

  simt::wait_for_previous();
  NormRow added;
  NormRow sum;  // the residual, then with what was added
  BATON_UNROLL
  for (uint32_t g = 0; g < kGroups; ++g) {
    const uint32_t at = g * kNormThreads + simt::thread();
    const bool inside = simt::guard(at < num_groups);
    added.groups[g] = inside ? x[at] : Vec16{{0, 0, 0, 0}};
    sum.groups[g] = inside ? residual[at] : Vec16{{0, 0, 0, 0}};
  }
  const float x_scale = x_weight == nullptr ? 1.0f : InverseRms(added, params, memory.x_sums);

  BATON_UNROLL
  for (uint32_t g = 0; g < kGroups; ++g) {
    const uint32_t at = g * kNormThreads + simt::thread();
    if (!simt::guard(at < num_groups)) continue;
    Vec16 scales = {{0, 0, 0, 0}};
    if (x_weight != nullptr) scales = x_weight[at];
    const Vec16* const given = x_weight == nullptr ? nullptr : &scales;
    BATON_UNROLL
    for (uint32_t w = 0; w < 4; ++w) {
      const Vec16& old = sum.groups[g];
      const float low = Added(added.groups[g], 2 * w, given, x_scale) + Element(old, 2 * w);
      const float high =
          Added(added.groups[g], 2 * w + 1, given, x_scale) + Element(old, 2 * w + 1);
      sum.groups[g].words[w] = Pair(low, high);
    }
    residual[at] = sum.groups[g];
  }
  const float scale = InverseRms(sum, params, memory.sums);

  BATON_UNROLL
  for (uint32_t g = 0; g < kGroups; ++g) {
    const uint32_t at = g * kNormThreads + simt::thread();
    if (!simt::guard(at < num_groups)) continue;
    const Vec16 scales = weight[at];
    Vec16 result;
    BATON_UNROLL
    for (uint32_t w = 0; w < 4; ++w) {
      result.words[w] =
          Pair(Element(sum.groups[g], 2 * w) * scale * Element(scales, 2 * w),
               Element(sum.groups[g], 2 * w + 1) * scale * Element(scales, 2 * w + 1));
    }
    out[at] = result;
  }
}

}  // namespace

const KernelInfo kRmsNormInfo = {"RmsNormKernel", kNormThreads, sizeof(NormShared)};

absl::Status RmsNorm(const RmsNormParams& params, void* stream) {
  if (absl::Status status = CheckDim("RmsNorm", params.dim, kMaxNormDim); !status.ok()) {
    return status;
  }
  if (params.num_rows == 0) return absl::OkStatus();
  const uint32_t warps = (params.dim / kVec + simt::kWarpSize - 1) / simt::kWarpSize;
  const uint32_t threads = warps * simt::kWarpSize;
  return simt::launch({.name = "RmsNorm",
                       .grid = {params.num_rows, 1, 1},
                       .num_threads = threads < kNormThreads ? threads : kNormThreads,
                       .shared_bytes = sizeof(NormShared),
                       .overlaps = true,
                       .stream = stream},
                      RmsNormKernel, params);
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda
