// The parameters of the choice of tokens. Included through kernel_table.h.
#ifndef BATON_KERNELS_CUDA_SAMPLE_PARAMS_H_
#define BATON_KERNELS_CUDA_SAMPLE_PARAMS_H_

#include <cstdint>

#include "kernels/sampling.h"

namespace baton::kernels::cuda {

// The token of each row by the rules of src/model/sampler.h from step 5 on, with its bits.
struct SampleParams {
  const float* logits;      // [num_rows][vocab_size]; not written
  const RowSampling* rows;  // [num_rows]
  uint32_t* tokens;  // [num_rows]; kNoToken where the row is not to be chosen, or has no largest
                     // logit that is finite
  uint32_t num_rows;
  uint32_t vocab_size;  // at least 1
};
inline constexpr uint32_t kNoToken = 0xFFFFFFFFu;

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_SAMPLE_PARAMS_H_
