#include "kernels/cuda/conv_reference.h"

#include <cmath>
#include <cstddef>
#include <cstring>

#include "kernels/math.h"

namespace baton::kernels::cuda {

namespace {

// Row `row` of the batch: where it stands.
struct RowOf {
  uint32_t sequence;
  uint32_t position;
  bool is_last;  // of its sequence in the batch
};

RowOf Row(const ShortConvParams& params, uint32_t row) {
  const uint32_t sequence = params.sequences[row];
  const bool is_last = row + 1 == params.num_rows || params.sequences[row + 1] != sequence;
  return {sequence, params.positions[row], is_last};
}

Bf16* SlotOf(const ShortConvParams& params, uint32_t sequence, uint32_t position) {
  const ConvBlocks& kv = params.kv;
  const uint32_t* blocks = params.block_lists + size_t{sequence} * params.max_blocks;
  std::byte* block = kv.base + blocks[position / kv.block_size] * kv.block_stride_bytes;
  return reinterpret_cast<Bf16*>(block) + size_t{position % kv.block_size} * kv.row_elements;
}

void StoreInputs(const ShortConvParams& params) {
  uint32_t num_before = 0;  // rows of the same sequence before this one
  for (uint32_t r = 0; r < params.num_rows; ++r) {
    const RowOf row = Row(params, r);
    num_before = r > 0 && params.sequences[r - 1] == row.sequence ? num_before + 1 : 0;
    if (row.sequence == kPaddingRow) continue;
    const Bf16* b = params.bcx + size_t{r} * 3 * params.channels;
    const Bf16* x = b + size_t{2} * params.channels;
    Bf16* slot = SlotOf(params, row.sequence, row.position);
    for (uint32_t i = 0; i < params.kv.row_elements; ++i) {
      slot[i].bits = i < params.channels
                         ? Bf16FromFloat(FloatFromBf16(b[i].bits) * FloatFromBf16(x[i].bits))
                         : uint16_t{0};
    }
    const uint32_t token = row.position % params.kv.block_size;
    if (!row.is_last || token > num_before) continue;
    const size_t behind = params.kv.block_size - 1 - token;
    std::memset(slot + params.kv.row_elements, 0, behind * params.kv.row_elements * sizeof(Bf16));
  }
}

}  // namespace

void ReferenceShortConvBits(const ShortConvParams& params) {
  StoreInputs(params);
  for (uint32_t r = 0; r < params.num_rows; ++r) {
    const RowOf row = Row(params, r);
    if (row.sequence == kPaddingRow) continue;
    const Bf16* c = params.bcx + (size_t{r} * 3 + 1) * params.channels;
    for (uint32_t i = 0; i < params.channels; ++i) {
      float sum = 0.0f;
      for (uint32_t j = 0; j < params.num_taps; ++j) {
        const uint32_t back = params.num_taps - 1 - j;
        if (back > row.position) continue;
        const Bf16* slot = SlotOf(params, row.sequence, row.position - back);
        sum = std::fma(params.taps[size_t{i} * params.num_taps + j], FloatFromBf16(slot[i].bits),
                       sum);
      }
      params.out[size_t{r} * params.channels + i].bits =
          Bf16FromFloat(FloatFromBf16(c[i].bits) * sum);
    }
  }
}

}  // namespace baton::kernels::cuda
