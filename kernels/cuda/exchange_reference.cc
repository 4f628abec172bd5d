#include "kernels/cuda/exchange_reference.h"

#include "kernels/math.h"

namespace baton::kernels::cuda {

void ReferenceAllReduce(const AllReduceParams& params) {
  for (size_t i = 0; i < params.num_elements; ++i) {
    float sum = params.parts[0][i];
    for (uint32_t rank = 1; rank < params.ranks.num_ranks; ++rank) sum += params.parts[rank][i];
    for (uint32_t rank = 0; rank < params.ranks.num_ranks; ++rank) {
      params.outs[rank][i].bits = Bf16FromFloat(sum);
    }
  }
}

void ReferenceGatherColumns(const GatherColumnsParams& params) {
  for (size_t row = 0; row < params.num_rows; ++row) {
    float* out = params.out + row * params.num_columns;
    for (uint32_t rank = 0; rank < params.ranks.num_ranks; ++rank) {
      const uint32_t width = ColumnsOfRank(params.num_columns, params.rank_columns, rank);
      for (uint32_t c = 0; c < width; ++c) *out++ = params.parts[rank][row * width + c];
    }
  }
}

}  // namespace baton::kernels::cuda
