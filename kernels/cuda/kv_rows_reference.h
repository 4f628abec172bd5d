// Rows of K and V as the blocks of a device hold them, written and read in the plainest form, on
// host memory. For tests and for checks on a GPU. Pure.
#ifndef BATON_KERNELS_CUDA_KV_ROWS_REFERENCE_H_
#define BATON_KERNELS_CUDA_KV_ROWS_REFERENCE_H_

#include <cstddef>
#include <vector>

#include "kernels/cuda/kv_blocks.h"
#include "kernels/simt/types.h"

namespace baton::kernels::cuda {

// Writes `row` [head_dim] into the slot of a token of this piece: what RopeAppend stores of it.
void ReferenceStoreRow(const KvBlocks& kv, const simt::Bf16* row, std::byte* piece, uint32_t token);

// The row that this slot holds, [head_dim]: attention multiplies with it.
std::vector<simt::Bf16> ReferenceLoadRow(const KvBlocks& kv, const std::byte* piece,
                                         uint32_t token);

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_KV_ROWS_REFERENCE_H_
