// residual += x and the norm of the result, in one pass over memory.
//
// Work: one cta a row, min(512, dim / 8 rounded up to a warp) threads, each with up to four groups
// of eight elements in registers. Bytes: 8 a element (x, residual in, residual out, out), the
// weight once from L2. Flops: 5 a element. Limit: memory. Reached: not yet measured on a GPU.
// Order: a thread adds its squares ascending by fma; a warp by the tree 16, 8, 4, 2, 1; the cta
// its warps ascending. It depends on dim only.
#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/row_shapes.h"
#include "kernels/simt/device.h"

namespace baton::cuda {
inline namespace BATON_BODY {
namespace {

using simt::Vec16;

constexpr uint32_t kNormThreads = 512;
constexpr uint32_t kGroups = kMaxNormDim / kVec / kNormThreads;
static_assert(kGroups * kVec * kNormThreads == kMaxNormDim && kGroups == 4);

// [warp]
struct NormShared {
  float sums[kNormThreads / simt::kWarpSize];
};

// The sum of all threads' values, the same bits in each.
BATON_DEVICE float CtaSum(float value, NormShared& memory) {
  BATON_UNROLL
  for (uint32_t step = simt::kWarpSize / 2; step > 0; step /= 2) {
    value += simt::shfl_xor(value, step);
  }
  if (simt::lane() == 0) memory.sums[simt::warp()] = value;
  simt::sync_block();
  float sum = 0.0f;
  for (uint32_t i = 0; i < simt::num_threads() / simt::kWarpSize; ++i) sum += memory.sums[i];
  return sum;
}

BATON_KERNEL(kNormThreads) RmsNormKernel(RmsNormParams params) {
  auto& memory = simt::shared<NormShared>();
  const uint32_t num_groups = params.dim / kVec;
  const size_t row = size_t{simt::block().x} * num_groups;
  const auto* x = reinterpret_cast<const Vec16*>(params.x) + row;
  auto* residual = reinterpret_cast<Vec16*>(params.residual) + row;
  const auto* weight = reinterpret_cast<const Vec16*>(params.weight);
  auto* out = reinterpret_cast<Vec16*>(params.out) + row;

  Vec16 sums[kGroups];
  float squares = 0.0f;
  BATON_UNROLL
  for (uint32_t g = 0; g < kGroups; ++g) {
    const uint32_t at = g * kNormThreads + simt::thread();
    if (!simt::guard(at < num_groups)) continue;
    const Vec16 a = x[at];
    const Vec16 b = residual[at];
    BATON_UNROLL
    for (uint32_t w = 0; w < 4; ++w) {
      const float low = Element(a, 2 * w) + Element(b, 2 * w);
      const float high = Element(a, 2 * w + 1) + Element(b, 2 * w + 1);
      sums[g].words[w] = Pair(low, high);
    }
    residual[at] = sums[g];
    BATON_UNROLL
    for (uint32_t i = 0; i < kVec; ++i) {
      squares = simt::fma(Element(sums[g], i), Element(sums[g], i), squares);
    }
  }

  const float mean = CtaSum(squares, memory) / static_cast<float>(params.dim);
  const float scale = 1.0f / simt::square_root(mean + params.eps);

  BATON_UNROLL
  for (uint32_t g = 0; g < kGroups; ++g) {
    const uint32_t at = g * kNormThreads + simt::thread();
    if (!simt::guard(at < num_groups)) continue;
    const Vec16 scales = weight[at];
    Vec16 result;
    BATON_UNROLL
    for (uint32_t w = 0; w < 4; ++w) {
      result.words[w] = Pair(Element(sums[g], 2 * w) * scale * Element(scales, 2 * w),
                             Element(sums[g], 2 * w + 1) * scale * Element(scales, 2 * w + 1));
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
                       .stream = stream},
                      RmsNormKernel, params);
}

}  // namespace BATON_BODY
}  // namespace baton::cuda
