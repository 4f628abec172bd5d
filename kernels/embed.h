// Embedding lookup and the zeroing of unused token slots, shared by all instruction sets: neither
// has an operation whose rounding could differ. Reached through Ops.
#ifndef BATON_KERNELS_EMBED_H_
#define BATON_KERNELS_EMBED_H_

#include "kernels/ops.h"

namespace baton::kernels {

// Ops::embed. A quantised element is scale * q + min: scale and min (ScalesOf) and the product of
// scale and digit are exact in fp32, so there is one rounding, with or without fma, and none
// without a min.
void EmbedRows(device::ThreadPool& pool, const PackedMatrix& matrix, std::span<const int32_t> ids,
               float* out);

// A raw row of `k` elements as it lies in a model file, to out [k]: the values of EmbedRows. False
// when a scale or min of it is an infinity or a NaN, which Pack refuses.
bool DequantizeRow(WeightType type, const std::byte* raw, uint32_t k, float* out);

// When span's last row leaves its block part-full and the block was begun by this span, zeroes the
// unused token slots of that block and layer, for all heads. Slots of a block that was begun
// earlier were zeroed then.
void ZeroUnusedSlots(const RopeAppendArgs& args, const AttentionSpan& span);

}  // namespace baton::kernels

#endif  // BATON_KERNELS_EMBED_H_
