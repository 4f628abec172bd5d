// The short convolution: inputs to the blocks, and the sum over a row's last few, in one pass.
//
// Work: one thread for eight channels of a row; rows of the blocks are wider than the channels, so
// some threads only write zeros. A row of the batch has its predecessors from the rows before it,
// rounded as they are stored, and from the blocks what earlier steps stored: no thread waits for
// another, and both ways give the same bits. Bytes: 10 a channel and row (b, c, x, the input, out),
// predecessors from L1 and L2. Flops: 2 taps + 2. Limit: memory (few rows: latency). Reached:
// kernels/NOTES.md.
#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/row_shapes.h"
#include "kernels/simt/device.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {
namespace {

using simt::Vec16;

constexpr uint32_t kConvThreads = 128;

// One thread's place: a row of the batch, and eight channels of it.
struct ConvPlace {
  uint32_t row;
  uint32_t sequence;  // of the row
  uint32_t position;  // of the row
  uint32_t group;
};

// The slot of a position of the row's sequence: these eight channels.
BATON_DEVICE Vec16* SlotOf(const ShortConvParams& params, const ConvPlace& place,
                           uint32_t position) {
  const ConvBlocks& kv = params.kv;
  const uint32_t* blocks = params.block_lists + size_t{place.sequence} * params.max_blocks;
  std::byte* block = kv.base + blocks[position / kv.block_size] * kv.block_stride_bytes;
  const size_t row = size_t{position % kv.block_size} * (kv.row_elements / kVec);
  return reinterpret_cast<Vec16*>(block) + row + place.group;
}

// b x of a row of the batch, as it is stored.
BATON_DEVICE Vec16 InputOfRow(const ShortConvParams& params, uint32_t row, uint32_t group) {
  const uint32_t groups = params.channels / kVec;
  const auto* bcx = reinterpret_cast<const Vec16*>(params.bcx) + size_t{row} * 3 * groups + group;
  const Vec16 b = bcx[0];
  const Vec16 x = bcx[2 * groups];
  Vec16 input;
  BATON_UNROLL
  for (uint32_t w = 0; w < kVec / 2; ++w) {
    input.words[w] =
        Pair(Element(b, 2 * w) * Element(x, 2 * w), Element(b, 2 * w + 1) * Element(x, 2 * w + 1));
  }
  return input;
}

// Writes the row's outputs, and returns its own input.
BATON_DEVICE Vec16 Convolve(const ShortConvParams& params, const ConvPlace& place) {
  const uint32_t groups = params.channels / kVec;
  const uint32_t last = params.num_taps - 1;
  const uint32_t first = place.position < last ? last - place.position : 0;
  const float* taps = params.taps + size_t{place.group} * kVec * params.num_taps;
  float sums[kVec] = {};
  Vec16 input = {};
  for (uint32_t j = first; j < params.num_taps; ++j) {
    const uint32_t back = last - j;
    const bool is_here = back <= place.row && params.sequences[place.row - back] == place.sequence;
    if (simt::guard(is_here)) {
      input = InputOfRow(params, place.row - back, place.group);
    } else {
      input = *SlotOf(params, place, place.position - back);
    }
    BATON_UNROLL
    for (uint32_t i = 0; i < kVec; ++i) {
      sums[i] = simt::fma(taps[i * params.num_taps + j], Element(input, i), sums[i]);
    }
  }
  const auto* bcx = reinterpret_cast<const Vec16*>(params.bcx);
  const Vec16 c = bcx[(size_t{place.row} * 3 + 1) * groups + place.group];
  Vec16 result;
  BATON_UNROLL
  for (uint32_t w = 0; w < kVec / 2; ++w) {
    result.words[w] =
        Pair(Element(c, 2 * w) * sums[2 * w], Element(c, 2 * w + 1) * sums[2 * w + 1]);
  }
  reinterpret_cast<Vec16*>(params.out)[size_t{place.row} * groups + place.group] = result;
  return input;  // the last one is the row's own
}

// Whether the row is the last of its sequence in the batch, and these rows began its block.
BATON_DEVICE bool EndsItsBlock(const ShortConvParams& params, const ConvPlace& place) {
  const uint32_t token = place.position % params.kv.block_size;
  const bool is_last =
      place.row + 1 == params.num_rows || params.sequences[place.row + 1] != place.sequence;
  const bool is_begun = token <= place.row && params.sequences[place.row - token] == place.sequence;
  return is_last && is_begun;
}

BATON_KERNEL(kConvThreads) ShortConvKernel(ShortConvParams params) {
  simt::wait_for_previous();
  const uint32_t groups_a_row = params.kv.row_elements / kVec;
  const uint32_t ctas_a_row = (groups_a_row + kConvThreads - 1) / kConvThreads;
  ConvPlace place;
  place.row = simt::block().x / ctas_a_row;
  place.group = simt::block().x % ctas_a_row * kConvThreads + simt::thread();
  if (!simt::guard(place.group < groups_a_row)) return;
  place.sequence = params.sequences[place.row];
  if (simt::guard(place.sequence == kPaddingRow)) return;
  place.position = params.positions[place.row];
  Vec16 input = {};
  if (simt::guard(place.group < params.channels / kVec)) input = Convolve(params, place);
  Vec16* slot = SlotOf(params, place, place.position);
  *slot = input;
  if (!simt::guard(EndsItsBlock(params, place))) return;
  for (uint32_t token = place.position % params.kv.block_size + 1; token < params.kv.block_size;
       ++token) {
    slot += groups_a_row;
    *slot = {};
  }
}

absl::Status CheckConvShape(const ShortConvParams& params) {
  const auto refuse = [](const std::string& why) {
    return absl::InvalidArgumentError("ShortConv: " + why);
  };
  const ConvBlocks& kv = params.kv;
  if (params.num_taps == 0 || params.num_taps > kMaxShortConvTaps) {
    return refuse(std::to_string(params.num_taps) + " taps are not in [1, " +
                  std::to_string(kMaxShortConvTaps) + "]");
  }
  if (kv.block_size != 16 && kv.block_size != 32 && kv.block_size != 64) {
    return refuse("block_size " + std::to_string(kv.block_size) + " is not 16, 32 or 64");
  }
  if (kv.row_elements % kVec != 0 || kv.row_elements < params.channels) {
    return refuse("rows of " + std::to_string(kv.row_elements) + " elements for " +
                  std::to_string(params.channels) + " channels are too short, or no multiple of 8");
  }
  if (kv.block_stride_bytes % 16 != 0 ||
      kv.block_stride_bytes < size_t{kv.block_size} * kv.row_elements * sizeof(Bf16)) {
    return refuse("a block stride of " + std::to_string(kv.block_stride_bytes) +
                  " bytes is no multiple of 16 that holds the layer's slices");
  }
  constexpr uint32_t kMaxChannels = 1u << 20;
  return CheckDim("ShortConv", params.channels, kMaxChannels);
}

}  // namespace

const KernelInfo kShortConvInfo = {"ShortConvKernel", kConvThreads, 0};

absl::Status ShortConv(const ShortConvParams& params, void* stream) {
  if (absl::Status status = CheckConvShape(params); !status.ok()) return status;
  if (params.num_rows == 0) return absl::OkStatus();
  const uint64_t groups = params.kv.row_elements / kVec;
  const uint64_t ctas = (groups + kConvThreads - 1) / kConvThreads * params.num_rows;
  if (ctas > kMaxGridX) {
    return absl::InvalidArgumentError("ShortConv: too many rows for one grid");
  }
  return simt::launch({.name = "ShortConv",
                       .grid = {static_cast<uint32_t>(ctas), 1, 1},
                       .num_threads = kConvThreads,
                       .overlaps = true,
                       .stream = stream},
                      ShortConvKernel, params);
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda
