// The scalar form of the short convolution.
#include <cmath>

#include "kernels/kv_piece.h"
#include "kernels/reference/reference_math.h"

namespace baton::kernels {

using device::ThreadPool;
using kv::KvLayout;

namespace {

// Where element i of the row of `position` lies.
struct Element {
  std::byte* rows;  // of its block
  size_t index;
};

Element ElementOf(const ShortConvArgs& args, const AttentionSpan& span, uint32_t position,
                  uint32_t i) {
  const KvLayout& layout = *args.kv.layout;
  const uint32_t width = args.num_slices * 2 * layout.num_kv_heads * layout.head_dim;
  const uint32_t block = span.kv.blocks[position / layout.block_size];
  return {args.kv.Piece(block, args.first_slice, 0, 0),
          size_t{position % layout.block_size} * width + i};
}

}  // namespace

void ReferenceConvAppend(ThreadPool&, const ShortConvArgs& args) {
  const KvLayout& layout = *args.kv.layout;
  const uint32_t width = args.num_slices * 2 * layout.num_kv_heads * layout.head_dim;
  const auto put = [&](const AttentionSpan& span, uint32_t position, uint32_t i, float value) {
    const Element at = ElementOf(args, span, position, i);
    StoreKv(layout.dtype, at.rows, at.index, value);
  };
  for (const AttentionSpan& span : args.spans) {
    for (uint32_t r = 0; r < span.num_rows; ++r) {
      const float* b = args.bcx + (size_t{span.first_row} + r) * 3 * args.channels;
      const float* x = b + 2 * args.channels;
      for (uint32_t i = 0; i < width; ++i) {
        put(span, span.first_pos + r, i, i < args.channels ? b[i] * x[i] : 0.0f);
      }
    }
    // The rest of a block that this span has begun.
    const uint32_t end = span.first_pos + span.num_rows;
    if (end % layout.block_size > span.num_rows) continue;
    for (uint32_t position = end; position % layout.block_size != 0; ++position) {
      for (uint32_t i = 0; i < width; ++i) put(span, position, i, 0.0f);
    }
  }
}

void ReferenceShortConv(ThreadPool&, const ShortConvArgs& args) {
  for (const AttentionSpan& span : args.spans) {
    for (uint32_t r = 0; r < span.num_rows; ++r) {
      const size_t row = size_t{span.first_row} + r;
      const float* c = args.bcx + row * 3 * args.channels + args.channels;
      for (uint32_t i = 0; i < args.channels; ++i) {
        float sum = 0.0f;
        for (uint32_t j = 0; j < args.num_taps; ++j) {
          const uint32_t back = args.num_taps - 1 - j;
          if (back > span.first_pos + r) continue;
          const Element at = ElementOf(args, span, span.first_pos + r - back, i);
          const float stored = LoadKv(args.kv.layout->dtype, at.rows, at.index);
          sum = std::fma(args.taps[size_t{j} * args.channels + i], stored, sum);
        }
        args.out[row * args.channels + i] = c[i] * sum;
      }
    }
  }
}

}  // namespace baton::kernels
