// Host code that the launches of the attention kernels share. Included by their sources.
#ifndef BATON_KERNELS_CUDA_ATTENTION_LAUNCH_H_
#define BATON_KERNELS_CUDA_ATTENTION_LAUNCH_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

#include "kernels/cuda/attention_params.h"
#include "kernels/cuda/row_shapes.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {

// Which of a kernel's six forms takes these blocks: head_dim 64, 128, 256 of bf16; of fp8.
inline uint32_t KernelIndex(const KvBlocks& kv) {
  const uint32_t of_dim = kv.head_dim == 64 ? 0 : kv.head_dim == 128 ? 1 : 2;
  return of_dim + (kv.element == KvElement::kFp8 ? 3 : 0);
}

// OK for what all of them take.
inline absl::Status CheckAttention(const char* kernel, const AttentionParams& params) {
  if (absl::Status status = CheckKvShape(kernel, params.kv, params.num_heads); !status.ok()) {
    return status;
  }
  if (params.num_ctas > 0 && params.num_ctas <= kMaxGridX) return absl::OkStatus();
  return absl::InvalidArgumentError(std::string(kernel) + ": a grid of " +
                                    std::to_string(params.num_ctas) + " ctas");
}

// attention_spread.cu: of params that CheckAttention took, where HasSpread.
absl::Status LaunchAttentionSpread(const AttentionParams& params, void* stream);

// attention_wgmma.cu: of params that CheckAttention took. FailedPrecondition without wgmma.
absl::Status LaunchAttentionWgmma(const AttentionParams& params, void* stream);

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_ATTENTION_LAUNCH_H_
