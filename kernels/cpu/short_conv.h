// The short convolution: its inputs to the blocks, and the sum over a row's last few. Included by
// one translation unit per instruction set.
//
// Bound by memory: a row of 3 * channels is read, channels are stored, and num_taps stored rows are
// read, of which a chunk finds all but one in L1. The products around it cost 2 * 4 * channels^2
// flops a row, over 500 times as much for 1024 channels.
#ifndef BATON_KERNELS_CPU_SHORT_CONV_H_
#define BATON_KERNELS_CPU_SHORT_CONV_H_

#include <cstring>

#include "kernels/kv_piece.h"
#include "kernels/ops.h"

namespace baton::kernels::BATON_ISA {

// Where the rows of one sequence lie.
struct ConvRows {
  const ShortConvArgs& args;
  const AttentionSpan& span;

  uint32_t block_size() const { return args.kv.layout->block_size; }
  size_t row_bytes() const { return args.num_slices * args.kv.layout->SliceBytes() / block_size(); }
  std::byte* At(uint32_t position) const {
    const uint32_t block = span.kv.blocks[position / block_size()];
    return args.kv.Piece(block, args.first_slice, 0, 0) + position % block_size() * row_bytes();
  }
};

BATON_INLINE void StoreInputs(kv::KvDtype dtype, const float* b, const float* x, uint32_t channels,
                              std::byte* row) {
  for (uint32_t i = 0; i < channels; ++i) StoreKv(dtype, row, i, b[i] * x[i]);
}

inline void ConvAppendRow(const ConvRows& rows, uint32_t r) {
  const ShortConvArgs& args = rows.args;
  const uint32_t channels = args.channels;
  const float* b = args.bcx + (size_t{rows.span.first_row} + r) * 3 * channels;
  const float* x = b + 2 * channels;
  std::byte* row = rows.At(rows.span.first_pos + r);
  const kv::KvLayout& layout = *args.kv.layout;
  if (layout.dtype == kv::KvDtype::kBf16) {  // a constant: the loop has no branch
    StoreInputs(kv::KvDtype::kBf16, b, x, channels, row);
  } else {
    StoreInputs(kv::KvDtype::kF32, b, x, channels, row);
  }
  const size_t used = channels * layout.ElementBytes();
  std::memset(row + used, 0, rows.row_bytes() - used);
}

// Calls body(span, begin, end) for the rows [begin, end) of each span, in parts on the threads of
// the pool. A span of several rows is cut; spans of one row, as a decode batch has them, are shared
// out where they stand side by side. Spans that one call of conv_append shares out are of different
// sequences, so that no two write to one block.
template <typename Body>
BATON_INLINE void ForSpanRows(device::ThreadPool& pool, const ShortConvArgs& args, Body&& body) {
  const uint32_t min_rows = 1 + 16384 / (args.channels > 0 ? args.channels : 1);
  const uint32_t max_parts = 4 * pool.num_threads();
  for (size_t first = 0; first < args.spans.size();) {
    const AttentionSpan& span = args.spans[first];
    size_t end = first + 1;
    if (span.num_rows == 1) {
      while (end < args.spans.size() && args.spans[end].num_rows == 1) ++end;
      pool.RunRanges(static_cast<uint32_t>(end - first), min_rows, max_parts,
                     [&](device::TaskRange range, uint32_t) {
                       for (uint32_t i = range.begin; i < range.end; ++i) {
                         body(args.spans[first + i], 0u, 1u);
                       }
                     });
    } else {
      pool.RunRanges(span.num_rows, min_rows, max_parts, [&](device::TaskRange range, uint32_t) {
        body(span, range.begin, range.end);
      });
    }
    first = end;
  }
}

inline void ConvAppend(device::ThreadPool& pool, const ShortConvArgs& args) {
  ForSpanRows(pool, args, [&](const AttentionSpan& span, uint32_t begin, uint32_t end) {
    const ConvRows rows{args, span};
    for (uint32_t r = begin; r < end; ++r) ConvAppendRow(rows, r);
    if (end < span.num_rows) return;
    const uint32_t end_pos = span.first_pos + span.num_rows;
    const uint32_t used = end_pos % rows.block_size();
    // A block that was begun by an earlier span is zero after its rows already.
    if (used == 0 || used > span.num_rows) return;
    std::memset(rows.At(end_pos), 0, (rows.block_size() - used) * rows.row_bytes());
  });
}

template <kv::KvDtype kDtype>
BATON_INLINE F32x16 LoadInputs(const std::byte* row, uint32_t i) {
  if constexpr (kDtype == kv::KvDtype::kF32) {
    return Load(reinterpret_cast<const float*>(row) + i);
  } else {
    return LoadBf16(row + size_t{i} * 2);
  }
}

template <kv::KvDtype kDtype>
inline void ShortConvRow(const ConvRows& rows, uint32_t r) {
  const ShortConvArgs& args = rows.args;
  const uint32_t channels = args.channels;
  const uint32_t position = rows.span.first_pos + r;
  const uint32_t num_inputs = position < args.num_taps ? position + 1 : args.num_taps;
  const std::byte* inputs[kMaxConvTaps];  // the oldest first
  for (uint32_t j = 0; j < num_inputs; ++j) inputs[j] = rows.At(position + 1 - num_inputs + j);
  const float* taps = args.taps + size_t{args.num_taps - num_inputs} * channels;
  const size_t row = size_t{rows.span.first_row} + r;
  const float* c = args.bcx + (row * 3 + 1) * channels;
  float* out = args.out + row * channels;
  const uint32_t whole = channels & ~15u;
  for (uint32_t i = 0; i < whole; i += 16) {
    F32x16 sum = Zero();
    for (uint32_t j = 0; j < num_inputs; ++j) {
      sum = Fma(Load(taps + size_t{j} * channels + i), LoadInputs<kDtype>(inputs[j], i), sum);
    }
    Store(out + i, Mul(Load(c + i), sum));
  }
  for (uint32_t i = whole; i < channels; ++i) {
    float sum = 0.0f;
    for (uint32_t j = 0; j < num_inputs; ++j) {
      sum = FmaScalar(taps[size_t{j} * channels + i], LoadKv(kDtype, inputs[j], i), sum);
    }
    out[i] = c[i] * sum;
  }
}

inline void ShortConv(device::ThreadPool& pool, const ShortConvArgs& args) {
  const bool is_f32 = args.kv.layout->dtype == kv::KvDtype::kF32;
  ForSpanRows(pool, args, [&](const AttentionSpan& span, uint32_t begin, uint32_t end) {
    const ConvRows rows{args, span};
    for (uint32_t r = begin; r < end; ++r) {
      if (is_f32) {
        ShortConvRow<kv::KvDtype::kF32>(rows, r);
      } else {
        ShortConvRow<kv::KvDtype::kBf16>(rows, r);
      }
    }
  });
}

}  // namespace baton::kernels::BATON_ISA

#endif  // BATON_KERNELS_CPU_SHORT_CONV_H_
