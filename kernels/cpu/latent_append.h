// The rows of multi-head latent attention: turns the keys and the queries' last elements, and
// stores the rows. Included by one translation unit per instruction set, after rope_append.h. Bound
// by memory: each row is read once and written once, and of the queries rope_dims elements a head.
#ifndef BATON_KERNELS_CPU_LATENT_APPEND_H_
#define BATON_KERNELS_CPU_LATENT_APPEND_H_

#include <cstring>

#include "kernels/cpu/rope_append.h"
#include "kernels/kv_piece.h"
#include "kernels/ops.h"

namespace baton::kernels::BATON_ISA {

BATON_INLINE void StoreElements(kv::KvDtype dtype, const float* in, uint32_t count,
                                std::byte* row) {
  if (dtype == kv::KvDtype::kF32) {
    std::memcpy(row, in, count * sizeof(float));
    return;
  }
  auto* out = reinterpret_cast<uint16_t*>(row);
  for (uint32_t i = 0; i < count; ++i) out[i] = Bf16FromFloat(in[i]);
}

// The row of `token` in a block of latent rows.
BATON_INLINE std::byte* LatentRow(const LatentAppendArgs& args, const AttentionSpan& span,
                                  uint32_t position) {
  const kv::KvLayout& layout = *args.kv.layout;
  const uint32_t block = span.kv.blocks[position / layout.block_size];
  return args.kv.Piece(block, args.layer, 0, 0) +
         size_t{position % layout.block_size} * layout.head_dim * layout.ElementBytes();
}

inline void LatentAppendRow(const LatentAppendArgs& args, const AttentionSpan& span, uint32_t r) {
  const kv::KvLayout& layout = *args.kv.layout;
  const uint32_t dim = layout.head_dim;
  const uint32_t latent_dim = dim - args.rope_dims;
  const uint32_t position = span.first_pos + r;
  const size_t row = size_t{span.first_row} + r;
  const float* cos_sin = args.cos_sin + size_t{position} * args.rope_dims;
  const float* q = args.q + row * args.num_heads * args.q_head_dim;
  float* absorbed = args.absorbed + row * args.num_heads * dim;
  for (uint32_t head = 0; head < args.num_heads; ++head) {
    RotateInterleaved(q + size_t{head + 1} * args.q_head_dim - args.rope_dims, cos_sin,
                      args.rope_dims, absorbed + size_t{head} * dim + latent_dim);
  }
  alignas(64) float key[kMaxHeadDim];
  const float* latent = args.latents + row * dim;
  RotateInterleaved(latent + latent_dim, cos_sin, args.rope_dims, key);
  std::byte* out = LatentRow(args, span, position);
  StoreElements(layout.dtype, latent, latent_dim, out);
  StoreElements(layout.dtype, key, args.rope_dims, out + latent_dim * layout.ElementBytes());
}

inline void LatentAppend(device::ThreadPool& pool, const LatentAppendArgs& args) {
  const kv::KvLayout& layout = *args.kv.layout;
  const uint32_t row_elements = layout.head_dim + args.num_heads * args.rope_dims;
  const uint32_t min_rows = 1 + 8192 / row_elements;
  for (const AttentionSpan& span : args.spans) {
    // Spans of a decode batch have one row: they stay on the caller.
    pool.RunRanges(span.num_rows, min_rows, 4 * pool.num_threads(),
                   [&](device::TaskRange range, uint32_t) {
                     for (uint32_t r = range.begin; r < range.end; ++r)
                       LatentAppendRow(args, span, r);
                   });
    const uint32_t end = span.first_pos + span.num_rows;
    const uint32_t used = end % layout.block_size;
    // A block that was begun by an earlier span is zero after its rows already.
    if (used == 0 || used > span.num_rows) continue;
    const size_t row_bytes = layout.head_dim * layout.ElementBytes();
    std::memset(LatentRow(args, span, end), 0, (layout.block_size - used) * row_bytes);
  }
}

}  // namespace baton::kernels::BATON_ISA

#endif  // BATON_KERNELS_CPU_LATENT_APPEND_H_
