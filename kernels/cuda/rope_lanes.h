// A lane's part in norms of q and k, rotary embedding and the append of K and V: what
// rope_append.cu says, for every kernel that does it. Included by kernels only.
#ifndef BATON_KERNELS_CUDA_ROPE_LANES_H_
#define BATON_KERNELS_CUDA_ROPE_LANES_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/rope_codes.h"
#include "kernels/cuda/row_shapes.h"
#include "kernels/simt/device.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {

inline constexpr uint32_t kRopeThreads = 128;

// A lane's elements of a head: [0, 4) from 4j on, [4, 8) from head_dim / 2 + 4j on.
struct RopeLane {
  float values[2 * kQuad];
};

// One lane's place: a row of the batch, a head of [q|k|v] and eight of its elements.
struct RopePlace {
  uint32_t row;
  uint32_t sequence;  // of the row
  uint32_t position;  // of the row
  uint32_t head;
  uint32_t lane;  // of the head
  bool is_head;   // false behind the last head or row, and in padding
};

BATON_DEVICE RopeLane Widen(const Quad& low, const Quad& high) {
  RopeLane x;
  BATON_UNROLL
  for (uint32_t i = 0; i < kQuad; ++i) {
    x.values[i] = QuadElement(low, i);
    x.values[kQuad + i] = QuadElement(high, i);
  }
  return x;
}

// The sum of the values of a head's lanes, the same bits in each. All lanes of the warp call it.
BATON_DEVICE float HeadSum(float value, uint32_t lanes) {
  for (uint32_t step = lanes / 2; step > 0; step /= 2) value += simt::shfl_xor(value, step);
  return value;
}

BATON_DEVICE void ScaleByWeight(const Bf16* weight, uint32_t dim, const RopePlace& place,
                                float scale, RopeLane& x) {
  const auto* quads = reinterpret_cast<const Quad*>(weight);
  const Quad low = quads[place.lane];
  const Quad high = quads[dim / 2 / kQuad + place.lane];
  BATON_UNROLL
  for (uint32_t i = 0; i < kQuad; ++i) {
    x.values[i] = x.values[i] * scale * QuadElement(low, i);
    x.values[kQuad + i] = x.values[kQuad + i] * scale * QuadElement(high, i);
  }
}

BATON_DEVICE void RotatePair(const float* cos_sin, float& x0, float& x1) {
  const float cos = cos_sin[0];
  const float sin = cos_sin[1];
  const float y0 = simt::fma(x0, cos, -(x1 * sin));
  x1 = simt::fma(x1, cos, x0 * sin);
  x0 = y0;
}

// `table`: (cos, sin) of the row's position, [head_dim / 2][2].
BATON_DEVICE void RotateHead(const RopeAppendParams& params, const float* table, uint32_t lane,
                             RopeLane& x) {
  if (params.interleaved) {
    const float* low = table + size_t{kQuad} * lane;
    const float* high = low + params.kv.head_dim / 2;
    BATON_UNROLL
    for (uint32_t i = 0; i < kQuad; i += 2) {
      RotatePair(low + i, x.values[i], x.values[i + 1]);
      RotatePair(high + i, x.values[kQuad + i], x.values[kQuad + i + 1]);
    }
    return;
  }
  const float* pairs = table + size_t{2} * kQuad * lane;
  BATON_UNROLL
  for (uint32_t i = 0; i < kQuad; ++i) {
    RotatePair(pairs + size_t{2} * i, x.values[i], x.values[kQuad + i]);
  }
}

BATON_DEVICE Quad Narrow(const float* values) {
  return {{Pair(values[0], values[1]), Pair(values[2], values[3])}};
}

// The slots of a piece from `slot` on get zeros where the row is the sequence's last: this lane's
// elements of each.
BATON_DEVICE void ZeroSlotsBehind(const RopeAppendParams& params, const RopePlace& place,
                                  Quad* slot, uint32_t num_slots) {
  const uint32_t quads_a_row = params.kv.head_dim / kQuad;
  const bool is_last = place.row + 1 == params.num_rows ||
                       params.sequences[place.row + 1] != params.sequences[place.row];
  if (!simt::guard(is_last)) return;
  for (uint32_t i = 0; i < num_slots; ++i) {
    slot[place.lane] = {{0, 0}};
    slot[quads_a_row / 2 + place.lane] = {{0, 0}};
    slot += quads_a_row;
  }
}

// Stores the row's codes and scale and, where the row is its sequence's last, zeros into the slots
// after it.
BATON_DEVICE void StoreCodes(const RopeAppendParams& params, const RopePlace& place,
                             std::byte* piece, uint32_t token, const CodedHead& coded) {
  const KvBlocks& kv = params.kv;
  const bool is_last = place.row + 1 == params.num_rows ||
                       params.sequences[place.row + 1] != params.sequences[place.row];
  const uint32_t end = simt::guard(is_last) ? kv.block_size : token + 1;
  const uint32_t lane = place.lane;
  const uint32_t words_a_row = kv.head_dim / kQuad;
  auto* row = reinterpret_cast<uint32_t*>(piece) + size_t{token} * words_a_row + lane / 4 * 4 +
              lane % 2 * 2 + lane % 4 / 2;
  auto* scales = reinterpret_cast<uint16_t*>(piece + kv.ScaleOffset(0));
  row[0] = coded.low;
  row[words_a_row / 2] = coded.high;
  if (lane == 0) scales[token] = coded.scale;
  for (uint32_t i = token + 1; i < end; ++i) {
    row += words_a_row;
    row[0] = 0;
    row[words_a_row / 2] = 0;
    if (lane == 0) scales[i] = 0;
  }
}

// Norms, rotates and stores the lane's part of a head. All lanes of the warp call it; those of no
// head only take part in what the others exchange.
template <KvElement kElement>
BATON_DEVICE void AppendHead(const RopeAppendParams& params, const RopePlace& place) {
  const KvBlocks& kv = params.kv;
  const uint32_t quads_a_row = kv.head_dim / kQuad;
  const uint32_t num_heads = params.num_heads + 2 * kv.num_kv_heads;
  const auto* in = reinterpret_cast<const Quad*>(params.qkv) +
                   (size_t{place.row} * num_heads + place.head) * quads_a_row + place.lane;
  Quad low = {{0, 0}};
  Quad high = {{0, 0}};
  if (place.is_head) {
    low = in[0];
    high = in[quads_a_row / 2];
  }

  const bool is_q = place.head < params.num_heads;
  const bool is_v = place.head >= params.num_heads + kv.num_kv_heads;
  RopeLane x = Widen(low, high);
  if (params.q_norm != nullptr || params.k_norm != nullptr) {
    float squares = 0.0f;
    BATON_UNROLL
    for (const float value : x.values) squares = simt::fma(value, value, squares);
    const float mean = HeadSum(squares, kv.head_dim / kVec) / static_cast<float>(kv.head_dim);
    const float scale = 1.0f / simt::square_root(mean + params.eps);
    const Bf16* weight = is_q ? params.q_norm : params.k_norm;
    if (!is_v && weight != nullptr) ScaleByWeight(weight, kv.head_dim, place, scale, x);
  }
  if (kElement == KvElement::kBf16 && !place.is_head) return;
  if (!is_v) {
    RotateHead(params, params.cos_sin + size_t{place.position} * kv.head_dim, place.lane, x);
    low = Narrow(x.values);
    high = Narrow(x.values + kQuad);
  }

  [[maybe_unused]] CodedHead coded;
  if constexpr (kElement == KvElement::kFp8) {
    coded = CodeHead(low, high, place.lane, kv.head_dim / kVec);
    if (!place.is_head) return;
  }
  if (is_q) {
    auto* out = reinterpret_cast<Quad*>(params.q) +
                (size_t{place.row} * params.num_heads + place.head) * quads_a_row + place.lane;
    out[0] = low;
    out[quads_a_row / 2] = high;
    return;
  }
  const uint32_t kv_head = (place.head - params.num_heads) % kv.num_kv_heads;
  const uint32_t* blocks = params.block_lists + size_t{place.sequence} * params.max_blocks;
  const uint32_t token = place.position % kv.block_size;
  if constexpr (kElement == KvElement::kFp8) {
    const size_t piece = kv.KeyOffset(blocks[place.position / kv.block_size], kv_head, 0, kElement);
    StoreCodes(params, place, kv.base + piece + (is_v ? kv.ValueOffset(kElement) : 0), token,
               coded);
    return;
  }
  const size_t offset =
      kv.KeyOffset(blocks[place.position / kv.block_size], kv_head, token, kElement);
  auto* slot = reinterpret_cast<Quad*>(kv.base + offset + (is_v ? kv.ValueOffset(kElement) : 0));
  slot[place.lane] = low;
  slot[quads_a_row / 2 + place.lane] = high;
  ZeroSlotsBehind(params, place, slot + quads_a_row, kv.block_size - 1 - token);
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_ROPE_LANES_H_
