// The weighted sum of what a row's experts gave.
//
// Work: one thread for eight elements of a row. Bytes: 2 top_k + 2 an element, the slots and
// weights once a row from L2. Flops: 2 top_k an element. Limit: memory. Reached: kernels/NOTES.md.
#include <bit>

#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/row_shapes.h"
#include "kernels/simt/device.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {
namespace {

using simt::Vec16;

constexpr uint32_t kCombineThreads = 128;

BATON_KERNEL(kCombineThreads) CombineKernel(CombineParams params) {
  const uint32_t num_groups = params.dim / kVec;
  const uint32_t ctas_a_row = (num_groups + kCombineThreads - 1) / kCombineThreads;
  const size_t row = simt::block().x / ctas_a_row;
  const uint32_t at = simt::block().x % ctas_a_row * kCombineThreads + simt::thread();
  simt::wait_for_previous();
  if (!simt::guard(at < num_groups)) return;
  const auto* y = reinterpret_cast<const Vec16*>(params.y) + at;
  float sums[kVec];
  BATON_UNROLL
  for (float& sum : sums) sum = 0.0f;
  for (size_t pair = row * params.top_k; pair < (row + 1) * params.top_k; ++pair) {
    const float weight = params.weights[pair];
    const Vec16 part = y[size_t{params.slots[pair]} * num_groups];
    BATON_UNROLL
    for (uint32_t i = 0; i < kVec; ++i) sums[i] = simt::fma(weight, Element(part, i), sums[i]);
  }
  if (params.out_float != nullptr) {
    auto* const out = reinterpret_cast<Vec16*>(params.out_float) + 2 * (row * num_groups + at);
    BATON_UNROLL
    for (uint32_t half = 0; half < 2; ++half) {
      Vec16 four;
      BATON_UNROLL
      for (uint32_t w = 0; w < 4; ++w) {
        four.words[w] = std::bit_cast<uint32_t>(sums[4 * half + w]);
      }
      out[half] = four;
    }
    return;
  }
  Vec16 result;
  BATON_UNROLL
  for (uint32_t w = 0; w < 4; ++w) result.words[w] = Pair(sums[2 * w], sums[2 * w + 1]);
  reinterpret_cast<Vec16*>(params.out)[row * num_groups + at] = result;
}

}  // namespace

const KernelInfo kCombineInfo = {"CombineKernel", kCombineThreads, 0};

absl::Status Combine(const CombineParams& params, void* stream) {
  constexpr uint32_t kMaxDim = 1u << 20;
  if (absl::Status status = CheckDim("Combine", params.dim, kMaxDim); !status.ok()) return status;
  if (params.num_rows == 0) return absl::OkStatus();
  const uint64_t ctas_a_row = (params.dim / kVec + kCombineThreads - 1) / kCombineThreads;
  const uint64_t ctas = ctas_a_row * params.num_rows;
  if (ctas > kMaxGridX) return absl::InvalidArgumentError("Combine: too many rows for one grid");
  return simt::launch({.name = "Combine",
                       .grid = {static_cast<uint32_t>(ctas), 1, 1},
                       .num_threads = kCombineThreads,
                       .overlaps = true,
                       .stream = stream},
                      CombineKernel, params);
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda
